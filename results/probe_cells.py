"""Which cells compute lists with more arguments than in training? A probe: single lists, composed from the left.

    python results/probe_cells.py --cells grc rms --seeds 0 1 2     # a few minutes per run on one CPU core
    python results/probe_cells.py --table

A model is trained on `[OP a b … ]` with one to five random digits, and tested on up to fifteen. There are no nested
lists and no tree to find, so what it gets wrong is due to the cell. Each run writes results/probe/CELL-seedN.json.
"""

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from beamtree.data.tasks.listops.expressions import OPERATORS

RESULTS = Path(__file__).parent / "probe"
DIM, BATCH, STEPS, TESTED = 64, 256, 5000, 4000
MOST_IN_TRAINING, ARGUMENTS = 5, (2, 3, 4, 5, 6, 7, 8, 10, 12, 15)
PARTS = [DIM // 4, 3 * DIM // 4]  # of the state of `mixed`
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


class ProbedCell(nn.Module):
    """The GRC, R(l, r) = norm(σ(z) ⊙ l + σ(h) ⊙ r + σ(c) ⊙ u), and variants of it.

    grc: as in the paper, with a layer norm.
    rms: with an RMS norm, which does not subtract the mean.
    counter: a quarter of the state is not normalised, so that it can grow.
    additive: no part is normalised; the gates and the classifier read normalised states.
    linear: as `additive`, and the gates read only the right child, so a parent is a linear function of its left child.
    mixed: a quarter of the state as in `grc`, the rest as in `linear`; all gates of the first part read both children.
    """

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.expand, self.gates = nn.Linear(2 * DIM, 4 * DIM), nn.Linear(4 * DIM, 4 * DIM)
        self.norm = nn.RMSNorm(DIM) if kind == "rms" else nn.LayerNorm(PARTS[0] if kind == "mixed" else DIM)
        self.rest_norm = nn.LayerNorm(PARTS[1]) if kind == "mixed" else nn.Identity()
        self.dropout = nn.Dropout(0.1)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        read_left, read_right = self.read(left), self.read(right)
        if self.kind == "mixed":
            parents = self.total(read_left, read_right, left, right), self.total(None, read_right, left, right)
            (first, _), (_, rest) = (parent.split(PARTS, dim=-1) for parent in parents)
            return torch.cat((self.norm(first), rest), dim=-1)
        total = self.total(None if self.kind == "linear" else read_left, read_right, left, right)
        if self.kind in ("additive", "linear"):
            return total
        normalised: Tensor = self.norm(total)
        if self.kind == "counter":
            return torch.cat((normalised[..., : 3 * DIM // 4], total[..., 3 * DIM // 4 :]), dim=-1)
        return normalised

    def total(self, read_left: Tensor | None, read_right: Tensor, left: Tensor, right: Tensor) -> Tensor:
        """σ(z) ⊙ l + σ(h) ⊙ r + σ(c) ⊙ u. Without `read_left`, the gates read only the right child."""
        children = torch.zeros_like(left) if read_left is None else read_left, read_right
        z, h, c, u = self.gates(self.dropout(F.gelu(self.expand(torch.cat(children, dim=-1))))).chunk(4, dim=-1)
        return z.sigmoid() * left + h.sigmoid() * right + c.sigmoid() * u

    def read(self, state: Tensor) -> Tensor:
        """A state as gates and classifier see it."""
        if self.kind == "mixed":
            first, rest = state.split(PARTS, dim=-1)
            return torch.cat((first, self.rest_norm(rest)), dim=-1)
        return self.norm(state) if self.kind in ("additive", "linear") else state


class ListModel(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10 + len(NAMES) + 1, DIM)  # digits, operators, "]"
        self.leaf = nn.Sequential(nn.Linear(DIM, DIM), nn.LayerNorm(DIM))
        self.cell = ProbedCell(kind)
        self.classifier = nn.Sequential(nn.Linear(DIM, DIM), nn.GELU(), nn.Linear(DIM, 10))

    def forward(self, lists: Lists) -> Tensor:
        leaves = self.leaf(self.embedding.weight)
        state = leaves[10 + lists.operator]
        for index in range(lists.digits.shape[1]):
            parent = self.cell(state, leaves[lists.digits[:, index]])
            state = torch.where((index < lists.arguments).unsqueeze(1), parent, state)
        root = self.cell(state, leaves[-1].expand_as(state))
        logits: Tensor = self.classifier(self.cell.read(root))
        return logits


CELLS = ("grc", "rms", "counter", "additive", "linear", "mixed")


def run(kind: str, seed: int, steps: int = STEPS, tested: int = TESTED) -> dict[str, object]:
    """Train a model and measure its accuracy, in per cent, by operator and number of arguments."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model, began = ListModel(kind), time.monotonic()
    optimizer = torch.optim.RAdam(model.parameters(), 1e-3, weight_decay=1e-2, decoupled_weight_decay=True)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [steps * 6 // 10, steps * 8 // 10], gamma=0.5)
    for _ in range(steps):
        lists = random_lists(BATCH, 1, MOST_IN_TRAINING, generator)
        loss = F.cross_entropy(model(lists), lists.value)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    seconds = round(time.monotonic() - began)
    return {"cell": kind, "seed": seed, "steps": steps, "seconds": seconds, **accuracies(model, tested)}


@torch.no_grad()
def accuracies(model: nn.Module, tested: int) -> dict[str, dict[str, float]]:
    model.eval()
    found: dict[str, dict[str, float]] = {name: {} for name in NAMES}
    for count in ARGUMENTS:
        lists = random_lists(tested, count, count, torch.Generator().manual_seed(1000 + count))
        correct = model(lists).argmax(-1) == lists.value
        for index, name in enumerate(NAMES):
            found[name][str(count)] = round(100 * float(correct[lists.operator == index].float().mean()), 2)
    return found


def table() -> str:
    """Medians over the seeds, a row for each cell and operator."""
    runs = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]
    lines = [f"| cell | seeds | operator | {' | '.join(map(str, ARGUMENTS))} |"]
    lines.append("|---" * 3 + "|---:" * len(ARGUMENTS) + "|")
    for kind in CELLS:
        own = [run for run in runs if run["cell"] == kind]
        for name in NAMES if own else ():
            medians = [statistics.median(run[name][str(count)] for run in own) for count in ARGUMENTS]
            lines.append(f"| {kind} | {len(own)} | {name} | {' | '.join(f'{value:.1f}' for value in medians)} |")
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
        for kind in arguments.cells:
            path = RESULTS / f"{kind}-seed{seed}.json"
            if not path.exists():
                path.write_text(json.dumps(run(kind, seed)) + "\n")
                print(path.name, flush=True)
    print(table())


if __name__ == "__main__":
    main()
