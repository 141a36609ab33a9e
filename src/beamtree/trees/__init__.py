"""Trees over a sequence of tokens, scores, baselines and measures.

Tree.parse("((a b) c)")
scores.score(predicted, gold).sentence_f1()
baselines.uniform(["a", "b", "c"], seed=0)
measures.agreement([trees_of_seed_0, trees_of_seed_1])
"""

from beamtree.trees import baselines, measures, scores
from beamtree.trees.bracketing import Bracketing
from beamtree.trees.tree import Tree

__all__ = ["Bracketing", "Tree", "baselines", "measures", "scores"]
