"""Run a model over many texts in batches of similar length."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from beamtree.data.batching import Batch, Batches, Buckets, Ragged
from beamtree.data.vocabulary import Vocabulary
from beamtree.models.heads import Model
from beamtree.models.inputs import TokenizedSides, TreesOf

T = TypeVar("T")

MAX_SAMPLES = 128  # in a batch
_MAX_TOKENS_SQUARED = 4_000_000  # batch size × longest²: four texts of 1000 tokens


def map_batches(
    model: Model,
    vocabulary: Vocabulary,
    samples: Sequence[TokenizedSides],
    compute: Callable[[list[int], Batch], list[T]],
    trees: TreesOf | None,
    max_samples: int = MAX_SAMPLES,
) -> list[T]:
    """Call a function for batches of samples, in eval mode and without gradients.

    Args:
        model: its device is that of the batches.
        vocabulary: its words.
        samples: the tokens of each text, or of both texts of a pair.
        compute: maps the indices of the samples of a batch, and the batch, to a result for each.
        trees: those of each sample; None if the encoder needs none.
        max_samples: maximum batch size.

    Returns:
        The results in the order of the samples.
    """
    if not samples:
        return []
    first, *second = (
        Ragged.from_sequences(vocabulary.ids(text.words) for text in side) for side in zip(*samples, strict=True)
    )
    batches = Batches(first, second=second[0] if second else None, trees=trees)
    buckets = Buckets(batches.lengths, max_samples, _MAX_TOKENS_SQUARED, bucket_factor=len(samples), shuffle=False)
    device = next(model.parameters()).device
    found: dict[int, T] = {}
    training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            for chosen in buckets:
                results = compute(chosen.tolist(), batches[chosen].to(device))
                found.update(zip(chosen.tolist(), results, strict=True))
    finally:
        model.train(training)
    return [found[index] for index in range(len(samples))]
