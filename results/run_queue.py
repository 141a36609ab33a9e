"""Train the runs behind `docs/results.md`, several at a time, within a time limit.

    python results/run_queue.py --slots 6 --deadline 560 --out runs
    python results/run_queue.py --slots 2 --recipe listops-tiny    # a trial on a CPU

Runs start in the order of `RUNS`, or of the patterns of `--only`; those of the slowest encoders, `HEAVY`, start after
all others have ended, and a run along the trees of another one when that is finished. Each is a separate process,
`beamtree train`, with the folder OUT/RECIPE/NAME and a log beside it. At the deadline, runs in progress receive SIGINT,
write a checkpoint and exit. Rerun the command to continue: finished runs are skipped, stopped runs resume from their
last checkpoint.

`--collect results` copies the small files of finished runs (settings, environment, metrics, results) to
results/RECIPE/NAME, and skips runs that are there already. `--pack FOLDER` writes what is needed to resume the runs, or
to evaluate them, to the parts of a tar archive; `cat runs.tar.* | tar x` in OUT unpacks it. On an NVIDIA GPU, start MPS
first (`nvidia-cuda-mps-control -d`) so that runs share the GPU instead of taking turns.
"""

import argparse
import fnmatch
import itertools
import json
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

POLL = 0.5  # seconds
GRACE = 25.0  # seconds to write a checkpoint before a process is killed
PART = 15 * 2**20  # bytes of a part of the archive
RECORD = 20 * 2**10  # bytes of an archive besides its files' contents: the header of a file, and the end
HEAVY = ("ordered-memory", "crvnn", "bt-grc-onesoft", "bt-grc-soft", "cyk-grc", "ndr")  # the slowest
SMALL_FILES = ("config.yaml", "environment.json", "metrics.jsonl", "results.json")
# The splits of the recipe, and one to choose between variants.
MEASURED = {"listops": ("data.tests=[near-iid, 200-300, 500-600, 900-1000, args-10, args-15, lra, args-dev]",)}


@dataclass(frozen=True)
class Run:
    recipe: str
    encoder: str
    seed: int
    changes: tuple[str, ...] = ()  # to the recipe, as for `beamtree train --set`
    variant: str = ""  # name of the changes, part of the name of the folder
    parser: "Run | None" = None  # the run whose trees it is trained along

    def folder(self, out: Path) -> Path:
        return out / self.recipe / "-".join(filter(None, (self.encoder, self.variant, f"seed{self.seed}")))

    def with_recipe(self, recipe: str) -> "Run":
        """The same run with another recipe, and its parser too."""
        return replace(self, recipe=recipe, parser=self.parser and self.parser.with_recipe(recipe))

    @property
    def all_changes(self) -> tuple[str, ...]:
        return *self.changes, *MEASURED.get(self.recipe, ())

    @property
    def is_heavy(self) -> bool:
        return self.encoder in HEAVY

    def is_ready(self, out: Path) -> bool:
        return self.parser is None or self.parser.is_finished(out)

    def matches(self, pattern: str) -> bool:
        return fnmatch.fnmatch(str(self.folder(Path())), pattern)

    def log(self, out: Path) -> Path:
        return self.folder(out).with_suffix(".log")

    def is_finished(self, out: Path) -> bool:
        return (self.folder(out) / "results.json").exists()  # written last

    def start(self, out: Path) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "beamtree", "train", self.recipe, f"--encoder={self.encoder}"]
        command += [f"--seed={self.seed}", f"--out={self.folder(out)}"]
        command += [f"--set={change}" for change in self.all_changes]
        if self.parser is not None:
            command += [f"--set=data.parser={self.parser.folder(out)}"]
        self.log(out).parent.mkdir(parents=True, exist_ok=True)
        with open(self.log(out), "ab") as log:
            # In a new session, so Ctrl-C reaches the process only through `stop`, and not from the terminal too.
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)


# Noise on states: its standard deviation in per cent of that of a state's elements; constant, or rising from 0.
NOISES, RISING, NOISE_EPOCHS = (25, 50, 100), (50, 100), 15
NOISY = ("gold-tree-grc", "ebt-grc", "bsrp-grc", "bt-grc")
SLICES = (16, 32, 64)  # of a parent's 128 elements, for the scorer
BEAM_2 = ("encoder.options.beam_size=2",)
GLOVE_6B = ("data.vectors=glove-6b", "model.dim=100")  # the paper uses GloVe 840B with 300 dimensions
SEEDS = range(3)
RUNS = [
    *(Run("listops", "recurrent-grc", seed) for seed in SEEDS),
    *(Run("listops", "bt-lstm", seed) for seed in SEEDS),
    *(Run("listops", "gumbel-tree-grc", seed) for seed in SEEDS),
    *(Run("listops", "bt-grc", seed, BEAM_2, "beam2") for seed in SEEDS),
    *(Run("listops", "gold-tree-grc", seed) for seed in SEEDS),
    *(Run("listops", "ebt-grc", seed) for seed in SEEDS),
    *(Run("listops", "balanced-tree-grc", seed) for seed in SEEDS),
    *(Run("listops", "random-tree-grc", seed) for seed in SEEDS),
    *(Run("listops", "bsrp-grc", seed) for seed in SEEDS),
    *(Run("listops", "ordered-memory", seed) for seed in SEEDS),
    *(Run("listops", "crvnn", seed) for seed in SEEDS),
    *(Run("listops", "bt-grc-onesoft", seed, BEAM_2, "beam2") for seed in SEEDS),
    *(Run("listops", "mc-gumbel-tree-grc", seed) for seed in SEEDS),
    *(Run("listops", "bt-grc", seed) for seed in range(5)),
    *(Run("listops", "bt-grc-onesoft", seed) for seed in range(6)),
    *(
        Run("listops", "bt-grc", seed, (f"encoder.options.slice={width}",), f"slice{width}")
        for width in SLICES
        for seed in range(5)
    ),
    *(Run("listops", encoder, seed) for encoder in ("ebt-grc", "bsrp-grc", "gold-tree-grc") for seed in range(3, 5)),
    *(Run("listops", "ebt-grc", seed, ("encoder.options.slice=null",), "all") for seed in range(5)),
    *(
        Run("listops", encoder, seed, (f"encoder.options.state_noise={percent / 100}",), f"noise{percent}")
        for encoder in NOISY
        for percent in NOISES
        for seed in range(5)
    ),
    *(
        Run(
            "listops",
            encoder,
            seed,
            (f"encoder.options.state_noise={percent / 100}", f"training.noise_epochs={NOISE_EPOCHS}"),
            f"rise{percent}",
        )
        for encoder in NOISY
        for percent in RISING
        for seed in range(5)
    ),
]
# Noise along the trees of a model that was trained without it: of the shipped BT-GRC and EBT-GRC, …
NOISE_50 = ("encoder.options.state_noise=0.5",)
for noise, name in ((NOISE_50, "-noise50"), ((), "")):
    for parser, kind in (("listops-bt-grc", "parsed"), ("listops-ebt-grc", "parsed-shipped-ebt-grc")):
        along = (f"data.parser={parser}", *noise)
        RUNS += [Run("listops", "gold-tree-grc", seed, along, f"{kind}{name}") for seed in range(5)]
# … and of parsers with the same seed.
for seed in range(5):
    for parser in ("ebt-grc", "bsrp-grc"):
        variant = f"parsed-{parser}-noise50"
        RUNS.append(Run("listops", "gold-tree-grc", seed, NOISE_50, variant, Run("listops", parser, seed)))
FAST = ("bt-grc", "gold-tree-grc", "ebt-grc", "recurrent-grc", "gumbel-tree-grc", "bt-grc-onesoft")
DENSE = ("ordered-memory", "crvnn")
REVIEW_ENCODERS = ("bt-grc", "balanced-tree-grc", "recurrent-grc", "gumbel-tree-grc", "random-tree-grc")
REVIEW_ENCODERS += ("bt-grc-onesoft", *DENSE)
for encoder in (*FAST, *DENSE):
    RUNS += [Run("logic-c", encoder, seed) for seed in SEEDS]
for encoder in ("bt-grc", "gold-tree-grc", "ebt-grc", "bt-grc-onesoft", *DENSE):
    RUNS += [Run("listops-dg", encoder, seed) for seed in SEEDS]
for encoder in (*REVIEW_ENCODERS, "lstm"):  # an LSTM to compare with: it is not in the paper
    RUNS += [Run("sst5", encoder, seed, GLOVE_6B, "glove-6b") for seed in SEEDS]
for encoder in ("bt-grc", "bt-grc-onesoft"):
    RUNS += [Run("sst5", encoder, seed, GLOVE_6B + BEAM_2, "glove-6b-beam2") for seed in SEEDS]
for encoder in REVIEW_ENCODERS:
    RUNS += [Run("imdb", encoder, seed, GLOVE_6B, "glove-6b") for seed in SEEDS]
for encoder, micro_batch in (("bt-grc", 32), ("bt-grc-onesoft", 16)):
    changes = (*GLOVE_6B, *BEAM_2, f"training.micro_batch={micro_batch}")
    RUNS += [Run("imdb", encoder, seed, changes, "glove-6b-beam2") for seed in SEEDS]
for encoder in (*FAST, *DENSE):
    RUNS += [Run("logic", encoder, seed) for seed in SEEDS]
RUNS += [Run("listops-dg", "bt-grc", seed) for seed in range(3, 10)]
RUNS += [Run("listops", encoder, 0) for encoder in ("bt-grc-soft", "cyk-grc")]
RUNS += [Run("logic-c", "cyk-grc", seed) for seed in SEEDS]
RUNS += [Run("listops-dg1", "ndr", 0)]


def in_order(runs: Collection[Run]) -> list[Run]:
    """The runs, heavy ones last, and the parser of a run before it."""
    needed = dict.fromkeys(each for run in runs for each in (run.parser, run) if each is not None)
    return sorted(needed, key=lambda run: run.is_heavy)


def may_start(run: Run, running: Collection[Run], slots: int, heavy_slots: int) -> bool:
    """Whether a run may start beside these. Heavy runs and others are never mixed."""
    limit = heavy_slots if run.is_heavy else slots
    return len(running) < limit and all(other.is_heavy == run.is_heavy for other in running)


def train(
    runs: list[Run], out: Path, slots: int, heavy_slots: int, deadline: float, reserve: float, commit: str
) -> bool:
    """Train the runs that are not finished, several at a time. Returns whether none of them failed."""
    began = time.monotonic()
    waiting = [run for run in in_order(runs) if not run.is_finished(out)]
    running: dict[Run, subprocess.Popen[bytes]] = {}
    failed = 0

    def report(run: Run, event: str) -> None:
        metrics = run.folder(out) / "metrics.jsonl"
        epochs = metrics.read_bytes().count(b"\n") if metrics.exists() else 0
        seconds = time.monotonic() - began
        print(f"{seconds:6.1f} s  {run.folder(out)} {event}, {epochs} epochs; {len(running)} running", flush=True)

    try:
        while (left := began + deadline - time.monotonic()) > 0:
            while left > reserve and (ready := [run for run in waiting if run.is_ready(out)]):
                run = ready[0]
                if not may_start(run, running, slots, heavy_slots):
                    break
                waiting.remove(run)
                running[run] = run.start(out)
                report(run, "started")
            if not running:
                break
            for run, process in list(running.items()):
                if process.poll() is not None:
                    del running[run]
                    failed += not run.is_finished(out)
                    add_commit(run.folder(out), commit)
                    report(run, "finished" if run.is_finished(out) else f"failed (see {run.log(out)})")
            time.sleep(POLL)
    finally:
        stop(running.values())
        for run in running:
            add_commit(run.folder(out), commit)
            report(run, "stopped")
    return not failed and all(run.is_ready(out) for run in waiting)


def stop(processes: Collection["subprocess.Popen[bytes]"]) -> None:
    for process in processes:
        process.send_signal(signal.SIGINT)
    end = time.monotonic() + GRACE
    for process in processes:
        try:
            process.wait(max(end - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            process.kill()


def add_commit(folder: Path, commit: str) -> None:
    """Add the commit of the code to the environment; a run that was resumed with other code has several."""
    path = folder / "environment.json"
    if commit and path.exists():
        environment = json.loads(path.read_text())
        commits = dict.fromkeys([*environment.get("commit", "").split(), commit])
        path.write_text(json.dumps({**environment, "commit": " ".join(commits)}, indent=2, ensure_ascii=False) + "\n")


def collect(runs: list[Run], out: Path, target: Path) -> None:
    for run in runs:
        if run.is_finished(out):
            run.folder(target).mkdir(parents=True, exist_ok=True)
            for name in SMALL_FILES:
                shutil.copy(run.folder(out) / name, run.folder(target))
            if run.parser is not None:  # the path has no meaning elsewhere
                config, parser = run.folder(target) / "config.yaml", run.parser.folder(Path())
                text = config.read_text()
                for place in (out.absolute(), out.resolve()):
                    text = text.replace(str(run.parser.folder(place)), str(parser))
                config.write_text(text)


def pack(runs: list[Run], out: Path, target: Path, limit: float) -> None:
    """Write the runs to a tar archive in parts of limited size, the most important files first.

    These are the small files of all runs, then the weights of finished runs, then the last checkpoints of unfinished
    runs, which are several times larger. Files that do not fit into `limit` bytes are left out, and named.
    """
    folders = [run.folder(out) for run in runs]
    finished = [run.folder(out) for run in runs if run.is_finished(out)]
    paths = [folder / name for folder in folders for name in (*SMALL_FILES, "vocab.json")]
    paths += [path for folder in folders for path in sorted(folder.glob("parser/*"))]
    paths += [folder / "model.safetensors" for folder in finished]
    for folder in folders:
        if folder not in finished:
            paths += sorted(folder.glob("checkpoints/*.ckpt"))[-1:]
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile() as archive:
        with tarfile.open(fileobj=archive, mode="w") as tar:
            for path in filter(Path.exists, paths):
                if archive.tell() + path.stat().st_size + RECORD > limit:
                    print(f"left out: {path}")
                else:
                    tar.add(path, path.relative_to(out))
        archive.seek(0)
        for index in itertools.count():
            part = archive.read(PART)
            if not part:
                break
            (target / f"runs.tar.{index:02}").write_bytes(part)


def chosen(patterns: list[str] | None, collected: Path | None) -> list[Run]:
    """The runs that match, in the order of the patterns, without those whose files are collected already."""
    matching = [run for pattern in patterns or ["*"] for run in RUNS if run.matches(pattern)]
    return [run for run in dict.fromkeys(matching) if collected is None or not run.is_finished(collected)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slots", type=int, default=3, help="runs at a time (default: %(default)s)")
    parser.add_argument("--heavy-slots", type=int, default=3, help="the same for heavy runs (default: %(default)s)")
    parser.add_argument("--deadline", type=float, default=float("inf"), help="seconds until all runs are stopped")
    parser.add_argument(
        "--reserve",
        type=float,
        default=60.0,  # less would be spent on loading and compiling
        help="start no run with fewer seconds left until the deadline (default: %(default)s)",
    )
    parser.add_argument("--out", type=Path, default=Path("runs"), help="folder of the runs (default: %(default)s)")
    parser.add_argument("--recipe", help="use this recipe for all runs")
    parser.add_argument("--only", nargs="+", metavar="PATTERN", help="only runs such as 'listops/bt-*' or 'sst5/*'")
    parser.add_argument("--commit", default="", help="commit of the code, recorded in environment.json")
    parser.add_argument("--collect", type=Path, help="copy the small files of finished runs to this folder")
    parser.add_argument("--pack", type=Path, help="write the runs to the parts of a tar archive in this folder")
    parser.add_argument("--pack-limit", type=float, default=float("inf"), help="MiB of the archive (default: no limit)")
    options = parser.parse_args()
    for pattern in options.only or ():
        if not any(run.matches(pattern) for run in RUNS):
            parser.error(f"--only: no run matches {pattern!r}; a run is named as {str(RUNS[0].folder(Path()))!r}")
    runs = chosen(options.only, options.collect)
    if options.recipe is not None:
        runs = [run.with_recipe(options.recipe) for run in runs]
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        limits = options.slots, options.heavy_slots, options.deadline, options.reserve
        return 0 if train(runs, options.out, *limits, options.commit) else 1
    finally:
        if options.collect:
            collect(runs, options.out, options.collect)
        if options.pack:
            pack(runs, options.out, options.pack, options.pack_limit * 2**20)


if __name__ == "__main__":
    sys.exit(main())
