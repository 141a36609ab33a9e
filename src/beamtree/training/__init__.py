"""Training: runs from settings to a trained model and its results, and sweeps of runs.

from beamtree.runs import recipes
from beamtree.training import train

train(recipes.load("listops", seed=1), "runs/listops/bt-grc-seed1")
"""

from beamtree.training.callbacks import Callback
from beamtree.training.loop import resume, train
from beamtree.training.run import Run

__all__ = ["Callback", "Run", "resume", "train"]
