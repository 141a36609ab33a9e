"""The option `state_noise`: noise that is added to every composed state during training."""

import pytest
import torch
from torch.testing import assert_close

import beamtree
from support import assert_same, everything, inputs

ENCODERS = ["balanced-tree-grc", "random-tree-grc", "gold-tree-grc", "bt-grc", "ebt-grc", "bsrp-grc"]
TREES = {5: "((a (b c)) (d e))", 3: "(a (b c))", 1: "a"}


def make(name, **options):
    torch.manual_seed(0)
    options = {"state_noise": 0.7, **options}
    if name in ("bt-grc", "ebt-grc", "bsrp-grc"):
        options |= {"beam_size": 3}
    return beamtree.encoder(name, dim=6, **options).double()


def passes(encoder, x, lengths):
    """Outputs and gradients, of x and of all weights."""
    if not encoder.needs_trees:
        return everything(encoder, x, lengths)
    return everything(WithTrees(encoder), x, lengths)


class WithTrees(torch.nn.Module):
    """An encoder by gold trees that needs no trees."""

    def __init__(self, encoder):
        super().__init__()
        self.encoder = encoder

    def forward(self, x, lengths, generator=None):
        return self.encoder(x, lengths, generator, trees=[TREES[length] for length in lengths.tolist()])


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_the_torch_engine_agrees_with_the_reference(name, dropout):
    encoder = make(name, dropout=dropout, engine="reference")
    x, lengths = inputs([5, 3, 1])
    expected = passes(encoder, x, lengths)
    encoder.engine = "torch"
    assert_same(passes(encoder, x, lengths), expected, atol=1e-10)


# One encoder for each kernel that adds noise: given trees compose levels, the others new nodes.
@pytest.mark.parametrize(("name", "dropout"), [("gold-tree-grc", 0.2), ("bt-grc", 0.0), ("bsrp-grc", 0.2)])
@pytest.mark.kernels
@pytest.mark.usefixtures("workspaces")
def test_kernels_agree_with_the_reference(name, dropout):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    encoder = make(name, dropout=dropout, engine="reference").to(device, torch.float32)
    x, lengths = (each.to(device) for each in inputs([3, 1], dtype=torch.float32))
    expected = passes(encoder, x, lengths)
    encoder.engine = "triton"
    assert_same(passes(encoder, x, lengths), expected, atol=2e-5)


@pytest.mark.parametrize("name", ENCODERS)
def test_it_changes_training_and_not_inference(name):
    noisy, plain = make(name), make(name, state_noise=0.0)
    x, lengths = inputs([5, 3, 1])

    def states(encoder):
        torch.manual_seed(1)
        trees = {"trees": [TREES[length] for length in lengths.tolist()]} if encoder.needs_trees else {}
        with torch.no_grad():
            return encoder(x, lengths, **trees).state

    difference = (states(noisy) - states(plain)).abs().amax(1)
    assert (difference[:2] > 0.1).all()
    assert difference[2] == 0  # a single leaf is not composed
    assert_close(states(noisy.eval()), states(plain.eval()), atol=0, rtol=0)


def test_the_noise_has_its_deviation_and_no_mean():
    """Two words are composed once, so that the encoding differs from that without noise by the noise alone."""
    x, deviation = torch.randn(4000, 2, 6, dtype=torch.float64), 0.7
    torch.manual_seed(2)
    noise = make("balanced-tree-grc", state_noise=deviation)(x).state - make("balanced-tree-grc").eval()(x).state
    errors = 5 / noise.numel() ** 0.5  # five standard errors
    assert abs(noise.mean() / deviation) < errors
    assert abs(noise.std() / deviation - 1) < errors
    assert noise.abs().max() < 3**0.5 * deviation
    assert noise.T.corrcoef().fill_diagonal_(0).abs().max() < 0.1


def test_a_cell_by_itself_has_it_too():
    cell = beamtree.GRC(6, state_noise=0.7)
    left, right = torch.randn(2, 1000, 6)
    noise = cell(left, right) - cell.eval()(left, right)
    assert 0.6 < noise.std() < 0.8
    assert "state_noise=0.7" in repr(cell)


@pytest.mark.usefixtures("shape_checks_off")
@pytest.mark.parametrize("value", [-0.1, float("inf"), float("nan"), "1", True])
def test_wrong_values_are_refused(value):
    with pytest.raises(ValueError, match=r"state_noise is .*: it must be a finite number of at least 0"):
        make("bt-grc", state_noise=value)


@pytest.mark.parametrize("options", [{"cell": "lstm"}, {"cell": beamtree.GRC(6)}])
def test_other_cells_do_not_have_it(options):
    with pytest.raises(ValueError, match=r"state_noise is 0\.7: it must be 0 with another cell than 'grc'"):
        make("bt-grc", **options)


def test_onesoft_does_not_have_it():
    with pytest.raises(ValueError, match=r"state_noise is 0\.7: it must be 0 with OneSoft"):
        make("bt-grc", topk=beamtree.onesoft_topk)


@pytest.mark.parametrize(
    ("name", "others"),
    [
        *(("recurrent-grc", {}), ("ordered-memory", {"slots": 3}), ("crvnn", {}), ("cyk-grc", {})),
        *(("gumbel-tree-grc", {}), ("bt-grc-onesoft", {}), ("bt-grc-soft", {})),
    ],
)
def test_an_encoder_without_the_option_refuses_a_cell_that_has_it(name, others):
    with pytest.raises(ValueError, match=r"the cell has state_noise 0\.5: it must be 0, this encoder adds no noise"):
        beamtree.encoder(name, dim=6, cell=beamtree.GRC(6, state_noise=0.5), **others)


def test_a_cell_may_bring_it():
    cell = beamtree.GRC(6, state_noise=0.5)
    assert beamtree.encoder("bt-grc", dim=6, cell=cell).cell is cell


def test_it_is_part_of_the_description():
    encoder = make("bt-grc").eval()
    x, lengths = inputs([5, 3])
    program = torch.export.export(encoder, (x, lengths)).module()
    assert_close(program(x, lengths).state, encoder(x, lengths).state)


@pytest.mark.parametrize("name", ["gold-tree-grc", "bt-grc", "bsrp-grc"])
@pytest.mark.kernels
def test_one_workspace_serves_noise_of_any_deviation(name, workspaces):
    """As when the noise rises during the training."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    encoder = make(name).to(device, torch.float32)
    x, lengths = (each.to(device) for each in inputs([3, 1], dtype=torch.float32))
    for encoder.cell.state_noise in (0.3, 0.9, 0.3):
        encoder.engine = "reference"
        expected = passes(encoder, x, lengths)
        encoder.engine = "triton"
        assert_same(passes(encoder, x, lengths), expected, atol=2e-5)
        assert len(workspaces) == 1
