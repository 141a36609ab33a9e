"""Ranger, the optimizer of the paper: RAdam (Liu et al. 2020) under Lookahead (Zhang et al. 2019).

Every few steps the weights go a part of the way from where they were at the last such step, the slow weights, to where
RAdam has brought them:  θ ← slow + α (θ − slow),  slow ← θ.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from beamtree.runs.settings import OptimizerSettings
from beamtree.utils.checks import check_integer


class Ranger(torch.optim.RAdam):
    """With the published code's settings: weight decay apart from the gradient, Lookahead of 5 steps and α = 0.8.

    Slow weights and the number of steps are part of the state dict, so that a resumed run goes on as if it had not been
    interrupted. Parameters without a gradient are left alone.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        lookahead_steps: int = 5,
        alpha: float = 0.8,
    ) -> None:
        check_integer("lookahead_steps", lookahead_steps, at_least=1)
        if not 0 < alpha <= 1:
            raise ValueError(f"alpha is {alpha!r}: it must be a number above 0 and up to 1")
        super().__init__(parameters, lr, betas, eps, weight_decay, decoupled_weight_decay=True)
        self.lookahead_steps, self.alpha = lookahead_steps, alpha

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        moving = [(group, [p for p in group["params"] if p.grad is not None]) for group in self.param_groups]
        before = [(p, p.clone()) for _, parameters in moving for p in parameters if "slow" not in self.state[p]]
        super().step()
        for p, start in before:
            self.state[p]["slow"] = start
        for group, parameters in moving:
            group["taken"] = group.get("taken", 0) + 1
            if group["taken"] % self.lookahead_steps:
                continue
            for p in parameters:
                slow = self.state[p]["slow"]
                slow.lerp_(p, self.alpha)
                p.copy_(slow)
        return loss


def make_optimizer(parameters: list[Tensor], settings: OptimizerSettings) -> torch.optim.Optimizer:
    """The optimizer of a run. Weight decay applies to all weights, also to biases and norms, as in the paper."""
    make = {"ranger": Ranger, "adamw": torch.optim.AdamW}[settings.name]
    return make(parameters, lr=settings.lr, weight_decay=settings.weight_decay)
