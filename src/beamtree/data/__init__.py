"""Data: the tasks of the paper, your own files, and batches of samples.

data = beamtree.data.load("sst5")
vocabulary = data.vocabulary()
batches = data["train"].batches(vocabulary)
"""

from beamtree.data.batching import Batch, Batches, Buckets, Ragged
from beamtree.data.loading import TASKS, Data, load, training_options
from beamtree.data.samples import Sample
from beamtree.data.split import Split
from beamtree.data.tokenizers import Token, Tokenizer, make_tokenizer
from beamtree.data.vocabulary import Vocabulary

__all__ = [
    "TASKS",
    "Batch",
    "Batches",
    "Buckets",
    "Data",
    "Ragged",
    "Sample",
    "Split",
    "Token",
    "Tokenizer",
    "Vocabulary",
    "load",
    "make_tokenizer",
    "training_options",
]
