"""How the nodes of a tree are shown: as a dot in a colour, or as a text such as the value of a list.

Every painter uses these rules:

- A label with a colour in the palette (a grade of sentiment, one of a few categories) is a dot in that colour, also at
  leaves. Where colour may be missing, in terminals, it is a short sign, such as + or −−.
- A label without a colour (a digit) is a text, at constituents only. Where the task assigns values to some of them, as
  to the lists of ListOps, the others have none. A wrong value is red, beside the expected one: 4≠7.
- A constituent without a label is a dot, which is darker for a higher probability.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from beamtree.trees.parses import Node
from beamtree.trees.tree import Span, Tree
from beamtree.utils.palette import label_styles

_SIGNS = {"very negative": "−−", "negative": "−", "neutral": "0", "positive": "+", "very positive": "++"}
_PREFIX = 3  # letters of a category that are its sign, if these are unique
_QUOTED = 6  # leaves at both ends of a constituent that its title quotes


class Mark(NamedTuple):
    """How one node is shown."""

    style: str  # name of a colour in the palette
    text: str = ""  # shown in place of a dot
    sign: str = ""  # replaces the colour of a dot where colour may be missing
    is_wrong: bool = False


class MarkedTree(NamedTuple):
    """A tree, the marks of its nodes, and its orientation. Leaves without a label have no mark."""

    tree: Tree
    marks: Mapping[Span, Mark]
    is_horizontal: bool


def node_marks(
    tree: Tree, nodes: Sequence[Node] = (), probabilities: Mapping[Span, float] | None = None
) -> dict[Span, Mark]:
    """Create the marks of all constituents, and of the leaves whose label has a colour.

    Args:
        tree: the tree.
        nodes: its nodes with their labels, if any.
        probabilities: probabilities of its constituents over all beams; None if they are not known.

    Returns:
        The marks by span.
    """
    styles = node_styles(nodes)
    signs = _signs(tuple(styles))
    has_expected = any(node.expected is not None for node in nodes if node.end - node.start > 1)
    known = dict.fromkeys(tree.spans(leaves=False), 1.0) if probabilities is None else probabilities
    marks = {span: Mark(f"heat-{100 * known.get(span, 0.0):.0f}") for span in tree.spans(leaves=False)}
    for node in nodes:
        if node.label is None:
            continue
        style = styles.get(node.label)
        if style is not None:
            sign = signs[node.label]
            if node.is_wrong:
                sign = f"{sign}≠{signs.get(node.expected or '', node.expected)}"
            marks[node.span] = Mark(style, sign=sign, is_wrong=node.is_wrong)
        elif node.span in marks and (node.expected is not None or not has_expected):
            text = f"{node.label}≠{node.expected}" if node.is_wrong else node.label
            marks[node.span] = Mark("wrong" if node.is_wrong else "ink", text, is_wrong=node.is_wrong)
    return marks


def node_styles(nodes: Sequence[Node]) -> dict[str, str | None]:
    """The style of each label of the model; None for labels that are shown as text."""
    labels = next((tuple(node.probabilities) for node in nodes if node.probabilities), ())
    return dict(zip(labels, label_styles(labels), strict=True))


def node_title(span: Span, leaves: Sequence[str], node: Node | None = None, probability: float | None = None) -> str:
    """The tooltip of a node: span, label, probability over all beams, and text."""
    start, end = span
    words = leaves[start:end]
    if len(words) > 2 * _QUOTED:
        words = (*words[:_QUOTED], "…", *words[-_QUOTED:])
    facts = [f"[{start}, {end})"]
    if node is not None and node.label is not None:
        expected = f", expected {node.expected}" if node.is_wrong else ""
        share = f" {node.probabilities[node.label]:.3f}" if node.label in node.probabilities else ""
        facts.append(f"label {node.label}{share}{expected}")
    if probability is not None:
        facts.append(f"probability {probability:.3f}")
    return f"{', '.join(facts)}: {' '.join(words)}"


def _signs(labels: tuple[str, ...]) -> dict[str, str]:
    if set(labels) <= set(_SIGNS):
        return {label: _SIGNS[label] for label in labels}
    prefixes = [label[:_PREFIX] for label in labels]
    return dict(zip(labels, prefixes if len(set(prefixes)) == len(labels) else labels, strict=True))
