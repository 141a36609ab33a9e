"""Evaluation: how often a model is right, as a whole, by length and by depth.

found = evaluate(beamtree.load("listops-bt-grc"), beamtree.data.load("listops", "900-1000"))
found.accuracy, found.interval
"""

from beamtree.evaluation.results import Bin, Evaluation, Share, Views, evaluate, records, views
from beamtree.evaluation.scoring import MAX_SAMPLES, Progress, Scores, evaluate_model

__all__ = [
    "MAX_SAMPLES",
    "Bin",
    "Evaluation",
    "Progress",
    "Scores",
    "Share",
    "Views",
    "evaluate",
    "evaluate_model",
    "records",
    "views",
]
