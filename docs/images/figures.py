"""Draws the pictures of the pages in docs/concepts/, and fills in the tables of the worked example.

    python docs/images/figures.py

Everything is computed: the worked example by a shipped model, the other structures from trees. The drawings are those
of `beamtree.trees.drawing`, as SVG that follows the colour scheme of the reader.
"""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import torch
from worked_example import BEAM_SIZE, EXAMPLE, MODEL, PAGE, Step, joined, search, shipped, shown, with_tables

import beamtree
from beamtree import Tree
from beamtree.data.tasks.listops.expressions import gold_tree, values
from beamtree.nn.topk.operators import onesoft_topk
from beamtree.nn.topk.transport import soft_topk
from beamtree.trees import baselines
from beamtree.trees.drawing import Drawing, draw_beams, draw_chart
from beamtree.trees.drawing.layout import place_nodes
from beamtree.trees.drawing.metrics import LINE_HEIGHT, text_width
from beamtree.trees.drawing.scene import Dot, Line, Rectangle, Scene, Shape, Text, below, beside, text_scene
from beamtree.trees.drawing.tree import LEAF_SPACE, tree_scene

FOLDER = Path(__file__).parent / "concepts"

NESTED = "[MAX 2 [MIN 4 7 ] ]"  # the example of the encoders
LONGER = "[MAX 2 9 [MIN 4 7 ] 0 ]"
NARROW = 440.0  # width of pictures with several parts, which phones show without making them small
DARK_CELL = 65  # percent from which light text is easier to read than dark text


def draw_step(step: Step) -> Scene:
    """The beams before a step. Over each pair of neighbours stands the probability of its candidate."""
    scenes = []
    for index, beam in enumerate(step.beams):
        heading = text_scene(f"beam {index + 1}, a = {shown(beam.score, 2)}")
        probabilities = step.log_probs[index].exp().tolist()
        ranks = {one.place: one.rank for one in step.continuations if one.beam == index}
        notes = [
            f"→ {rank + 1}" if (rank := ranks.get(place)) is not None else "" for place in range(len(probabilities))
        ]
        scenes.append(below([heading, forest([e.tree for e in beam.elements], probabilities, notes)], space=4.0))
    return beside(scenes, NARROW)


def forest(trees: Sequence[Tree], probabilities: Sequence[float] = (), notes: Sequence[str] = ()) -> Scene:
    """Trees side by side on one line of leaves; over each gap between them a cell with a probability and a note."""
    space, cell, top = (60.0, 46.0, LINE_HEIGHT * 3.2) if probabilities else (0.0, 0.0, 0.0)
    parts, roots, x = [], [], 0.0
    for tree in trees:
        scene = tree_scene(tree, (), None, "vertical")
        place = place_nodes(tree, [text_width(leaf) + LEAF_SPACE for leaf in tree.leaves]).nodes[-1].place
        if roots:
            x = max(x, roots[-1] + space - place)
        parts.append((x, scene))
        roots.append(x + place)
        x += scene.width
    depth = max(scene.height for _, scene in parts)
    placed = tuple((left, top + depth - scene.height, scene) for left, scene in parts)
    shapes: list[Shape] = []
    for gap, probability in enumerate(probabilities):
        ends = roots[gap] + 4, roots[gap + 1] - 4
        middle, level = (ends[0] + ends[1]) / 2, LINE_HEIGHT * 1.6
        for end, child, side in ((ends[0], gap, -1), (ends[1], gap + 1, 1)):
            shapes.append(Line(((middle + side * cell / 2, level), (end, level), (end, placed[child][1])), "line"))
        shapes += heat_cell(middle - cell / 2, level - 10, cell, 20, probability, f"{probability:.3f}")
        shapes.append(Text(middle, LINE_HEIGHT / 2, notes[gap], "lit", centred=True))
    return Scene(x, top + depth, tuple(shapes), placed)


def heat_cell(x: float, y: float, width: float, height: float, share: float, text: str) -> list[Shape]:
    percent = round(100 * share)
    style = "on-heat" if percent > DARK_CELL else "ink"
    return [
        Rectangle(x, y, width, height, f"heat-{percent}"),
        Text(x + width / 2, y + height / 2, text, style, centred=True),
    ]


def final_beams() -> Scene:
    """The trees of all beams, duplicates included."""
    results = zip(search().beams, search().weights, strict=True)
    return beside(
        [
            titled(beam.elements[0].tree, f"beam {index}, softmax(a) = {weight:.3f}")
            for index, (beam, weight) in enumerate(results, start=1)
        ],
        NARROW,
    )


def titled(tree: Tree, text: str) -> Scene:
    return below([text_scene(text), tree_scene(tree, (), None, "vertical")], space=6.0)


def grid(
    rows: Sequence[tuple[str, Sequence[tuple[float | None, str]]]], columns: Sequence[str] = (), width: float = 46.0
) -> Scene:
    """Rows of cells (share, text) with a name each. A share of None leaves a cell out."""
    height = 22.0
    names = max(text_width(name) for name, _ in rows) + 8
    shapes: list[Shape] = []
    for number, (name, cells) in enumerate(rows):
        y = height * number
        shapes.append(Text(0, y + height / 2, name, "faint"))
        for column, (share, text) in enumerate(cells):
            if share is not None:
                shapes += heat_cell(names + width * column, y, width, height, share, text)
    bottom = height * len(rows)
    for column, text in enumerate(columns):
        shapes.append(Text(names + width * (column + 0.5), bottom + LINE_HEIGHT / 2, text, centred=True))
    size = max(len(columns), *(len(cells) for _, cells in rows))
    return Scene(names + width * size, bottom + (LINE_HEIGHT if columns else 0), tuple(shapes))


def pipeline() -> Scene:
    """Tokens, the tree over them, and the vector of its root."""
    tree = gold_tree(NESTED.split())
    scene = tree_scene(tree, (), None, "vertical")
    widths = [text_width(leaf) + LEAF_SPACE for leaf in tree.leaves]
    nodes = place_nodes(tree, widths).nodes
    shapes: list[Shape] = []
    for node in (*nodes[: len(tree)], nodes[-1]):
        y = 0.0 if node.height else LINE_HEIGHT + 14 + scene.height
        shapes += [Rectangle(node.place - 6, y + 4 * row, 12, 4, f"heat-{20 + 20 * row}") for row in range(4)]
    names = ((8.0, "encoding (D,)"), (LINE_HEIGHT + 14 + scene.height + 8, "embeddings (N, D)"))
    shapes += [Text(scene.width + 16, y, text, "faint") for y, text in names]
    shapes.append(Line(((nodes[-1].place, 16), (nodes[-1].place, LINE_HEIGHT + 8)), "faint"))
    width = scene.width + 16 + text_width(names[1][1])
    return Scene(width, LINE_HEIGHT + 30 + scene.height, tuple(shapes), ((0.0, LINE_HEIGHT + 8, scene),))


def four_trees() -> Scene:
    tokens = LONGER.split()
    latent = shipped("listops-bt-grc-onesoft").parse(LONGER, labels=True)[0]
    return beside(
        [
            titled(baselines.left(tokens), "chain"),
            titled(baselines.balanced(tokens), "balanced"),
            titled(gold_tree(tokens), "gold"),
            below(
                [
                    text_scene("latent, with the value of each list"),
                    tree_scene(latent.tree, latent.nodes, None, "vertical"),
                ],
                space=6.0,
            ),
        ],
        page_width=760.0,
    )


def onesoft_weights() -> Scene:
    """The continuations of the second step, by plain top-k and by OneSoft."""
    scores = torch.tensor([one.score for one in search().steps[1].continuations])
    weights = onesoft_topk(scores, BEAM_SIZE).weights.tolist()
    kept = [rank < BEAM_SIZE for rank in range(len(scores))]
    hard = [rank < BEAM_SIZE - 1 for rank in range(len(scores))]
    rows = [
        ("score a", [(0.0, shown(score, 2)) for score in scores.tolist()]),
        ("plain top-k", [(0.9, "kept") if one else (0.0, "–") for one in kept]),
        (
            "OneSoft",
            [(0.9, "kept") if one else (weight, f"{weight:.2f}") for one, weight in zip(hard, weights, strict=True)],
        ),
    ]
    return grid(rows)


def soft_weights() -> Scene:
    """The same continuations, by SOFT top-k: each new beam is a mixture of all."""
    scores = torch.tensor([one.score for one in search().steps[1].continuations])
    plan = soft_topk(scores, BEAM_SIZE).weights.T.tolist()
    rows = [("score a", [(0.0, shown(score, 2)) for score in scores.tolist()])]
    rows += [(f"new beam {index}", [(w, f"{w:.2f}") for w in row]) for index, row in enumerate(plan, start=1)]
    return grid(rows)


def easy_first() -> Scene:
    """The sequence after each merge of the best beam."""
    parse = shipped(MODEL).parse(NESTED)[0]
    trees = [Tree.parse(token) for token in NESTED.split()]
    scenes = [below([text_scene("leaves"), forest(trees)], space=6.0)]
    for number, (start, _) in enumerate(parse.merges, start=1):
        ends = [0]
        for tree in trees:
            ends.append(ends[-1] + len(tree))
        place = ends.index(start)
        trees[place : place + 2] = [joined(*trees[place : place + 2])]
        scenes.append(below([text_scene(f"merge {number}"), forest(trees)], space=6.0))
    return beside(scenes, NARROW)


def sampled_trees() -> Scene:
    """Trees that `mc-gumbel-tree-grc` draws with the weights of the shipped model."""
    model, tokens = shipped(MODEL), NESTED.split()
    encoder = beamtree.encoder("mc-gumbel-tree-grc", dim=model.model.encoder.dim).eval()
    encoder.load_state_dict(model.model.encoder.state_dict())
    with torch.no_grad():
        x = model.model.embedding(torch.tensor([model.vocabulary.ids(tokens)]))
        beams = encoder(x, generator=torch.Generator().manual_seed(0)).beams
    trees = [tree for tree, _ in beams.distinct([tokens])[0]]
    return beside([titled(tree, f"tree {index}") for index, tree in enumerate(trees, start=1)], NARROW)


def candidates_and_chosen() -> Scene:
    """What is composed at a step: all candidates (Beam Tree) or the chosen one (Efficient Beam Tree)."""
    trees = [Tree.parse(token) for token in EXAMPLE.split()]
    composed = [joined(left, right) for left, right in pairwise(trees)]
    return beside(
        [
            below([text_scene("bt-grc composes and scores all candidates"), forest(composed)], space=6.0),
            below(
                [text_scene("ebt-grc scores pairs, composes the chosen"), forest([composed[0], *trees[2:]])], space=6.0
            ),
        ],
        NARROW,
    )


def continuous() -> Scene:
    """Which positions exist after each iteration of CRvNN, if all probabilities are 0 or 1. The state of a constituent
    is at its last token; the number is that of the tokens it covers."""
    tree = gold_tree(NESTED.split())
    covered: list[int | None] = [1] * len(tree)
    levels = list(zip(tree.spans(), tree.heights(), strict=True))
    rows = []
    for height in range(tree.height + 1):
        for (start, end), level in levels:
            if level == height > 0:
                split = next(
                    middle for (begin, middle), _ in levels if begin == start and (middle, end) in tree.spans()
                )
                covered[split - 1], covered[end - 1] = None, end - start
        rows.append(
            (f"iteration {height}" if height else "start", [(0.3, str(c)) if c else (0.0, "") for c in covered])
        )
    return grid(rows, tree.leaves)


def memory_slots() -> Scene:
    columns = [[abbreviated(one) for one in held] for held in candidate_memory()]
    slots = range(len(columns[0]))
    rows = [(f"slot {i}", [(0.3, column[i]) for column in columns]) for i in reversed(slots)]
    return grid(rows, NESTED.split(), width=82)


def candidate_memory() -> list[list[Tree]]:
    """The candidate memory of Ordered Memory after each token, if every p is one-hot: the slot of a token is that of
    the innermost list around it and the token before, and inner lists have lower slots."""
    tokens = NESTED.split()
    lists = list(values(tokens))
    depths = [sum(start < place < end for start, end in lists) for place in range(len(tokens))]  # 0 for the first
    slots = max(depths)
    memory: list[Tree] = []
    candidates = [Tree.parse(tokens[0])] * slots
    found = [candidates]
    for place in range(1, len(tokens)):
        slot, leaf = slots - depths[place], Tree.parse(tokens[place])
        memory = [candidates[i] if i <= slot else memory[i] for i in range(slots)]
        candidates = [leaf] * slot
        for i in range(slot, slots):
            candidates = [*candidates, joined(memory[i], candidates[i - 1] if i else leaf)]
        found.append(candidates)
    return found


def abbreviated(tree: Tree) -> str:
    text = " ".join(tree.leaves)
    return text if len(text) <= 9 else f"{tree.leaves[0]}…{tree.leaves[-1]}"


def shift_reduce() -> Scene:
    """Stack and queue after each action that builds the gold tree."""
    tree = gold_tree(NESTED.split())
    queue = [Tree.parse(token) for token in tree.leaves]
    stack, states = [], []
    for place, count in enumerate(tree.reduces):
        stack.append(queue.pop(0))
        if place > 0:  # the stack begins with the first two tokens
            states.append(("start" if place == 1 else "shift", list(stack), list(queue)))
        for _ in range(count):
            stack[-2:] = [joined(*stack[-2:])]
            states.append(("reduce", list(stack), list(queue)))
    rows = [(action, [(0.3, abbreviated(one)) for one in held]) for action, held, _ in states]
    scene = grid(rows, ["stack"], width=84)
    waiting = [" ".join(abbreviated(one) for one in each) for _, _, each in states]
    texts = [Text(scene.width + 20, 22 * row + 11, text) for row, text in enumerate(waiting)]
    texts.append(Text(scene.width + 20, scene.height - LINE_HEIGHT / 2, "queue"))
    width = scene.width + 20 + max(text_width(text) for text in waiting)
    return Scene(width, scene.height, tuple(texts), ((0.0, 0.0, scene),))


def chart() -> Scene:
    """The chart of CYK: each span with the number of its splits. The constituents of one tree are darker."""
    tree = gold_tree(NESTED.split())
    size, width, height = len(tree), 50.0, 24.0
    spans = set(tree.spans())
    shapes: list[Shape] = []
    for length in range(2, size + 1):
        for start in range(size - length + 1):
            share = 0.4 if (start, start + length) in spans else 0.0
            x, y = width * (start + (length - 1) / 2), height * (size - length)
            shapes += heat_cell(x, y, width, height, share, str(length - 1))
    for place, leaf in enumerate(tree.leaves):
        shapes.append(Text(width * (place + 0.5), height * (size - 1) + LINE_HEIGHT / 2, leaf, centred=True))
    return Scene(width * size, height * (size - 1) + LINE_HEIGHT, tuple(shapes))


def geometric_attention() -> Scene:
    """Weights of the Neural Data Router's attention if every position matches with probability one half."""
    tokens = ["START", *NESTED.split(), "END"]
    rows = []
    for i, token in enumerate(tokens):
        # From the nearest to the farthest; at equal distance the right one counts as closer.
        order = sorted((j for j in range(len(tokens)) if j != i), key=lambda j: (abs(j - i), j < i))
        weights = {j: 0.5 ** (place + 1) for place, j in enumerate(order)}
        total = sum(weights.values())
        rows.append(
            (token, [(weights.get(j, 0.0) / total, f"{weights.get(j, 0.0) / total:.2f}") for j in range(len(tokens))])
        )
    return grid(rows, tokens, width=52)


def all_to_all() -> Scene:
    """Two layers of a Transformer: rows of states over the tokens, all of which are connected."""
    tokens, width, height, rows = NESTED.split(), 62.0, 46.0, 3
    places = [width * (place + 0.5) for place in range(len(tokens))]
    levels = [30 + height * row for row in range(rows)]
    shapes: list[Shape] = [Dot(x, y, 5, "heat-50") for y in levels for x in places]
    shapes += [
        Line(((x, y), (other, above)), "line") for above, y in pairwise(levels) for x in places for other in places
    ]
    bottom = levels[-1] + 10
    shapes += [Text(x, bottom + LINE_HEIGHT / 2, token, centred=True) for x, token in zip(places, tokens, strict=True)]
    shapes.append(Text(width * len(tokens) / 2, LINE_HEIGHT / 2, "mean of all positions", "faint", centred=True))
    return Scene(width * len(tokens), bottom + LINE_HEIGHT, tuple(shapes))


def two_chains() -> Scene:
    """A bidirectional LSTM: one chain from the left, one from the right. Their last states are the encoding."""
    tokens, width, margin = NESTED.split(), 56.0, 90.0
    size, bottom = len(tokens), 44.0
    shapes: list[Shape] = []
    for y, arrow in ((10.0, "→"), (bottom, "←")):
        shapes += [Dot(margin + width * (place + 0.5), y, 5, "heat-50") for place in range(size)]
        shapes += [Text(margin + width * place, y, arrow, "faint", centred=True) for place in range(1, size)]
    shapes.append(Text(margin + width * size - 8, 10, "→ encoding", "faint"))
    shapes.append(Text(0, bottom, "encoding ←", "faint"))
    for place, token in enumerate(tokens):
        shapes.append(Text(margin + width * (place + 0.5), bottom + 10 + LINE_HEIGHT / 2, token, centred=True))
    return Scene(2 * margin + width * size, bottom + 10 + LINE_HEIGHT, tuple(shapes))


def fixed_trees() -> Scene:
    tokens = NESTED.split()
    return beside(
        [
            titled(gold_tree(tokens), "gold"),
            titled(baselines.balanced(tokens), "balanced"),
            titled(baselines.easy_first(tokens, seed=2), "random"),
        ],
        NARROW,
    )


def recurrent() -> Scene:
    return tree_scene(baselines.left(["h₀", *NESTED.split()]), (), None, "vertical")


def drawings() -> dict[str, Drawing]:
    """All pictures by the names of their files."""
    parses = shipped(MODEL, BEAM_SIZE).parse(EXAMPLE, labels=True)
    found = {
        f"step-{number}": Drawing(
            draw_step(step), f"the beams before step {number}, with the candidates' probabilities"
        )
        for number, step in enumerate(search().steps, start=1)
    }
    scenes: dict[str, tuple[Scene, str]] = {
        "pipeline": (pipeline(), "embeddings, a tree over them, and the encoding at its root"),
        "trees": (four_trees(), "four trees over one expression: chain, balanced, gold, latent"),
        "final-beams": (final_beams(), "the trees of three beams with their weights; two are equal"),
        "onesoft": (onesoft_weights(), "nine continuations, by plain top-k and by OneSoft"),
        "soft": (soft_weights(), "the weights of nine continuations in three new beams"),
        "easy-first": (easy_first(), "a sequence after each of six merges"),
        "mc-gumbel": (sampled_trees(), "distinct trees of five samples"),
        "efficient": (candidates_and_chosen(), "all candidates composed, and only the chosen one composed"),
        "crvnn": (continuous(), "which positions exist after each iteration"),
        "ordered-memory": (memory_slots(), "the contents of the memory slots after each token"),
        "shift-reduce": (shift_reduce(), "stack and queue after each action"),
        "cyk": (chart(), "a triangular chart of all spans with the number of their splits"),
        "fixed-trees": (fixed_trees(), "a gold, a balanced and a random tree"),
        "recurrent": (recurrent(), "a chain that starts with the learned state h₀"),
        "ndr": (geometric_attention(), "attention weights that fall with the distance"),
        "transformer": (all_to_all(), "two layers that connect all positions"),
        "lstm": (two_chains(), "two chains of states, one in each direction"),
    }  # fmt: skip
    found |= {name: Drawing(scene, about) for name, (scene, about) in scenes.items()}
    found["labelled"] = draw_beams(parses)
    found["chart"] = draw_chart(EXAMPLE.split(), parses)
    return found


def svgs() -> dict[str, str]:
    """The contents of all files."""
    return {f"{name}.svg": drawing._repr_svg_() + "\n" for name, drawing in drawings().items()}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, content in svgs().items():
        (FOLDER / name).write_text(content, encoding="utf-8")
    if PAGE.exists():
        PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
