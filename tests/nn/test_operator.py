"""`torch.ops.beamtree.encode`: the operator that `torch.compile` and `torch.export` see."""

import io
import json

import pytest
import torch
from torch import nn

import beamtree
from beamtree.nn import description, operator
from beamtree.nn.encoders import Encoder
from idioms import NAMES, inputs, make

DESCRIBED = [name for name in NAMES if name != "gold-tree-grc"]  # whose trees are Python objects
every_described = pytest.mark.parametrize("name", DESCRIBED)


def arguments(encoder, lengths=(4, 1, 3), training=True):
    x, lengths = inputs(lengths)
    weights = [tensor.detach().clone() for _, tensor in description.named_weights(encoder)]
    for tensor in (x, *weights):
        tensor.requires_grad_(tensor.is_floating_point())
    return x, lengths, torch.tensor(3), weights, description.describe(encoder), training, None


def direct(encoder, x, lengths, seed, weights, training):
    """What the operator computes, as the module itself does."""
    names = [name for name, _ in description.named_weights(encoder)]
    generator = torch.Generator().manual_seed(int(seed))
    encoder.train(training)
    return torch.func.functional_call(encoder, dict(zip(names, weights, strict=True)), (x, lengths, generator))


@every_described
def test_torch_accepts_the_operator(name):
    """Its schema, shapes of fake tensors, and autograd, also with dynamic shapes."""
    torch.library.opcheck(torch.ops.beamtree.encode.default, arguments(make(name)))


@every_described
@pytest.mark.parametrize("training", [True, False])
def test_outputs_and_gradients_are_those_of_the_module(name, training):
    encoder = make(name)
    given = x, lengths, seed, weights, *_ = arguments(encoder, training=training)
    truth = direct(encoder, x, lengths, seed, weights, training)
    found = operator.to_encoding(operator.Fields(*operator.encode(*given)), lengths, encoder.dim)
    outputs = [(found.state, truth.state)]
    assert (found.beams is None) == (truth.beams is None)
    if truth.beams is not None:
        assert torch.equal(found.beams.chart.actions, truth.beams.chart.actions)
        assert torch.equal(found.beams.nodes.spans, truth.beams.nodes.spans)
        outputs += [
            (found.beams.log_probs, truth.beams.log_probs),
            (found.beams.nodes.states, truth.beams.nodes.states),
        ]
    tensors = [x, *(weight for weight in weights if weight.requires_grad)]
    losses = [
        sum(output.masked_fill(~output.isfinite(), 0).sin().sum() for output in each)
        for each in zip(*outputs, strict=True)
    ]
    found_gradients, gradients = (
        torch.autograd.grad(loss, tensors, allow_unused=True, materialize_grads=True) for loss in losses
    )
    for one, other in (*outputs, *zip(found_gradients, gradients, strict=True)):
        torch.testing.assert_close(one, other, atol=1e-10, rtol=1e-10)


@every_described
def test_a_description_builds_an_encoder_of_the_same_kind(name):
    encoder = make(name)
    rebuilt = description.build(description.describe(encoder))
    assert repr(rebuilt) == repr(encoder)
    assert all(tensor.is_meta for tensor in rebuilt.parameters())
    described = json.loads(description.describe(encoder))
    assert set(described) == {"encoder", *type(encoder).OPTIONS}


@pytest.mark.parametrize("name", ["bt-grc", "ndr"])
def test_an_exported_program_is_saved_and_loaded(name):
    encoder, file = make(name).eval(), io.BytesIO()
    B, N = torch.export.Dim("B"), torch.export.Dim("N", min=3)  # PyTorch has programs of their own for sizes of 1
    program = torch.export.export(encoder, inputs(), dynamic_shapes={"x": {0: B, 1: N}, "lengths": {0: B}})
    torch.export.save(program, file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    for lengths in ((4, 1, 3), (6, 5), (3, 2, 1, 3)):
        found, truth = loaded(*inputs(lengths)), encoder(*inputs(lengths))
        torch.testing.assert_close(found.state, truth.state)
        assert (found.beams is None) == (truth.beams is None)
        if truth.beams is not None:
            assert found.beams.trees() == truth.beams.trees()


def test_seeds_decide_about_noise_and_dropout():
    x, lengths, _, *others = arguments(make("bt-grc"))
    one, same, other = (operator.encode(x, lengths, torch.tensor(seed), *others)[0] for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def hooked():
    encoder = make("bt-grc")
    encoder.cell.gates.register_forward_hook(lambda *_: None)
    return encoder


def with_own_cell():
    class Mean(nn.Module):
        def forward(self, left, right):
            return (left + right) / 2

    return beamtree.encoder("bt-grc", dim=8, cell=Mean())


def with_own_topk():
    return beamtree.encoder("bt-grc", dim=8, topk=lambda scores, k: beamtree.plain_topk(scores, k))


def with_subclass():
    class Scaled(nn.Linear):
        pass

    encoder = make("bt-grc")
    encoder.scorer = Scaled(8, 1).double()
    return encoder


def with_subclass_of_the_same_name():
    encoder = with_subclass()
    type(encoder.scorer).__name__ = "Linear"
    return encoder


def with_another_forward():
    encoder = make("bt-grc")
    plain = encoder.cell.gates.forward
    encoder.cell.gates.forward = lambda x: 3 * plain(x)
    return encoder


def partly_in_training():
    encoder = make("bt-grc")
    encoder.cell.eval()
    return encoder


def unregistered():
    class Own(type(make("bt-grc"))):
        pass

    return Own(dim=8)


@pytest.mark.parametrize(
    ("make_encoder", "reason"),
    [
        (hooked, "its layers are not plain"),
        (with_own_cell, "its cell is not one of beamtree's"),
        (with_subclass, "its layers are not plain"),
        (with_subclass_of_the_same_name, "its layers are not plain"),
        (with_another_forward, "its layers are not plain"),
        (partly_in_training, "some of its layers are in training mode"),
        (unregistered, "its class is not registered"),
        (with_own_topk, "its option 'topk' is a Python object"),
    ],
)
def test_what_no_description_holds_is_refused_by_export(make_encoder, reason):
    encoder: Encoder = make_encoder()
    assert encoder._description() == ""
    dtype = next(encoder.parameters()).dtype
    with pytest.raises(RuntimeError, match=f"torch.export cannot export .*{reason}"):
        torch.export.export(encoder, inputs(dtype=dtype))
