"""The baselines made of PyTorch's own modules, `lstm` and `transformer`: each equals its module, called on one sample
at a time without padding."""

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.testing import assert_close

import beamtree
from beamtree.nn.encoders.transformer import sinusoids
from support import assert_batch_does_not_matter, inputs

DIM = 6
LENGTHS = [3, 7, 1, 5]  # in no order
SMALL = {"lstm": {}, "transformer": {"heads": 2, "feed_forward": 8}}
POOLINGS = {"lstm": ("last", "max", "mean"), "transformer": ("mean", "max", "first")}
WITH_DROPOUT = {"lstm": {"layers": 2, "dropout": 0.3}, "transformer": {"dropout": 0.3}}
CASES = [
    *(("lstm", {"layers": layers, "bidirectional": both}) for layers in (1, 3) for both in (True, False)),
    *(("transformer", {"layers": layers, "heads": heads}) for layers, heads in ((1, 1), (2, 2), (3, 3))),
]
every_baseline = pytest.mark.parametrize("name", SMALL)
every_pooling = pytest.mark.parametrize(("name", "pooling"), [(name, one) for name in SMALL for one in POOLINGS[name]])


def make(name, seed=0, dtype=torch.float64, dim=DIM, **options):
    torch.manual_seed(seed)
    return beamtree.encoder(name, dim=dim, **{**SMALL[name], "dropout": 0.0, **options}).to(dtype)


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def positions_by_hand(length, dim):
    rows = [[p / 10000 ** ((i - i % 2) / dim) for i in range(dim)] for p in range(length)]
    return [[math.cos(angle) if i % 2 else math.sin(angle) for i, angle in enumerate(row)] for row in rows]


def lstm_by_hand(encoder, x, weights):
    """The states (1, n, D) of one sample, and the final state of each direction (1, D)."""
    options = {"num_layers": encoder.layers, "bidirectional": encoder.bidirectional, "batch_first": True}
    width = encoder.dim // 2 if encoder.bidirectional else encoder.dim
    plain = nn.LSTM(encoder.dim, width, **options).double()
    parts = {key: key.partition(".") for key in weights}  # "1.weight_hh_l0_reverse" → "weight_hh_l1_reverse"
    own = {parts[key][2].replace("_l0", f"_l{parts[key][0]}"): weight for key, weight in weights.items()}
    states, _ = functional_call(plain, own, (x,))
    if not encoder.bidirectional:
        return states, states[:, -1]
    return states, torch.cat((states[:, -1, :width], states[:, 0, width:]), dim=1)


def transformer_by_hand(encoder, x, weights):
    """The states (1, n, D) of one sample, and that of its first position (1, D)."""
    layer = nn.TransformerEncoderLayer(
        encoder.dim, encoder.heads, encoder.feed_forward, 0.0, "gelu", norm_first=True, batch_first=True
    )
    plain = nn.TransformerEncoder(layer, encoder.layers, nn.LayerNorm(encoder.dim), enable_nested_tensor=False).double()
    positions = torch.tensor(positions_by_hand(x.shape[1], encoder.dim), dtype=x.dtype)
    states = functional_call(plain, weights, (x + positions,))
    return states, states[:, 0]


def by_hand(name, encoder, x, lengths):
    found = []
    weights = {key.partition(".")[2]: weight for key, weight in encoder.named_parameters()}
    for sample, length in zip(x, lengths.tolist(), strict=True):
        compute = lstm_by_hand if name == "lstm" else transformer_by_hand
        states, single = compute(encoder, sample[:length].unsqueeze(0), weights)
        pooled = {"max": states.max(1).values, "mean": states.mean(1)}
        found.append(pooled.get(encoder.pooling, single))
    return torch.cat(found)


def assert_equals_by_hand(name, encoder, lengths=LENGTHS):
    """Outputs, and the gradients of x and of all weights."""
    x, lengths = inputs(lengths, width=max(lengths) + 2, dim=encoder.dim)
    wanted = (x.requires_grad_(), *encoder.parameters())
    out, truth = encoder(x, lengths), by_hand(name, encoder, x, lengths)
    assert out.beams is None
    assert_close(out.state, truth, atol=1e-12, rtol=0)
    found, expected = (torch.autograd.grad(state.sin().sum(), wanted) for state in (out.state, truth))
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other, atol=1e-11, rtol=1e-9)


@pytest.mark.parametrize(("name", "options"), CASES)
@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
def test_encodings_and_gradients_are_those_of_single_samples_without_padding(name, options, training):
    assert_equals_by_hand(name, make(name, **options).train(training))


@every_pooling
def test_poolings(name, pooling):
    assert_equals_by_hand(name, make(name, pooling=pooling))


@every_pooling
def test_without_gradients_the_encoding_is_the_same(name, pooling):
    encoder, batch = make(name, pooling=pooling, layers=2).eval(), inputs(LENGTHS)
    with torch.no_grad():
        state = encoder(*batch).state
    assert_close(state, encoder(*batch).state, atol=1e-12, rtol=0)
    with torch.inference_mode():
        assert_close(encoder(*batch).state, state, atol=1e-12, rtol=0)


@every_baseline
@given(
    lengths=st.lists(st.integers(1, 8), min_size=1, max_size=4), padding=st.integers(0, 3), seed=st.integers(0, 1000)
)
@settings(max_examples=20)
def test_padding_and_batch_mates_never_change_an_encoding(name, lengths, padding, seed):
    for pooling in POOLINGS[name]:
        assert_batch_does_not_matter(make(name, seed=seed, layers=2, pooling=pooling).eval(), lengths, padding, seed)


@every_pooling
def test_padding_changes_nothing_in_float32(name, pooling):
    encoder = make(name, dtype=torch.float32, layers=2, pooling=pooling, dim=32).eval()
    x, lengths = inputs([9, 4], dim=32, dtype=torch.float32)
    padded = torch.cat((x, torch.full((2, 50, 32), 1e4)), dim=1)
    with torch.no_grad():
        assert_close(encoder(padded, lengths).state, encoder(x, lengths).state, atol=1e-6, rtol=0)


@every_baseline
@pytest.mark.parametrize("length", [1, 6])
def test_the_gradient_of_a_weight_is_its_difference_quotient(name, length):
    encoder, batch, step = make(name, layers=2), inputs([length, 2]), 1e-6
    key = "lstm.0.weight_hh_l0" if name == "lstm" else "transformer.layers.0.self_attn.in_proj_weight"
    weight, losses = encoder.get_parameter(key), []
    direction = torch.randn(weight.shape, generator=seeded(0)).double()
    (gradient,) = torch.autograd.grad(encoder(*batch).state.sin().sum(), weight)
    with torch.no_grad():
        for by in (step, -2 * step):
            weight.add_(direction, alpha=by)
            losses.append(encoder(*batch).state.sin().sum())
    assert_close((gradient * direction).sum(), (losses[0] - losses[1]) / (2 * step), atol=1e-8, rtol=1e-6)


@pytest.mark.parametrize("dim", [1, 5, 8])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
def test_positions_are_exact_at_any_distance(dim, dtype):
    truth = torch.tensor(positions_by_hand(2000, dim), dtype=torch.float64)
    found = sinusoids(2000, dim, torch.empty(0, dtype=dtype))
    assert found.dtype == dtype
    assert_close(found.double(), truth, atol=1e-12 if dtype == torch.float64 else 1e-7, rtol=0)
    far = sinusoids(100_001, dim, torch.empty(0, dtype=dtype))[-1, 0].item()
    assert far == pytest.approx(math.sin(100_000), abs=1e-7)


@every_baseline
def test_long_inputs_are_encoded(name):
    """A transformer reads the order of 2000 vectors: with the first and the last exchanged, the encoding is another."""
    encoder = make(name, dtype=torch.float32).eval()
    x, lengths = inputs([2000, 3], dtype=torch.float32)
    exchanged = x.clone()
    exchanged[0, 0], exchanged[0, -1] = x[0, -1], x[0, 0]
    with torch.no_grad():
        state, other = encoder(x, lengths).state, encoder(exchanged, lengths).state
        alone = encoder(x[1:, :3], lengths[1:]).state
    assert state.isfinite().all()
    assert_close(state[1], alone[0], atol=1e-6, rtol=0)
    assert (state[0] - other[0]).abs().max() > 1e-6


@every_baseline
def test_the_order_of_the_inputs_matters(name):
    encoder, (x, lengths) = make(name), inputs([5])
    assert not torch.allclose(encoder(x, lengths).state, encoder(x.flip(1), lengths).state, atol=1e-3)


@every_baseline
def test_dropout_follows_the_generator_and_leaves_the_default_one_alone(name):
    encoder, batch = make(name, **WITH_DROPOUT[name]), inputs([8, 5])
    before = torch.get_rng_state()
    first, again, other = (encoder(*batch, seeded(seed)).state for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    generator = seeded(1)
    assert torch.equal(encoder(*batch, generator).state, first)
    assert not torch.equal(encoder(*batch, generator).state, first)  # it has advanced
    assert torch.equal(torch.get_rng_state(), before)


@every_baseline
def test_without_a_generator_dropout_follows_the_default_one(name):
    encoder, batch = make(name, **WITH_DROPOUT[name]), inputs([8, 5])
    torch.manual_seed(5)
    first, second = encoder(*batch).state, encoder(*batch).state
    assert not torch.equal(first, second)
    torch.manual_seed(5)
    for state in (first, second):
        assert torch.equal(encoder(*batch, torch.default_generator).state, state)


@every_baseline
def test_there_is_no_dropout_at_inference(name):
    encoder, batch = make(name, **WITH_DROPOUT[name]).eval(), inputs([8, 5])
    options = {**WITH_DROPOUT[name], "dropout": 0.0}
    assert torch.equal(encoder(*batch, seeded(1)).state, make(name, **options)(*batch).state)


def test_one_layer_of_an_lstm_has_no_dropout_and_no_warning():
    encoder, batch = make("lstm", dropout=0.5), inputs([4, 2])
    assert torch.equal(encoder(*batch).state, make("lstm")(*batch).state)


def test_the_default_generator_is_restored_after_an_error():
    encoder, batch = make("transformer", dropout=0.3), inputs([4, 2])
    encoder.transformer.norm.register_forward_pre_hook(lambda *_: {}["nothing"])
    before = torch.get_rng_state()
    with pytest.raises(KeyError, match="nothing"):
        encoder(*batch, seeded(1))
    assert torch.equal(torch.get_rng_state(), before)


def test_dropout_is_that_of_the_states_between_layers():
    """As in `nn.LSTM`: with all of them dropped, the second layer reads zeros."""
    encoder, (x, lengths) = make("lstm", layers=2, dropout=1 - 1e-12), inputs([5, 2])
    expected = encoder.lstm[1](torch.zeros_like(x))[1][0].transpose(0, 1).flatten(1)
    assert_close(encoder(x, lengths).state[0], expected[0], atol=1e-12, rtol=0)
    encoder.dropout, count = 0.25, 400
    out = encoder._drop(nn.utils.rnn.pack_sequence([torch.ones(count, DIM)]), seeded(0)).data
    assert out.unique().tolist() == pytest.approx([0, 4 / 3])
    assert (out > 0).double().mean().item() == pytest.approx(0.75, abs=0.03)


def test_second_derivatives_of_a_transformer_need_attention_that_has_them():
    encoder, (x, lengths) = make("transformer"), inputs([5, 2])
    x.requires_grad_()

    def second():
        (first,) = torch.autograd.grad(encoder(x, lengths).state.sin().sum(), x, create_graph=True)
        return torch.autograd.grad(first.sin().sum(), x)[0]

    with pytest.raises(RuntimeError, match="is not implemented"):
        second()
    with sdpa_kernel(SDPBackend.MATH):
        assert second().any()


def test_layers_of_a_transformer_start_with_different_weights():
    first, second = make("transformer", layers=2).transformer.layers
    for layer in ("linear1", "linear2", "self_attn.out_proj"):
        assert not torch.equal(first.get_submodule(layer).weight, second.get_submodule(layer).weight)
    assert not torch.equal(first.self_attn.in_proj_weight, second.self_attn.in_proj_weight)


def test_the_weights_of_pytorchs_modules_fit():
    """Their state dicts load, and the encoder computes what they do."""
    encoder, (x, lengths) = make("lstm"), inputs([4])
    lstm = nn.LSTM(DIM, DIM // 2, bidirectional=True, batch_first=True).double()
    encoder.lstm[0].load_state_dict(lstm.state_dict())
    final = lstm(x)[1][0]
    assert_close(encoder(x, lengths).state, torch.cat((final[0], final[1]), dim=1), atol=1e-12, rtol=0)
    layer = nn.TransformerEncoderLayer(DIM, 2, 8, batch_first=True)
    transformer = nn.TransformerEncoder(layer, 2, nn.LayerNorm(DIM), enable_nested_tensor=False)
    make("transformer").transformer.load_state_dict(transformer.state_dict())


@every_baseline
def test_after_a_functional_call_the_weights_are_the_encoder_s_own(name):
    encoder, batch = make(name), inputs([4, 2])
    state = encoder(*batch).state
    given = {key: 2 * weight for key, weight in encoder.named_parameters()}
    assert not torch.allclose(functional_call(encoder, given, batch).state, state)
    assert torch.equal(encoder(*batch).state, state)
    assert torch.equal(copy.deepcopy(encoder)(*batch).state, state)


def test_a_wrapped_sublayer_is_called_at_inference():
    """PyTorch's fast path for inference would read the weights of the original, which the wrapper does not have."""

    class Wrapper(nn.Module):
        def __init__(self, layer):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            return 1.5 * self.layer(x)

    encoder, batch = make("transformer").eval(), inputs([4, 2])
    state = encoder(*batch).state
    sublayer = encoder.transformer.layers[0]
    sublayer.linear1 = Wrapper(sublayer.linear1)
    with torch.no_grad():
        found = encoder(*batch).state
    assert not torch.allclose(found, state)
    assert_close(found, encoder(*batch).state, atol=1e-12, rtol=0)


@every_pooling
def test_states_are_in_full_precision_under_autocast(name, pooling):
    encoder = make(name, dtype=torch.float32, pooling=pooling, dim=32).eval()
    x, lengths = inputs([7, 4], dim=32, dtype=torch.float32)
    exact = encoder(x, lengths).state
    with torch.autocast("cpu", torch.bfloat16):
        for given in (x, x.bfloat16()):  # the output of another layer is in bfloat16
            close = encoder(given, lengths).state
            assert close.dtype == torch.float32
            assert_close(close, exact, atol=0.05, rtol=0.05)


@pytest.mark.usefixtures("shape_checks_off")
@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("lstm", {"dim": 7}, "dim is 7: it must be even if bidirectional, with dim / 2 units in each direction"),
        ("lstm", {"layers": 0}, "layers is 0: it must be an integer of at least 1"),
        ("lstm", {"bidirectional": 2}, "bidirectional is 2: it must be True or False"),
        ("lstm", {"dropout": 1.0}, "dropout is 1.0: it must be a number from 0 up to but not including 1"),
        ("lstm", {"pooling": "first"}, "unknown pooling 'first'; known: last, max, mean"),
        ("lstm", {"engine": "reference"}, "unknown option of lstm 'engine'; known: dim, layers, "),
        ("transformer", {"heads": 4}, "heads is 4: it must divide dim = 6, the width that the heads share"),
        ("transformer", {"heads": 0}, "heads is 0: it must be an integer of at least 1"),
        ("transformer", {"layers": 1.5}, "layers is 1.5: it must be an integer of at least 1"),
        ("transformer", {"feed_forward": 0}, "feed_forward is 0: it must be an integer of at least 1"),
        ("transformer", {"dropout": -0.1}, "dropout is -0.1: it must be a number from 0 up to but not including 1"),
        ("transformer", {"pooling": "last"}, "unknown pooling 'last'; known: mean, max, first"),
        ("transformer", {"engine": "auto"}, "unknown option of transformer 'engine'; known: dim, layers, "),
    ],
)
def test_wrong_options_are_named_in_one_line(name, options, message):
    with pytest.raises(ValueError) as error:  # noqa: PT011 (the message is compared below)
        beamtree.encoder(name, **{"dim": DIM, **SMALL[name], **options})
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_an_odd_width_is_allowed_in_one_direction():
    assert_equals_by_hand("lstm", make("lstm", dim=7, bidirectional=False))
    assert_equals_by_hand("transformer", make("transformer", dim=7, heads=1))


def test_the_feed_forward_layers_are_four_times_as_wide_by_default():
    encoder = beamtree.Transformer(8)
    assert encoder.feed_forward == encoder.transformer.layers[0].linear1.out_features == 32


def pass_on(device, encoder, batch, dtype=torch.float32):
    """The state, and the gradients of x and of all weights."""
    encoder, (x, lengths) = copy.deepcopy(encoder).to(device, dtype), batch
    x = x.to(device, dtype).requires_grad_()
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        state = encoder(x, lengths.to(device)).state
        found = torch.autograd.grad(state.float().sin().sum(), (x, *encoder.parameters()))
    return [one.cpu().float() for one in (state, *found)]


@pytest.mark.gpu
@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
@every_pooling
def test_on_a_gpu_states_and_gradients_are_the_same(name, pooling, training):
    """Also in eval mode, in which cuDNN has no gradients."""
    encoder = make(name, layers=2, pooling=pooling).train(training)
    batch = inputs(LENGTHS, width=9, dtype=torch.float32)
    found, truth = (pass_on(device, encoder, batch) for device in ("cuda", "cpu"))
    for one, other in zip(found, truth, strict=True):
        assert_close(one, other, atol=1e-5, rtol=1e-4)
    for dtype in (torch.bfloat16, torch.float16):
        half = pass_on("cuda", encoder, batch, dtype)
        error, size = (
            sum(part.square().sum() for part in parts).sqrt()
            for parts in ([one - other for one, other in zip(half, truth, strict=True)], truth)
        )
        assert error < 0.05 * size


@pytest.mark.gpu
@every_baseline
def test_on_a_gpu_dropout_follows_the_generator(name):
    encoder = make(name, dtype=torch.float32, **WITH_DROPOUT[name]).cuda()
    x, lengths = (tensor.cuda() for tensor in inputs([8, 5], dtype=torch.float32))
    before = torch.cuda.get_rng_state()
    first, again, other = (encoder(x, lengths, torch.Generator("cuda").manual_seed(seed)).state for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.cuda.get_rng_state(), before)
    with pytest.raises((ValueError, RuntimeError), match="cpu"):
        encoder(x, lengths, seeded(1))


@pytest.mark.gpu
@every_baseline
def test_on_a_gpu_a_functional_call_uses_the_weights_it_is_given(name):
    encoder, other = (make(name, seed=seed, dtype=torch.float32).cuda() for seed in (0, 1))
    batch = tuple(tensor.cuda() for tensor in inputs(LENGTHS, dtype=torch.float32))
    states = [one(*batch).state for one in (encoder, other)]
    found = functional_call(encoder, {key: 1.0 * weight for key, weight in other.named_parameters()}, batch).state
    assert_close(found, states[1], atol=1e-6, rtol=0)
    assert_close(encoder(*batch).state, states[0], atol=1e-6, rtol=0)
