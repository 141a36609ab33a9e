"""Trained models: weights, settings, vocabulary and tokenizer together.

    model = load("listops-bt-grc")                  # a shipped model, a run's folder, or a hub id "owner/name"
    model.predict(["[MAX 2 9 [MIN 4 7 ] 0 ]"])      # label and probabilities of each text
    model.parse("[MAX 2 9 [MIN 4 7 ] 0 ]")          # its trees, most probable first
    model.parse("[MAX 2 9 ]", labels=True)          # with a label for every constituent
    model.encode(["[MAX 2 9 ]"])                    # a vector for each text
    model(["[MAX 2 9 ]"])                           # all of this from one pass
    model.push_to_hub("owner/name")

On disk a model is the folder of a run (see `storage`), on the hub the same files and a model card. Loading reads YAML,
JSON and safetensors; nothing in them is executed.
"""

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from huggingface_hub import ModelCard, ModelHubMixin
from jaxtyping import Float
from torch import Tensor, nn

from beamtree.data.batching import Batch
from beamtree.data.loading import TASKS
from beamtree.data.tokenizers import Tokenizer
from beamtree.data.vocabulary import Vocabulary
from beamtree.models import storage
from beamtree.models.build import build_empty
from beamtree.models.card import make_card
from beamtree.models.config import Config
from beamtree.models.heads import Model
from beamtree.models.hub import download, hub_errors
from beamtree.models.inference import MAX_SAMPLES, map_batches
from beamtree.models.inputs import TextOrPair, TokenizedSides, TreesOf, as_list, given_trees, sides_of, tokenize
from beamtree.models.parser import load_parser
from beamtree.models.readings import (
    Constituent,
    LabelledTree,
    Prediction,
    Reading,
    Tokenized,
    label_best,
    label_nodes,
    make_constituents,
    make_parses,
)
from beamtree.models.tokens import tokenizer_of
from beamtree.nn.beams import Beams
from beamtree.trees import Tree
from beamtree.trees.parses import Node, Parse, Parses
from beamtree.utils import files

__all__ = ["Constituent", "Node", "Parse", "Parses", "Prediction", "Pretrained", "Reading", "load", "shipped"]

T = TypeVar("T")

_SHIPPED = Path(__file__).parent / "zoo"


class Pretrained(nn.Module, ModelHubMixin):
    """A model with its configuration, vocabulary and tokenizer; `beamtree.load` returns it.

    Args:
        config: everything in `config.yaml`.
        vocabulary: the words of the model.
        model: embeddings, encoder and classifier; `model.encoder` is the encoder.
        results: the results of its training, if known.
        tokenizer: the tokenizer; None for the one that the configuration names.
        parser: the model whose trees the encoder composes along; None: gold trees, or those that the encoder finds.

    Examples:
        >>> model = beamtree.load("listops-bt-grc")
        >>> model.labels[:3], model.config.encoder, model.results["splits"]["near-iid"]["accuracy"]
        (('0', '1', '2'), 'bt-grc', 0.9996)
    """

    def __init__(
        self,
        config: Config,
        vocabulary: Vocabulary,
        model: Model,
        results: dict[str, Any] | None = None,
        tokenizer: Tokenizer | None = None,
        parser: "Pretrained | None" = None,
    ) -> None:
        super().__init__()
        self.config, self.vocabulary, self.model, self.results = config, vocabulary, model, results
        self.tokenizer, self.parser = tokenizer, parser
        self._hub_mixin_config = None  # otherwise the mixin would also write the settings as JSON

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the labels."""
        return self.config.labels

    @property
    def classes_(self) -> np.ndarray:
        """The labels in the order of the columns of `predict_proba`, under scikit-learn's name."""
        return np.array(self.labels)

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return next(self.model.parameters()).device

    def forward(self, texts: Sequence[TextOrPair], labels: bool = False) -> list[Reading]:
        """Compute label, trees and vectors of each text from one pass of the encoder.

        Args:
            texts: strings, or pairs of strings for a model of pairs.
            labels: whether the parses have a label for every constituent, in `Parse.nodes`.

        Returns:
            One reading for each text.

        Raises:
            ValueError: if a text is empty, is not of the right kind, or has tokens that are not in a closed vocabulary.

        Examples:
            >>> reading = beamtree.load("listops-bt-grc")(["[MAX 2 9 ]"])[0]
            >>> reading.prediction.label, reading.parses[0][0].tree, reading.vectors.shape
            ('9', Tree.parse('((([MAX 2) 9) ])'), torch.Size([1, 128]))
        """
        samples = self._tokenized(texts)

        def readings(indices: list[int], batch: Batch) -> list[Reading]:
            chosen, output = [samples[index] for index in indices], self.model.read(batch)
            predictions = self._predictions(chosen, output.logits)
            sides = list(zip(*chosen, strict=True))  # all first sides, then all second ones, as in the encoding
            vectors = output.encoding.state.cpu().view(len(sides), len(chosen), -1).transpose(0, 1)  # (B, sides, D)
            parses: list[tuple[Parses, ...]] = [()] * len(chosen)
            if output.encoding.beams is not None:
                each = iter(self._parses(output.encoding.beams, [text for side in sides for text in side], labels))
                parses = list(zip(*([next(each) for _ in side] for side in sides), strict=True))
            return [Reading(*parts) for parts in zip(predictions, parses, vectors, strict=True)]

        return map_batches(self.model, self.vocabulary, samples, readings, self._trees(samples))

    def predict(self, texts: Sequence[TextOrPair]) -> list[Prediction]:
        """Predict the label of each text.

        Args:
            texts: strings, or pairs of strings for a model of pairs.

        Returns:
            One prediction for each text.

        Raises:
            ValueError: if a text is empty, is not of the right kind, or has tokens that are not in a closed vocabulary.

        Examples:
            >>> beamtree.load("listops-bt-grc").predict(["[MIN 4 7 ]"])[0].label
            '4'
        """
        samples = self._tokenized(texts)

        def predictions(indices: list[int], batch: Batch) -> list[Prediction]:
            return self._predictions([samples[index] for index in indices], self.model.read(batch).logits)

        return map_batches(self.model, self.vocabulary, samples, predictions, self._trees(samples))

    def predict_proba(self, texts: Sequence[TextOrPair]) -> Float[np.ndarray, "S C"]:
        """Predict the probabilities of the labels, under scikit-learn's name.

        Args:
            texts: strings, or pairs of strings for a model of pairs.

        Returns:
            An array (texts, labels), with the columns in the order of `classes_`.

        Examples:
            >>> beamtree.load("listops-bt-grc").predict_proba(["[MIN 4 7 ]", "5"]).shape
            (2, 10)
        """
        rows = [list(prediction.probabilities.values()) for prediction in self.predict(texts)]
        return np.array(rows).reshape(-1, len(self.labels))

    def encode(self, texts: Sequence[str], spans: bool = False) -> Any:
        """Encode texts as vectors.

        A model of pairs encodes single texts here, as it encodes each side of a pair.

        Args:
            texts: strings.
            spans: whether to return all constituents of each text instead.

        Returns:
            A tensor (texts, D) on the CPU. With `spans`, a list of `Constituent` for each text: the tokens first, then
            longer ones, each with its vector and its probability over the beams.

        Raises:
            ValueError: if a text is empty or has tokens that are not in a closed vocabulary, or with `spans`, if the
                encoder builds no trees.

        Examples:
            >>> model = beamtree.load("listops-bt-grc")
            >>> model.encode(["[MAX 2 9 ]", "5"]).shape
            torch.Size([2, 128])
            >>> [constituent.text for constituent in model.encode(["[MAX 2 9 ]"], spans=True)[0]][-1]
            '[MAX 2 9 ]'
        """
        samples = [(self._tokens(text),) for text in as_list(texts)]

        def vectors(indices: list[int], batch: Batch) -> list[Any]:
            encoding = self.model.encode(batch.tokens, batch.lengths, batch.trees)
            if not spans:
                return list(encoding.state.cpu())
            if encoding.beams is None:
                raise self.no_trees()
            return make_constituents(encoding.beams, [samples[index][0] for index in indices])

        found = map_batches(self.model, self.vocabulary, samples, vectors, self._trees(samples))
        if spans:
            return found
        return torch.stack(found) if found else torch.zeros(0, self.config.dim)

    def parse(self, text: str, labels: bool = False) -> Parses:
        """Parse a text. A model of pairs parses single texts.

        Args:
            text: the text.
            labels: whether each tree has its `nodes`: for every constituent the label and the probabilities that the
                classifier computes from its state, the score of its merge, and the label that the task assigns to it,
                if the task has a rule for it, such as the value of a list in ListOps. A classifier of pairs has no
                labels for single texts.

        Returns:
            The distinct trees, most probable first.

        Raises:
            ValueError: if the encoder builds no trees, or if the text is empty or has tokens that are not in a closed
                vocabulary.

        Examples:
            >>> beamtree.load("listops-bt-grc").parse("[MAX 2 9 ]")[0].tree
            Tree.parse('((([MAX 2) 9) ])')
        """
        return self.parse_all([text], labels)[0]

    def parse_all(self, texts: Sequence[str], labels: bool = False) -> list[Parses]:
        """Parse several texts, in batches.

        Args:
            texts: strings.
            labels: as for `parse`.

        Returns:
            The trees of each text, most probable first.
        """
        samples = [(self._tokens(text),) for text in as_list(texts)]
        return self._map_beams(samples, partial(self._parses, labels=labels))

    def parse_tokens(
        self,
        sentences: Sequence[Sequence[str]],
        gold: Sequence[Tree] | None = None,
        max_samples: int = MAX_SAMPLES,
        labels: bool = False,
    ) -> list[Parses]:
        """Parse texts that are already tokenised.

        Args:
            sentences: the tokens of each text.
            gold: trees for an encoder that needs them; None: trees that the task of the model derives from the tokens.
            max_samples: maximum batch size.
            labels: as for `parse`.

        Returns:
            The trees of each text, most probable first.
        """
        samples = [(Tokenized.from_words(words),) for words in sentences]
        return self._map_beams(samples, partial(self._parses, labels=labels), gold, max_samples)

    def best_trees(self, sentences: Sequence[Sequence[str]]) -> list[Tree]:
        """Parse texts that are already tokenised, and return only the most probable tree of each.

        This is much cheaper than `parse_tokens`, whose first tree it is.

        Args:
            sentences: the tokens of each text.

        Returns:
            The tree of each text.
        """

        def read(beams: Beams, texts: Sequence[Tokenized]) -> list[Tree]:
            return beams.best_trees([text.leaves for text in texts])

        return self._map_beams([(Tokenized.from_words(words),) for words in sentences], read)

    def label_tokens(
        self,
        sentences: Sequence[Sequence[str]],
        gold: Sequence[Tree] | None = None,
        max_samples: int = MAX_SAMPLES,
    ) -> list[LabelledTree]:
        """Parse texts as `parse_tokens` does, and label the constituents of the most probable tree only.

        This is much cheaper than labels for all nodes of all trees. A classifier of pairs has no such labels.

        Args:
            sentences: the tokens of each text.
            gold: as for `parse_tokens`.
            max_samples: maximum batch size.

        Returns:
            For each text its trees, and the label of each constituent of the most probable one.
        """

        def read(beams: Beams, texts: Sequence[Tokenized]) -> list[LabelledTree]:
            return label_best(make_parses(beams, texts), beams, self.model, self.labels)

        return self._map_beams([(Tokenized.from_words(words),) for words in sentences], read, gold, max_samples)

    def check(self, *sides: str) -> None:
        """Check that the model can encode a text, or the two texts of a pair.

        Args:
            *sides: the text, or both texts.

        Raises:
            ValueError: if it cannot.
        """
        samples = [tuple(self._tokens(side) for side in sides)]
        trees = self._trees(samples)
        if trees is not None:
            trees(0)

    def check_parsing(self) -> None:
        """Check that the model can parse new texts.

        Raises:
            ValueError: if its tokenizer is missing, if its encoder builds no trees, or if the encoder needs gold trees
                that cannot be derived from a text.
        """
        word = self.vocabulary.words()[-1] if self.vocabulary.closed else "a"
        tokenizer_of(self.config, self.vocabulary, self.tokenizer)
        self._trees([])
        self.parse_tokens([[word]], gold=[Tree((word,), (0,))])

    def no_trees(self) -> ValueError:
        """The error for a request for trees from an encoder that builds none."""
        return ValueError(f"{self.config.encoder} builds no trees: it can predict, not parse")

    @classmethod
    def from_pretrained(  # type: ignore[override]  # the mixin's would look for its config.json first
        cls,
        name: str | os.PathLike[str],
        *,
        device: str | torch.device | None = None,
        tokenizer: Tokenizer | None = None,
        **download_options: Any,
    ) -> "Pretrained":
        """Load a run's folder, or a model from the hub, in eval mode.

        Args:
            name: path of the folder, or a hub id "owner/name".
            device: where to put the model; by default the CPU.
            tokenizer: the one the model was trained with, if it could not be stored.
            **download_options: revision, token, cache_dir, force_download and local_files_only of
                `huggingface_hub.snapshot_download`.

        Returns:
            The model.

        Raises:
            ValueError: if there is no such model, or if its files are incomplete or damaged.
        """
        place = _checked_device(device)
        folder = Path(name) if os.path.exists(name) else download(name, shipped(), **download_options)
        config = storage.read_config(folder)
        vocabulary = Vocabulary.load(storage.file_of(folder, storage.VOCABULARY), config.closed_vocabulary)
        weights = storage.read_weights(folder)
        words = weights.get("embedding.words.weight")
        if words is not None and words.dim() == 2 and len(words) != len(vocabulary):
            raise ValueError(
                f"{folder}: {storage.VOCABULARY} has {len(vocabulary)} words and {storage.WEIGHTS} vectors for "
                f"{len(words)}: they are of different models"
            )
        where = folder / storage.CONFIG
        with torch.device("meta"):  # before memory is allocated: a config may ask for any width
            storage.check_weights(build_empty(config, len(vocabulary), where), weights, folder / storage.WEIGHTS)
        with torch.random.fork_rng(devices=[]):  # initial weights are overwritten: leave the user's generator alone
            model = build_empty(config, len(vocabulary), where)
        storage.fill(model, weights, folder / storage.WEIGHTS)
        results = storage.read_results(folder) if storage.is_finished(folder) else None
        stored = storage.read_tokenizer(folder) if tokenizer is None else tokenizer
        parser = None if config.parser is None else load_parser(_parser_folder(folder, config.parser))
        return cls(config, vocabulary, model, results, stored, parser).to(place).eval()

    def push_to_hub(self, repo_id: str, **settings: Any) -> str:
        """Upload the folder and a model card to the Hugging Face hub.

        Args:
            repo_id: "owner/name".
            **settings: those of `huggingface_hub.ModelHubMixin.push_to_hub`, such as private and commit_message.

        Returns:
            The address of the commit.

        Raises:
            ValueError: if the hub cannot be used.
        """
        card = {"name": repo_id, **(settings.pop("model_card_kwargs", None) or {})}
        with hub_errors(f"{repo_id}:"):
            return super().push_to_hub(repo_id, model_card_kwargs=card, **settings)

    def _save_pretrained(self, save_directory: Path) -> None:
        storage.write_weights(save_directory, self.model)
        with files.writing(save_directory / storage.VOCABULARY):
            self.vocabulary.save(save_directory / storage.VOCABULARY)
        for name in (storage.TOKENIZER, storage.RESULTS):  # of another model that was in this folder
            (save_directory / name).unlink(missing_ok=True)
        if self.tokenizer is not None:
            storage.write_tokenizer(save_directory, self.tokenizer)
        if self.results is not None:
            files.write_json(save_directory / storage.RESULTS, self.results)
        if self.parser is not None:
            self.parser.save_pretrained(save_directory / storage.PARSER)
        storage.write_config(save_directory, self.config)  # last: it makes the folder a run

    def generate_model_card(self, *args: Any, name: str = "the path of this folder", **kwargs: Any) -> ModelCard:
        return make_card(self.config, self.results, name)

    def _map_beams(
        self,
        samples: Sequence[TokenizedSides],
        read: Callable[[Beams, Sequence[Tokenized]], list[T]],
        gold: Sequence[Tree] | None = None,
        max_samples: int = MAX_SAMPLES,
    ) -> list[T]:
        """Encode texts in batches, and call `read` with the beams of each. Returns one result per text, in order."""

        def compute(indices: list[int], batch: Batch) -> list[T]:
            beams = self.model.encode(batch.tokens, batch.lengths, batch.trees).beams
            if beams is None:
                raise self.no_trees()
            return read(beams, [samples[index][0] for index in indices])

        trees = self._trees(samples) if gold is None else (lambda index: (gold[index],))
        return map_batches(self.model, self.vocabulary, samples, compute, trees, max_samples)

    def _parses(self, beams: Beams, texts: Sequence[Tokenized], labels: bool) -> list[Parses]:
        found = make_parses(beams, texts)
        if not labels:
            return found
        task = TASKS.get(self.config.task)
        return label_nodes(found, texts, beams, self.model, self.labels, None if task is None else task.values)

    def _predictions(self, samples: Sequence[TokenizedSides], logits: Float[Tensor, "B L"]) -> list[Prediction]:
        predictions = []
        for sides, row in zip(samples, self.model.probabilities(logits).tolist(), strict=True):
            probabilities = dict(zip(self.labels, row, strict=True))
            missing = dict.fromkeys(word for side in sides for word in side.words if word not in self.vocabulary)
            predictions.append(Prediction(max(self.labels, key=probabilities.__getitem__), probabilities, (*missing,)))
        return predictions

    def _tokenized(self, texts: Sequence[TextOrPair]) -> list[TokenizedSides]:
        """The tokens of each text, or of both sides of each pair."""
        pairs = [sides_of(text, self.config.pair) for text in as_list(texts)]
        return [tuple(self._tokens(side) for side in sides) for sides in pairs]

    def _tokens(self, text: str) -> Tokenized:
        return tokenize(text, self.config, self.vocabulary, self.tokenizer)

    def _trees(self, samples: Sequence[TokenizedSides]) -> TreesOf | None:
        """The trees of samples; None if the encoder needs none."""
        return given_trees(samples, self.config, self.parser) if self.model.needs_trees else None


def load(
    name: str | os.PathLike[str], device: str | torch.device | None = None, tokenizer: Tokenizer | None = None
) -> Pretrained:
    """Load a run's folder, a shipped model (see `shipped`), or a model from the hub, "owner/name".

    Args:
        name: the path, name or id.
        device: where to put the model; by default the CPU.
        tokenizer: the one the model was trained with, if it could not be stored.

    Returns:
        The model, in eval mode.

    Raises:
        ValueError: if there is no such model, or if its files are incomplete or damaged.

    Examples:
        >>> from beamtree.models.pretrained import load
        >>> load("listops-bt-grc").config.encoder
        'bt-grc'
    """
    found = folder_of(name)
    return Pretrained.from_pretrained(found if storage.is_run(found) else name, device=device, tokenizer=tokenizer)


def shipped() -> list[str]:
    """List the shipped models, which are part of the package.

    Returns:
        Names for `beamtree.load`.

    Examples:
        >>> from beamtree.models.pretrained import shipped
        >>> "listops-bt-grc" in shipped()
        True
    """
    return sorted(folder.name for folder in _SHIPPED.glob("*/") if storage.is_run(folder))


def shipped_folder(name: str) -> Path:
    return _SHIPPED / name


def folder_of(name: str | os.PathLike[str]) -> Path:
    """The folder of a model that `load` finds under a name; it does not exist for one that is on the hub."""
    return shipped_folder(str(name)) if not storage.is_run(name) and str(name) in shipped() else Path(name)


def _parser_folder(folder: Path, parser: str) -> Path:
    """The folder of a model's parser: a copy in its own folder, except that shipped models share shipped parsers."""
    shared = folder.parent == _SHIPPED and parser in shipped()
    return shipped_folder(parser) if shared else storage.parser_of(folder)


def _checked_device(device: str | torch.device | None) -> torch.device:
    try:
        found = torch.device(device or "cpu")
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"device is {str(device)!r}, which is not available here ({reason}): choose 'cpu'") from None
    return found
