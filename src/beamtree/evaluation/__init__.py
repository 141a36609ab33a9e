"""Evaluation: accuracy, macro-F1, calibration and confusion matrix of a model, overall, by length and by depth.

found = evaluate(beamtree.load("listops-bt-grc"), beamtree.data.load("listops", "900-1000"))
found.accuracy, found.interval
"""

from beamtree.evaluation.results import Bin, Evaluation, Proportion, Views, evaluate, records, views
from beamtree.evaluation.scoring import MAX_SAMPLES, EvaluationProgress, Outcomes, evaluate_model

__all__ = [
    "MAX_SAMPLES",
    "Bin",
    "Evaluation",
    "EvaluationProgress",
    "Outcomes",
    "Proportion",
    "Views",
    "evaluate",
    "evaluate_model",
    "records",
    "views",
]
