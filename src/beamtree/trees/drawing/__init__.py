"""Drawings of trees: as text, SVG, PNG, PDF and LaTeX.

draw_beams(model.parse("[MAX 2 9 [MIN 4 7 ] 0 ]", labels=True)).save("beams.pdf")
print(text_tree(Tree.parse("((a b) c)")))
"""

from beamtree.trees.drawing.chart import draw_chart
from beamtree.trees.drawing.drawing import Drawing
from beamtree.trees.drawing.text import penn_tree, rich_beams, rich_tree, text_tree
from beamtree.trees.drawing.tree import draw_beams, draw_tree

__all__ = [
    "Drawing",
    "draw_beams",
    "draw_chart",
    "draw_tree",
    "penn_tree",
    "rich_beams",
    "rich_tree",
    "text_tree",
]
