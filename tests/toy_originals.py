"""Originals of a few lines each, in the layouts of their authors."""

import json
from collections.abc import Mapping
from pathlib import Path

LONG = " ".join(["long"] * 149 + ["."])  # 150 tokens


def pair(label: str, premise: str, hypothesis: str) -> str:
    """A line of JSONL as MultiNLI has it."""
    return json.dumps({"gold_label": label, "sentence1": premise, "sentence2": hypothesis, "genre": "fiction"})


def table(*rows: str) -> list[str]:
    """Rows, each a sentiment and a review, under the header that the contrast set has."""
    return ["Sentiment\tText", *(row.replace(" ", "\t", 1) for row in rows)]


def maximum(digit: str, tokens: int) -> str:
    """A line of ListOps whose expression, one list of a digit again and again, has so many tokens."""
    return f"{digit}\t{'( ' * (tokens - 1)}[MAX {f'{digit} ) ' * (tokens - 2)}] )"


SICK = [
    "pair_ID\tsentence_A\tsentence_B\tentailment_label\trelatedness_score\tSemEval_set",
    "1\tA dog runs\tAn animal runs\tENTAILMENT\t4.5\tTRAIN",
    "2\tA dog runs\tNo dog runs\tCONTRADICTION\t3.1\tTRIAL",
    "3\tA dog runs\tA cat sleeps\tNEUTRAL\t1.2\tTEST",
    "4\tA cat sleeps\tA cat rests\tENTAILMENT\t4.9\tTRAIN",
]
ORIGINALS: dict[str, list[str]] = {
    # Two pairs in each of the files that count, so that the tenth is the second of train4.
    **{f"propositionallogic/train{n}": [f"=\t{v}\t{v}", f"#\t{v}\t( not a )"] for n, v in enumerate("abcdefa")},
    "propositionallogic/train2": ["<\t( a ( and ( not b ) ) )\ta", ">\ta\t( a ( or ( not b ) ) )"],
    **{f"propositionallogic/train{n}": ["v\tf\tf"] for n in range(7, 13)},
    **{f"propositionallogic/test{n}": ["#\ta\tb"] * (n + 1) for n in range(13)},
    "trees/train.txt": ["(3 (2 It) (4 (2 really) (3 works)))", "(1 (2 No) (1 fun))"],
    "trees/dev.txt": ["(4 (2 Great) (2 -LRB-ish-RRB-))", "(2 (2 A) (2 film))"],
    "trees/test.txt": ["(0 (2 Dire) (2 film))"],
    "aclImdb/train/pos/0_9.txt": ["A good film.<br />Good!"],
    "aclImdb/train/pos/1_10.txt": [" ".join(["good"] * 201)],
    "aclImdb/train/neg/2_1.txt": [" ".join(["bad"] * 200)],
    "aclImdb/train/neg/3_2.txt": [" ".join(["bad"] * 301)],
    "aclImdb/train/urls_pos.txt": ["http://example.org"],
    "aclImdb/test/pos/0_7.txt": ["Fine."],
    "aclImdb/test/neg/1_4.txt": [" ".join(["dull"] * 201)],
    "aclImdb/test/neg/2_3.txt": ["Dull."],
    "contrast/dev_original.tsv": table("Positive Lovely"),
    "contrast/dev_contrast.tsv": table("Negative Unlovely"),
    "contrast/test_original.tsv": table("Positive Nice", "Negative Boring"),
    "contrast/test_contrast.tsv": table("Negative Not nice", "Positive Not boring"),
    "counterfactual/new/test.tsv": table("Negative Far from nice"),
    "counterfactual/orig/test.tsv": table("Positive Quite nice"),
    "multinli_1.0/multinli_1.0_train.jsonl": [
        *(pair("entailment", f"Number {number} rings.", "It rings.") for number in range(20)),
        pair("-", "Who knows?", "Nobody."),
        pair("neutral", LONG, "Too long."),
    ],
    "multinli_1.0/multinli_1.0_dev_matched.jsonl": [
        pair("contradiction", "It doesn't rain.", "It rains."),
        pair("-", "Who knows?", "Nobody."),
        pair("neutral", LONG, "Not too long here"),
    ],
    "multinli_1.0/multinli_1.0_dev_mismatched.jsonl": [pair("neutral", "It rains.", "It is late.")],
    "StressTests/Length_Mismatch/multinli_0.9_length_mismatch_matched.jsonl": [pair("neutral", "Long.", "Short.")],
    "StressTests/Numerical_Reasoning/multinli_0.9_quant_hard.jsonl": [pair("neutral", "Two cats.", "Three cats.")],
    "snli_1.0/snli_1.0_dev.jsonl": [pair("neutral", "A man.", "A tall man."), pair("-", "A", "B")],
    "SICK/SICK.txt": SICK,
    "listops/train_d20s.tsv": [
        *("7\t7", maximum("9", 102), "2\t( ( ( [MIN 4 ) 2 ) ] )"),
        *(maximum("8", 102), "1\t1", maximum("8", 100)),
    ],
    "listops/test_d20s.tsv": ["3\t3"],
}


def write(root: Path, files: Mapping[str, list[str] | bytes]) -> None:
    """Files of these lines, or of these bytes."""
    for name, content in files.items():
        if not isinstance(content, bytes):
            content = "".join(f"{line}\n" for line in content).encode()
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
