"""Ranger, the optimizer of the paper: RAdam (Liu et al. 2020) under Lookahead (Zhang et al. 2019).

Every few steps, Lookahead interpolates between the slow weights, which are those after the previous interpolation, and
the weights of RAdam:  θ ← slow + α (θ − slow),  slow ← θ.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from beamtree.runs.settings import OptimizerSettings
from beamtree.utils.checks import check_integer


class Ranger(torch.optim.RAdam):
    """Ranger with the defaults of the published code: decoupled weight decay, Lookahead every 5 steps with α = 0.8.

    The state dict includes the slow weights and the number of steps, so resuming is exact. Parameters without a
    gradient are not updated.
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
            raise ValueError(f"alpha is {alpha!r}: it must be greater than 0 and at most 1")
        super().__init__(parameters, lr, betas, eps, weight_decay, decoupled_weight_decay=True)
        self.lookahead_steps, self.alpha = lookahead_steps, alpha

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        updated = [(group, [p for p in group["params"] if p.grad is not None]) for group in self.param_groups]
        before = [(p, p.clone()) for _, parameters in updated for p in parameters if "slow" not in self.state[p]]
        super().step()
        for p, start in before:
            self.state[p]["slow"] = start
        for group, parameters in updated:
            group["taken"] = group.get("taken", 0) + 1
            if group["taken"] % self.lookahead_steps:
                continue
            for p in parameters:
                slow = self.state[p]["slow"]
                slow.lerp_(p, self.alpha)
                p.copy_(slow)
        return loss


def make_optimizer(parameters: list[Tensor], settings: OptimizerSettings) -> torch.optim.Optimizer:
    """Create the optimizer of a run. As in the paper, weight decay applies to all parameters, also biases and norms."""
    make = {"ranger": Ranger, "adamw": torch.optim.AdamW}[settings.name]
    return make(parameters, lr=settings.lr, weight_decay=settings.weight_decay)
