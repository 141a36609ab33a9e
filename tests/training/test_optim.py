"""Ranger against the published formulas, step by step."""

import copy
import math

import pytest
import torch

from beamtree.training.optim import Ranger


def published(theta, gradients, lr=1e-3, decay=1e-2, beta1=0.9, beta2=0.999, eps=1e-8, k=5, alpha=0.8):
    """The weights after each step, by the published code's formulas."""
    slow, m, v = theta.clone(), torch.zeros_like(theta), torch.zeros_like(theta)
    limit = 2 / (1 - beta2) - 1
    for t, g in enumerate(gradients, start=1):
        v = beta2 * v + (1 - beta2) * g * g
        m = beta1 * m + (1 - beta1) * g
        rho = limit - 2 * t * beta2**t / (1 - beta2**t)
        theta = theta - lr * decay * theta
        if rho >= 5:
            r = math.sqrt((1 - beta2**t) * (rho - 4) / (limit - 4) * (rho - 2) / rho * limit / (limit - 2)) / (
                1 - beta1**t
            )
            theta = theta - lr * r * m / (v.sqrt() + eps)
        else:
            theta = theta - lr * m / (1 - beta1**t)
        if t % k == 0:
            theta = alpha * theta + (1 - alpha) * slow
            slow = theta.clone()
        yield theta


def gradients(count, size=7):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(size, generator=generator, dtype=torch.float64) for _ in range(count)]


def test_every_step_is_the_published_one():
    theta = torch.nn.Parameter(torch.linspace(-1, 1, 7, dtype=torch.float64))
    optimizer = Ranger([theta])
    drawn = gradients(40)
    for gradient, expected in zip(drawn, published(theta.detach().clone(), drawn), strict=True):
        theta.grad = gradient
        optimizer.step()
        torch.testing.assert_close(theta.detach(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("stop", [3, 5, 12])
def test_a_resumed_run_is_the_same(stop):
    def run(theta, optimizer, some):
        for gradient in some:
            theta.grad = gradient.clone()
            optimizer.step()

    drawn = gradients(20)
    whole = torch.nn.Parameter(torch.ones(7, dtype=torch.float64))
    run(whole, Ranger([whole]), drawn)

    theta = torch.nn.Parameter(torch.ones(7, dtype=torch.float64))
    optimizer = Ranger([theta])
    run(theta, optimizer, drawn[:stop])
    state = copy.deepcopy(optimizer.state_dict())
    resumed = torch.nn.Parameter(theta.detach().clone())
    optimizer = Ranger([resumed])
    optimizer.load_state_dict(state)
    run(resumed, optimizer, drawn[stop:])
    assert torch.equal(whole, resumed)


def test_a_parameter_without_a_gradient_stays():
    moving, resting = (torch.nn.Parameter(torch.ones(3)) for _ in range(2))
    optimizer = Ranger([moving, resting])
    for _ in range(6):
        moving.grad = torch.ones(3)
        optimizer.step()
    assert torch.equal(resting, torch.ones(3))
    assert (moving < 1).all()


def test_parameters_may_join_later():
    first, later = (torch.nn.Parameter(torch.ones(3)) for _ in range(2))
    optimizer = Ranger([first])
    first.grad = torch.ones(3)
    optimizer.step()
    optimizer.add_param_group({"params": [later]})
    for _ in range(5):
        first.grad, later.grad = torch.ones(3), torch.ones(3)
        optimizer.step()
    assert [group["taken"] for group in optimizer.param_groups] == [6, 5]
    assert torch.equal(optimizer.state[later]["slow"], later)


def test_a_closure_is_called_with_gradients_on():
    theta = torch.nn.Parameter(torch.ones(2))
    optimizer = Ranger([theta])

    def closure():
        optimizer.zero_grad()
        loss = (theta**2).sum()
        loss.backward()
        return loss.item()

    assert optimizer.step(closure) == 2


@pytest.mark.parametrize("wrong", [{"lookahead_steps": 0}, {"alpha": 0.0}, {"alpha": 1.5}, {"lr": -1.0}])
def test_bad_settings_are_refused(wrong):
    with pytest.raises(ValueError, match=r"must be|Invalid"):
        Ranger([torch.nn.Parameter(torch.ones(1))], **wrong)
