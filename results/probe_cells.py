"""Which cells compute lists with more arguments than in training? A probe: single lists, composed from the left.

    python results/probe_cells.py --cells grc pooled --seeds 0 1 2     # two to nine minutes per run on one CPU core
    python results/probe_cells.py --table

A model is trained on `[OP a b … ]` with one to five random digits, and tested on up to fifteen. There are no nested
lists and no tree to find, so what it gets wrong is due to the cell. Each run writes results/probe/CELL-seedN.json.
The cells are in probed_cells.py.
"""

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from probed_cells import GRC_KINDS, GatedCell, PooledCell, ProbedCell
from torch import Tensor, nn
from torch.nn import functional as F

from beamtree.data.tasks.listops.expressions import OPERATORS

RESULTS = Path(__file__).parent / "probe"
BATCH, TESTED = 256, 4000
MOST_IN_TRAINING, ARGUMENTS = 5, (2, 3, 4, 5, 6, 7, 8, 10, 12, 15)
COST = 0.01  # factor in the loss of the fraction of digits that are composed instead of added
PULL = 0.01  # factor in the loss of the squared logits of a gate that tracks the losses
NAMES = [name.removeprefix("[") for name in OPERATORS]


class Lists(NamedTuple):
    operator: Tensor  # (B,) index into OPERATORS
    digits: Tensor  # (B, N), of which the first ones are arguments
    arguments: Tensor  # (B,) how many
    value: Tensor  # (B,)


def random_lists(size: int, fewest: int, most: int, generator: torch.Generator) -> Lists:
    operator = torch.randint(len(NAMES), (size,), generator=generator)
    digits = torch.randint(10, (size, most), generator=generator)
    count = torch.randint(fewest, most + 1, (size,), generator=generator)
    absent = torch.arange(most) >= count.unsqueeze(1)
    ascending = digits.masked_fill(absent, 10).sort(1).values
    middle = [ascending.gather(1, index.unsqueeze(1)).squeeze(1) for index in ((count - 1) // 2, count // 2)]
    values = {
        "MIN": ascending[:, 0],
        "MAX": digits.masked_fill(absent, -1).amax(1),
        "MED": (middle[0] + middle[1]) // 2,
        "SM": digits.masked_fill(absent, 0).sum(1) % 10,
    }
    all_values = torch.stack([values[name] for name in NAMES], dim=1)  # (B, 4)
    return Lists(operator, digits, count, all_values.gather(1, operator.unsqueeze(1)).squeeze(1))


class Probe(NamedTuple):
    """A cell of the probe: its name, the width of its states, and how long it is trained."""

    cell: str
    dim: int = 64
    steps: int = 5000
    given: Literal["nothing", "closing", "all"] = "nothing"  # where the cell need not decide whether to add
    noise: float = 0.0  # standard deviation of the noise that is added to new states
    rise: tuple[float, float] = (0.0, 0.0)  # between which fractions of the training the noise rises from 0
    explores: Literal["no", "expected", "tracked"] = (
        "no"  # how the gate learns from random decisions; see `explored_loss`
    )

    def noise_at(self, progress: float) -> float:
        """The standard deviation of the noise after this fraction of the training."""
        begin, end = self.rise
        return self.noise if progress >= end else self.noise * max(progress - begin, 0) / (end - begin)

    def make(self) -> ProbedCell:
        if self.cell in GRC_KINDS:
            return GatedCell(self.cell, self.dim)
        return PooledCell(self.dim, with_maximum=self.cell == "pooled")


CELLS = {
    **{kind: Probe(kind) for kind in GRC_KINDS},
    "grc-96": Probe("grc", 96, 8000),
    "summed": Probe("summed", 96, 8000),
    "pooled": Probe("pooled", 96, 8000),
    "pooled-closed": Probe("pooled", 96, 8000, given="closing"),
    "pooled-known": Probe("pooled", 96, 8000, given="all"),
    "noisy": Probe("grc", 96, 8000, noise=1.0, rise=(0.35, 0.7)),
    "noisy-half": Probe("grc", 96, 8000, noise=0.5, rise=(0.35, 0.7)),
    "noisy-always": Probe("grc", 96, 8000, noise=1.0),
    "pooled-noisy": Probe("pooled", 96, 8000, noise=0.5),
    "pooled-closed-noisy": Probe("pooled", 96, 8000, given="closing", noise=0.5),
    "explored": Probe("pooled", 96, 8000, given="closing", explores="expected"),
    "explored-noisy": Probe("pooled", 96, 8000, given="closing", noise=0.5, explores="expected"),
    "tracked-noisy": Probe("pooled", 96, 20000, given="closing", noise=0.5, explores="tracked"),
}


class ListModel(nn.Module):
    def __init__(self, probe: Probe) -> None:
        super().__init__()
        dim, self.given, self.explores = probe.dim, probe.given, probe.explores
        self.embedding = nn.Embedding(10 + len(NAMES) + 1, dim)  # digits, operators, "]"
        self.leaf = nn.Sequential(nn.Linear(dim, dim), nn.LayerNorm(dim))
        self.cell = probe.make()
        self.classifier = nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, 10))

    def forward(self, lists: Lists, adds: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """The logits (B, 10) of the values, the number (B,) of a list's digits that were composed, not added, and the
        logits of the gate for all digits, of a model that explores: (B, N).

        `adds` (B, 1): whether digits are added. By default the cell decides, or it is given.
        """
        leaves = self.cell.start(self.leaf(self.embedding.weight))
        state = leaves[10 + lists.operator]
        is_sum = (lists.operator == NAMES.index("SM")).unsqueeze(1)  # the operator whose digits cannot be added
        if self.given == "all":
            adds = ~is_sum
        gates = []
        for index in range(lists.digits.shape[1]):
            digit, decisions = leaves[lists.digits[:, index]], adds
            if self.explores != "no" and isinstance(self.cell, PooledCell):
                gates.append(self.cell.pool_logit(state, digit))
                decisions = gates[-1] > 0 if adds is None else adds  # no straight-through gradient
            state = torch.where((index < lists.arguments).unsqueeze(1), self.cell(state, digit, decisions), state)
        never = None if self.given == "nothing" else torch.zeros_like(is_sum)  # the value of a list is no sum
        root = self.cell(state, leaves[-1].expand_as(state), never)
        found = torch.cat(gates, dim=1) if gates else torch.zeros(len(state), 0)
        return self.classifier(self.cell.read(root)), self.cell.composed(state), found


def explored_loss(model: ListModel, lists: Lists) -> Tensor:
    """The loss of half the lists with the decisions of the gate, and of the others with random ones.

    Of a list with random decisions, d = ±2 (loss - baseline), with + if its digits were added, estimates the difference
    of the losses of adding and of composing. The baseline, which does not change the mean, is that of its operator.
    Adding is preferred by `COST`.

    expected: the gate minimises the expected loss, Σ p (d - COST), which has almost no gradient once p is near 0 or 1.
    tracked: its logit follows the difference of the losses, (COST - d) / (2 PULL), however far it is from it.
    """
    half = len(lists.operator) // 2
    decided, random = (Lists(*(column[rows] for column in lists)) for rows in (slice(half), slice(half, None)))
    logits, *_ = model(decided)
    adds = torch.rand(len(random.operator), 1) < 0.5
    random_logits, _, gates = model(random, adds)
    losses = F.cross_entropy(random_logits, random.value, reduction="none")
    found = losses.detach()
    same = F.one_hot(random.operator, len(NAMES)).float()  # (B, 4)
    baseline = same @ (same.T @ found / same.sum(0).clamp(min=1))
    difference = 2 * torch.where(adds.squeeze(1), 1.0, -1.0) * (found - baseline) - COST
    if model.explores == "expected":
        learned = difference.unsqueeze(1) * gates.sigmoid()
    else:
        learned = difference.unsqueeze(1) * gates + PULL * gates**2
    arguments = random.arguments.unsqueeze(1)
    is_argument = torch.arange(gates.shape[1]) < arguments
    gate_loss = (learned * is_argument / arguments).sum(1).mean()
    return F.cross_entropy(logits, decided.value) + losses.mean() + gate_loss


def run(name: str, seed: int, steps: int | None = None, tested: int = TESTED) -> dict[str, object]:
    """Train a model and measure its accuracy, in per cent, by operator and number of arguments."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    probe = CELLS[name]
    model, began, steps = ListModel(probe), time.monotonic(), steps or probe.steps
    optimizer = torch.optim.RAdam(model.parameters(), 1e-3, weight_decay=1e-2, decoupled_weight_decay=True)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [steps * 6 // 10, steps * 8 // 10], gamma=0.5)
    for step in range(steps):
        model.cell.noise = probe.noise_at(step / steps)
        lists = random_lists(BATCH, 1, MOST_IN_TRAINING, generator)
        if probe.explores != "no":
            loss = explored_loss(model, lists)
        else:
            logits, composed, _ = model(lists)
            loss = F.cross_entropy(logits, lists.value) + COST * composed.sum() / lists.arguments.sum()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    seconds = round(time.monotonic() - began)
    return {"cell": name, "seed": seed, "steps": steps, "seconds": seconds, **accuracies(model, tested)}


@torch.no_grad()
def accuracies(model: nn.Module, tested: int) -> dict[str, dict[str, float]]:
    model.eval()
    found: dict[str, dict[str, float]] = {name: {} for name in NAMES}
    for count in ARGUMENTS:
        lists = random_lists(tested, count, count, torch.Generator().manual_seed(1000 + count))
        logits, *_ = model(lists)
        correct = logits.argmax(-1) == lists.value
        for index, name in enumerate(NAMES):
            found[name][str(count)] = round(100 * float(correct[lists.operator == index].float().mean()), 2)
    return found


def table() -> str:
    """Medians over the seeds, a row for each cell and operator."""
    runs = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]
    lines = [f"| cell | seeds | operator | {' | '.join(map(str, ARGUMENTS))} |"]
    lines.append("|---" * 3 + "|---:" * len(ARGUMENTS) + "|")
    for cell in CELLS:
        own = [run for run in runs if run["cell"] == cell]
        for name in NAMES if own else ():
            medians = [statistics.median(run[name][str(count)] for run in own) for count in ARGUMENTS]
            lines.append(f"| {cell} | {len(own)} | {name} | {' | '.join(f'{value:.1f}' for value in medians)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", nargs="+", choices=CELLS, default=CELLS, help="default: all")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], help="default: 0 1 2")
    parser.add_argument("--table", action="store_true", help="only print the table of finished runs")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    RESULTS.mkdir(exist_ok=True)
    for seed in () if arguments.table else arguments.seeds:
        for cell in arguments.cells:
            path = RESULTS / f"{cell}-seed{seed}.json"
            if not path.exists():
                path.write_text(json.dumps(run(cell, seed)) + "\n")
                print(path.name, flush=True)
    print(table())


if __name__ == "__main__":
    main()
