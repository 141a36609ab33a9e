"""Pictures of trees: in text, as SVG and as PNG.

draw_beams(model.parse("[MAX 2 9 [MIN 4 7 ] 0 ]")).save("beams.svg")
print(text_tree(Tree.parse("((a b) c)")))
"""

from beamtree.trees.drawing.chart import chart_svg, draw_chart
from beamtree.trees.drawing.picture import Drawing
from beamtree.trees.drawing.text import penn_tree, text_tree
from beamtree.trees.drawing.tree import beams_svg, draw_beams, draw_tree, tree_svg

__all__ = [
    "Drawing",
    "beams_svg",
    "chart_svg",
    "draw_beams",
    "draw_chart",
    "draw_tree",
    "penn_tree",
    "text_tree",
    "tree_svg",
]
