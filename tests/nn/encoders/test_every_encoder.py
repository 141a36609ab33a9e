"""What holds for every encoder there is, in its smallest configuration: that of the recipe `listops-tiny`."""

import pytest
import torch

import beamtree
from beamtree.models.heads import TextClassifier
from beamtree.nn.encoders import needs_trees
from beamtree.runs import recipes
from idioms import REFERENCE
from support import assert_gradients_are_derivatives

DIM = 8
RANDOM_AT_TEST = ("random-tree-grc", "mc-gumbel-tree-grc")  # another tree each time, so no two results are the same
SAME_AT_TEST = [name for name in beamtree.encoders() if name not in RANDOM_AT_TEST]
STRAIGHT_THROUGH = ("gumbel-tree-grc", "gumbel-tree-lstm", "mc-gumbel-tree-grc")  # whose gradient is no derivative

WITHOUT = {"bsrp-grc": {"start"}}  # with one element on its stack it must shift, whatever the scorer says

every_encoder = pytest.mark.parametrize("name", beamtree.encoders())


def make(name, dim=DIM, dtype=torch.float64):
    torch.manual_seed(0)
    return beamtree.encoder(name, dim=dim, **recipes.load("listops-tiny", name).encoder.options).to(dtype)


def chain(length):
    """The tree ((0 1) 2) …"""
    return beamtree.Tree.from_actions([0] * (length - 1))


def encode(encoder, x, lengths):
    given = {"trees": [chain(length) for length in lengths.tolist()]} if encoder.needs_trees else {}
    return encoder(x, lengths, generator=torch.Generator().manual_seed(1), **given)


def inputs(*lengths, width=None, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(len(lengths), width or max(lengths), DIM, generator=generator).double(), torch.tensor(lengths)


@every_encoder
def test_every_parameter_and_input_gets_a_gradient(name):
    encoder, (x, lengths) = make(name), inputs(7, 5, 6)
    x.requires_grad_()
    out = encode(encoder, x, lengths)
    assert out.state.shape == (3, DIM)
    assert out.state.isfinite().all()
    out.state.sin().sum().backward()
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in encoder.parameters())
    without = {key for key, weight in encoder.named_parameters() if not weight.grad.any()}
    assert without <= WITHOUT.get(name, {"scorer.bias"})  # a softmax does not see what all scores have in common
    inside = torch.arange(7) < lengths.unsqueeze(1)
    assert x.grad.any(2)[inside].all()
    assert not x.grad.any(2)[~inside].any()


@pytest.mark.parametrize("name", [name for name in beamtree.encoders() if name not in STRAIGHT_THROUGH])
def test_gradients_are_derivatives(name):
    encoder, (x, lengths) = make(name), inputs(5, 3)

    def outputs(x, *weights):
        return encode(encoder, x, lengths).state

    assert_gradients_are_derivatives(outputs, (x.requires_grad_(), *encoder.parameters()), fast_mode=True)


@pytest.mark.parametrize("name", SAME_AT_TEST)
def test_padding_and_batch_mates_change_nothing(name):
    encoder, (x, lengths) = make(name).eval(), inputs(6, 3, 1, 2)
    together = encode(encoder, x, lengths).state
    for row, length in enumerate(lengths.tolist()):
        alone = x[row : row + 1, :length]
        padded = torch.cat((alone, torch.full((1, 4, DIM), 1e3, dtype=x.dtype)), dim=1)
        for other in (alone, padded):
            state = encode(encoder, other, torch.tensor([length])).state
            torch.testing.assert_close(state, together[row : row + 1], atol=1e-10, rtol=1e-10)


@every_encoder
def test_what_stands_in_the_padding_does_not_matter(name):
    """To the last bit, under noise and dropout."""
    encoder, (x, lengths), found = make(name).train(), inputs(6, 3, 1), []
    spoiled = x.clone()
    spoiled[1, 3:], spoiled[2, 1:] = torch.nan, torch.inf
    for given in (x, spoiled):
        state = encode(encoder, given.requires_grad_(), lengths).state
        wanted = (given, *encoder.parameters())
        found.append(
            (state, *torch.autograd.grad(state.sin().sum(), wanted, allow_unused=True, materialize_grads=True))
        )
    for clean, same in zip(*found, strict=True):
        assert torch.equal(clean, same)


@every_encoder
@pytest.mark.parametrize("training", [True, False], ids=["training", "test"])
def test_short_inputs_are_encoded(name, training):
    encoder = make(name).train(training)
    for length in (1, 2, 3):
        out = encode(encoder, *inputs(length, length))
        assert out.state.shape == (2, DIM)
        assert out.state.isfinite().all()


@every_encoder
def test_trees_are_binary_and_over_the_right_leaves(name):
    encoder, (x, lengths) = make(name).eval(), inputs(7, 4, 1)
    beams = encode(encoder, x, lengths).beams
    if beams is None:
        return
    torch.testing.assert_close(beams.log_probs.exp().sum(1), torch.ones(3, dtype=torch.float64))
    tokens = [[f"w{place}" for place in range(length)] for length in lengths.tolist()]
    for words, trees in zip(tokens, beams.trees(tokens), strict=True):
        assert trees
        for tree in trees:
            assert list(tree.leaves) == words
            assert len(tree.spans(leaves=False)) == len(words) - 1
    assert beams.nodes.states.isfinite().all()


@every_encoder
def test_noise_and_dropout_follow_the_generator(name):
    encoder, (x, lengths) = make(name), inputs(6, 5)
    first, second = (encode(encoder, x, lengths).state for _ in range(2))
    assert torch.equal(first, second)


@every_encoder
def test_weights_can_be_saved_and_loaded(name, tmp_path):
    encoder, other = make(name).eval(), make(name).eval()
    with torch.no_grad():
        for weight in other.parameters():
            weight.add_(1)
    torch.save(encoder.state_dict(), tmp_path / "weights.pt")
    other.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True))
    x, lengths = inputs(5, 4)
    assert torch.equal(encode(encoder, x, lengths).state, encode(other, x, lengths).state)


@every_encoder
def test_a_few_examples_can_be_learned_by_heart(name):
    """32 sequences of random words with random labels."""
    torch.manual_seed(0)
    tokens, labels, lengths = torch.randint(3, 12, (32, 6)), torch.randint(3, (32,)), torch.randint(4, 7, (32,))
    trees = [chain(length) for length in lengths.tolist()]
    model = TextClassifier(make(name, dim=24, dtype=torch.float32), 12, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(300):
        logits = model(tokens, lengths, trees=trees).logits
        if (model.predictions(logits) == labels).float().mean() > 0.9:
            break
        optimizer.zero_grad()
        model.loss(logits, labels).backward()
        optimizer.step()
    else:
        pytest.fail("300 steps were not enough")


def test_encoders_that_need_trees_are_known():
    assert [name for name in beamtree.encoders() if needs_trees(name)] in ([], ["gold-tree-grc"])


@every_encoder
def test_constituents_have_gradients_also_if_they_were_read_without(name):
    encoder, (x, lengths) = make(name), inputs(5, 3)
    encoding = encode(encoder, x, lengths)
    if encoding.beams is None:
        return
    with torch.no_grad():
        first = encoding.beams.nodes.states
    assert encoding.beams.nodes.states.requires_grad
    assert encoding.beams.nodes.states is encoding.beams.nodes.states  # gathered once
    assert torch.equal(encoding.beams.nodes.states, first)


@every_encoder
def test_samples_that_are_not_finite_do_not_change_others(name):
    """Their encodings, their constituents, and the gradients of their inputs."""
    for engine in ("torch", "reference") if name in REFERENCE else (None,):
        encoder, (x, lengths), found = make(name).eval(), inputs(7, 3, 1, 2), []
        encoder.engine, spoiled = engine or getattr(encoder, "engine", None), x.clone()
        spoiled[0, 0] = torch.nan
        for given in (x, spoiled):
            encoding = encode(encoder, given.requires_grad_(), lengths)
            (gradient,) = torch.autograd.grad(encoding.state[1:].sin().sum(), given)
            states = () if encoding.beams is None else (encoding.beams.nodes.states[1:],)
            found.append((encoding.state[1:], gradient[1:], *states))
        for clean, same in zip(*found, strict=True):
            torch.testing.assert_close(same, clean, atol=1e-10, rtol=1e-10)
