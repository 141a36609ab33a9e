"""Models that are trained: weights, settings and vocabulary together.

    model = load("listops-bt-grc")                  # a shipped model, a run's folder, or a hub id "owner/name"
    model.predict(["[MAX 2 9 [MIN 4 7 ] 0 ]"])      # label and probabilities of each text
    model.parse("[MAX 2 9 [MIN 4 7 ] 0 ]")          # its trees, best first
    model.push_to_hub("owner/name")

On disk a model is a run's folder (see `beamtree.runs`), on the hub the same files and a card. Loading one reads YAML,
JSON and safetensors: nothing in them is executed.
"""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import torch
import yaml
from huggingface_hub import ModelCard, ModelHubMixin, snapshot_download
from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError
from jaxtyping import Float, Int
from torch import Tensor, nn

from beamtree import runs
from beamtree.data import imdb
from beamtree.data.batching import Batch, Batches, Buckets, Ragged
from beamtree.data.loading import TASKS
from beamtree.data.vocabulary import Vocabulary
from beamtree.data.words import tokenize
from beamtree.nn.beams import Parse, Parses
from beamtree.nn.encoders import encoder
from beamtree.runs import Config
from beamtree.tasks import Model, Output, PairClassifier, TextClassifier
from beamtree.trees import Tree
from beamtree.utils.checks import unknown

__all__ = ["Parse", "Parses", "Prediction", "Pretrained", "Reading", "build", "load", "shipped", "tokens_of"]

S = TypeVar("S")
T = TypeVar("T")

_SHIPPED = Path(__file__).parent / "models"
MAX_SAMPLES = 128  # of a batch; and of batch size × longest², so that four texts of 1000 tokens are one
_MAX_TOKENS_SQUARED = 4_000_000
_SHOWN = 60  # characters of a text in a message
# Of formal languages: an operator with its bracket, a bracket alone, or what stands between them and spaces.
_FORMAL_TOKEN = re.compile(r"\[[^\s\[\]()]*|[\]()]|[^\s\[\]()]+")


def build(config: Config, vocabulary_size: int, pretrained: Float[Tensor, "V D"] | None = None) -> Model:
    """A new model of these settings; `pretrained` are the vectors of the words, where the settings name some."""
    settings = config.settings
    if (settings.data.vectors is None) != (pretrained is None):
        given = "no vectors are given" if pretrained is None else "vectors are given"
        raise ValueError(f"data.vectors is {settings.data.vectors!r} and {given}: they must go together")
    if "dim" in settings.encoder.options:
        raise ValueError("encoder.options.dim is not a setting: the width of the encoder is model.dim")
    return (PairClassifier if config.pair else TextClassifier)(
        encoder(settings.encoder.name, dim=settings.model.dim, **settings.encoder.options),
        vocabulary_size,
        classes=len(config.labels),
        dropout=settings.model.dropout,
        dropout_in=settings.model.dropout_in,
        hidden=settings.model.hidden,
        pretrained=pretrained,
    )


def _build_empty(config: Config, vocabulary: Vocabulary, folder: Path) -> Model:
    """A model whose weights are to be loaded."""
    settings = config.settings
    frozen = None if settings.data.vectors is None else torch.zeros(len(vocabulary), settings.model.dim)
    try:
        return build(config, len(vocabulary), frozen)
    except ValueError as error:
        raise ValueError(f"{folder / runs.CONFIG}: {error}") from None


class Prediction(NamedTuple):
    """What a model says of a text, or of a pair of them."""

    label: str
    probabilities: dict[str, float]  # of all labels
    unknown: tuple[str, ...] = ()  # words that the model does not know: it reads them all as one


class Reading(NamedTuple):
    """All that a model says of a text, or of a pair of them."""

    prediction: Prediction
    parses: tuple[Parses, ...]  # of the text, or of both sides; none if the encoder builds no trees


class Pretrained(nn.Module, ModelHubMixin):
    """A model with its settings and its vocabulary; `results` are those of its training, where they are known."""

    def __init__(
        self, config: Config, vocabulary: Vocabulary, model: Model, results: dict[str, Any] | None = None
    ) -> None:
        super().__init__()
        self.config, self.vocabulary, self.model, self.results = config, vocabulary, model, results
        self._hub_mixin_config = None  # or the mixin would write the settings once more, as JSON

    @property
    def labels(self) -> tuple[str, ...]:
        return self.config.labels

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def forward(self, *batch: Int[Tensor, "..."]) -> Output:
        return self.model(*batch)

    def predict(self, texts: Sequence[str | tuple[str, str]]) -> list[Prediction]:
        """The label of each text; of each pair (text, text), if it is a model of pairs."""
        sides = [self._sides(text) for text in _listed(texts)]

        def predictions(indices: list[int], batch: Batch) -> list[Prediction]:
            return self._predictions([sides[index] for index in indices], self.model.read(batch).logits)

        return self._in_batches(sides, predictions, self._gold_trees(sides))

    def read(self, texts: Sequence[str | tuple[str, str]]) -> list[Reading]:
        """The label and the trees of each text, or of each pair, from one pass of the encoder."""
        sides = [self._sides(text) for text in _listed(texts)]

        def readings(indices: list[int], batch: Batch) -> list[Reading]:
            chosen, output = [sides[index] for index in indices], self.model.read(batch)
            predictions, beams = self._predictions(chosen, output.logits), output.encoding.beams
            if beams is None:
                return [Reading(prediction, ()) for prediction in predictions]
            each = beams.parses([tokens for side in zip(*chosen, strict=True) for tokens in side])
            parses = zip(
                *(each[first : first + len(chosen)] for first in range(0, len(each), len(chosen))), strict=True
            )
            return [Reading(*both) for both in zip(predictions, parses, strict=True)]

        return self._in_batches(sides, readings, self._gold_trees(sides))

    def no_trees(self) -> ValueError:
        """The error for a request for trees from an encoder that builds none."""
        return ValueError(f"{self.config.settings.encoder.name} builds no trees: it can predict, not parse")

    def _predictions(self, sides: Sequence[tuple[list[str], ...]], logits: Float[Tensor, "B L"]) -> list[Prediction]:
        predictions = []
        for tokens, row in zip(sides, self.model.probabilities(logits).tolist(), strict=True):
            probabilities = dict(zip(self.labels, row, strict=True))
            strange = dict.fromkeys(word for side in tokens for word in side if word not in self.vocabulary)
            predictions.append(Prediction(max(self.labels, key=probabilities.__getitem__), probabilities, (*strange,)))
        return predictions

    def parse(self, text: str) -> Parses:
        """The different trees of a text, the most probable first; a model of pairs parses each side by itself."""
        return self.parse_all([text])[0]

    def parse_all(self, texts: Sequence[str]) -> list[Parses]:
        """The trees of many texts, as `parse` gives those of one."""
        return self.parse_tokens([self._tokens(text) for text in _listed(texts)])

    def parse_tokens(
        self, sentences: Sequence[Sequence[str]], gold: Sequence[Tree] | None = None, max_samples: int = MAX_SAMPLES
    ) -> list[Parses]:
        """The trees of texts that are cut into tokens, as those of data are.

        gold: the tree of each, for an encoder that composes by them; None: what the model's task makes of the tokens.
        max_samples: the most of them in a batch.
        """
        sides = [(list(tokens),) for tokens in sentences]

        def parses(indices: list[int], batch: Batch) -> list[Parses]:
            beams = self.model.encode(batch.tokens, batch.lengths, batch.trees).beams
            if beams is None:
                raise self.no_trees()
            return beams.parses([sides[index][0] for index in indices])

        trees = self._gold_trees(sides) if gold is None else (lambda index: (gold[index],))
        return self._in_batches(sides, parses, trees, max_samples)

    @classmethod
    def from_pretrained(  # type: ignore[override]  # the mixin's own would look for its config.json first
        cls, name: str | os.PathLike[str], *, device: str | torch.device | None = None, **download: Any
    ) -> "Pretrained":
        """A run's folder, or a model on the hub, in eval mode.

        device: the CPU by default. `download` is for the hub: revision, token, cache_dir, force_download and
        local_files_only, as `huggingface_hub.snapshot_download` has them.
        """
        place = _checked_device(device)
        folder = Path(name) if os.path.exists(name) else _download(name, **download)
        config = runs.read_config(folder)
        vocabulary = Vocabulary.load(runs.file_of(folder, runs.VOCABULARY), config.closed_vocabulary)
        weights = runs.read_weights(folder)
        words = weights.get("embedding.words.weight")
        if words is not None and words.dim() == 2 and len(words) != len(vocabulary):
            raise ValueError(
                f"{folder}: {runs.VOCABULARY} has {len(vocabulary)} words and {runs.WEIGHTS} vectors for "
                f"{len(words)}: they are not of one model"
            )
        # Without memory first: a config may ask for any width.
        with torch.device("meta"):
            runs.check_weights(_build_empty(config, vocabulary, folder), weights, folder / runs.WEIGHTS)
        with torch.random.fork_rng(devices=[]):  # what is drawn here is overwritten: the user's draws stay the same
            model = _build_empty(config, vocabulary, folder)
        runs.fill(model, weights, folder / runs.WEIGHTS)
        results = runs.read_results(folder) if runs.is_finished(folder) else None
        return cls(config, vocabulary, model, results).to(place).eval()

    def push_to_hub(self, repo_id: str, **settings: Any) -> str:
        """Upload the folder and a card; `settings` are the mixin's, as private and commit_message."""
        card = {"name": repo_id, **(settings.pop("model_card_kwargs", None) or {})}
        with _hub(f"{repo_id}:"):
            return super().push_to_hub(repo_id, model_card_kwargs=card, **settings)

    def _save_pretrained(self, save_directory: Path) -> None:
        runs.write_weights(save_directory, self.model)
        with runs.writing(save_directory / runs.VOCABULARY):
            self.vocabulary.save(save_directory / runs.VOCABULARY)
        if self.results is not None:
            runs.write_json(save_directory / runs.RESULTS, self.results)
        runs.write_config(save_directory, self.config)  # last: with it the folder is a run

    def generate_model_card(self, *args: Any, name: str = "the path of this folder", **kwargs: Any) -> ModelCard:
        return ModelCard(_card(self.config, self.results, name))

    def _sides(self, text: str | tuple[str, str]) -> tuple[list[str], ...]:
        """The tokens of a text, or of both of a pair."""
        texts = text if isinstance(text, tuple | list) else (text,)
        if len(texts) != (2 if self.config.pair else 1) or not all(isinstance(side, str) for side in texts):
            wanted = "pairs of texts: give tuples (text, text)" if self.config.pair else "single texts: give strings"
            raise ValueError(f"{_shortened(text)} does not fit: the model takes {wanted}")
        return tuple(self._tokens(side) for side in texts)

    def _gold_trees(self, sides: Sequence[tuple[list[str], ...]]) -> Callable[[int], tuple[Tree, ...]] | None:
        """Those of each sample, made as the task's are; None unless the encoder composes by them."""
        if not self.model.needs_trees:
            return None
        task = TASKS.get(self.config.settings.data.task)
        if task is None or task.gold is None:
            name = self.config.settings.encoder.name
            raise ValueError(f"{name} composes by gold trees, and there is no rule that gives those of new texts")
        gold = task.gold
        return lambda index: tuple(map(gold, sides[index]))

    def _tokens(self, text: str) -> list[str]:
        if not isinstance(text, str):
            raise ValueError(f"{_shortened(text)} is of type {type(text).__name__}: a text must be a string")
        found = tokens_of(text, self.config, self.vocabulary)
        if not found:
            raise ValueError(f"the text {_shortened(text)} is empty: it has nothing to encode")
        if self.vocabulary.closed:
            strange = list(dict.fromkeys(token for token in found if token not in self.vocabulary))
            if strange:
                known = self.vocabulary.words()[Vocabulary.SEP + 1 :]
                others = f"; also unknown: {', '.join(map(repr, strange[1:6]))}" if strange[1:] else ""
                raise ValueError(f"{_shortened(text)}: {unknown('token', strange[0], known)}{others}")
        return found

    def _in_batches(
        self,
        sides: Sequence[tuple[list[str], ...]],
        compute: Callable[[list[int], Batch], list[T]],
        trees: Callable[[int], tuple[Tree, ...]] | None,
        max_samples: int = MAX_SAMPLES,
    ) -> list[T]:
        """What `compute` gives for the samples of each batch, in the order of the samples."""
        if not sides:
            return []
        first, *second = (Ragged.from_sequences(map(self.vocabulary.ids, side)) for side in zip(*sides, strict=True))
        batches = Batches(first, second=second[0] if second else None, trees=trees)
        buckets = Buckets(batches.lengths, max_samples, _MAX_TOKENS_SQUARED, bucket_factor=len(sides), shuffle=False)
        found: dict[int, T] = {}
        training = self.model.training
        self.model.eval()
        try:
            with torch.inference_mode():
                for chosen in buckets:
                    results = compute(chosen.tolist(), batches[chosen].to(self.device))
                    found.update(zip(chosen.tolist(), results, strict=True))
        finally:
            self.model.train(training)
        return [found[index] for index in range(len(sides))]


def load(name: str | os.PathLike[str], device: str | torch.device | None = None) -> Pretrained:
    """A run's folder, a shipped model (see `shipped`), or a model on the hub, "owner/name"; on the CPU by default."""
    if not runs.is_run(name) and str(name) in shipped():
        name = shipped_folder(str(name))
    return Pretrained.from_pretrained(name, device=device)


def shipped() -> list[str]:
    """Names of the models that come with the package."""
    return sorted(folder.name for folder in _SHIPPED.glob("*/") if runs.is_run(folder))


def shipped_folder(name: str) -> Path:
    return _SHIPPED / name


def tokens_of(text: str, config: Config, vocabulary: Vocabulary) -> list[str]:
    """The tokens of a text, cut as those were that the model was trained on."""
    data = config.settings.data
    if config.closed_vocabulary:
        tokens = _FORMAL_TOKEN.findall(text)
        # The files of ListOps have the brackets of the gold tree too, which are no tokens.
        return tokens if "(" in vocabulary else [token for token in tokens if token not in ("(", ")")]
    if data.options.get("tokenizer") == "spaces":
        return text.split()
    return tokenize(imdb.clean(text) if data.task == "imdb" else text)


def _listed(texts: Sequence[S]) -> list[S]:
    if isinstance(texts, str):
        raise ValueError(f"texts is the string {_shortened(texts)}: it must be a list of texts, as [text]")
    return list(texts)


def _shortened(text: object) -> str:
    shown = repr(text)
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"


def _checked_device(device: str | torch.device | None) -> torch.device:
    try:
        found = torch.device(device or "cpu")
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"device is {str(device)!r}, which there is not here ({reason}): choose 'cpu'") from None
    return found


def _download(name: str | os.PathLike[str], **settings: Any) -> Path:
    """The folder of a model on the hub, in the hub's own cache."""
    if not isinstance(name, str) or os.path.isabs(name) or name.startswith((".", "~")) or name.count("/") > 1:
        raise ValueError(f"{name}: there is no such folder")
    if "/" not in name:
        known = unknown("model", name, shipped() or ["none"])
        raise ValueError(f"{known}; else give the folder of a run that exists, or a hub id such as owner/name")
    with _hub(f"{name}: there is no such folder, and"):
        files = [runs.CONFIG, runs.WEIGHTS, runs.VOCABULARY, runs.RESULTS]
        folder = Path(snapshot_download(name, allow_patterns=files, **settings))
    if not runs.is_run(folder):
        raise ValueError(f"{name} is no model of beamtree: on the hub it has no {runs.CONFIG}")
    return folder


@contextmanager
def _hub(beginning: str) -> Iterator[None]:
    """Within it, what goes wrong with the hub is an error in one line."""
    # What hub errors are made of: OSError, and the error of the HTTP library, which differs between hub versions.
    kinds = cast(tuple[type[Exception], ...], HfHubHTTPError.__bases__)
    try:
        yield
    except RepositoryNotFoundError:
        raise ValueError(f"{beginning} the hub has no such model, or none that you may use") from None
    except kinds as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise ValueError(f"{beginning} the hub cannot be used ({reason})") from None


def _card(config: Config, results: dict[str, Any] | None, name: str) -> str:
    """The page of a model on the hub."""
    settings = config.settings
    header = {
        "library_name": "beamtree",
        "pipeline_tag": "text-classification",
        "tags": ["latent-trees", "recursive-neural-networks", settings.data.task],
    }
    made_of = ", ".join(
        f"{key} {value}" for key, value in {"dim": settings.model.dim, **settings.encoder.options}.items()
    )
    example = '("…", "…")' if config.pair else '"…"'
    lines = [
        f"---\n{yaml.safe_dump(header, sort_keys=False)}---\n",
        f"# {settings.encoder.name} on {settings.data.task}\n",
        f"A model of beamtree: the encoder `{settings.encoder.name}` ({made_of}),",
        f"trained by the recipe `{settings.recipe}` with seed {settings.seed} on `{settings.data.task}`.",
        f"It gives {'pairs of texts' if config.pair else 'texts'} one of these labels: {', '.join(config.labels)}.\n",
    ]
    if results is not None:
        lines += ["| split | accuracy, % | samples |", "|---|---|---|"]
        for split, score in results["splits"].items():
            lines.append(f"| {split} | {100 * score['accuracy']:.2f} | {score['count']:,} |")
        lines.append("")
    lines.append(f'```python\nimport beamtree\n\nmodel = beamtree.load("{name}")\nmodel.predict([{example}])\n```\n')
    return "\n".join(lines)
