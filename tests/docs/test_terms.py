"""Pages, docstrings and comments spell our terms in one way, and English as the British do. codespell does the rest."""

import re

import pytest

from doc_pages import ROOT

# The right form, and a pattern of wrong ones. Code in backticks and addresses are not looked at.
TERMS = {
    "Beam Tree Cell": r"Beam-Tree|Beamtree|[Bb]eam tree cell|BT-?[Cc]ell",
    "CUDA": r"Cuda",
    "GitHub": r"Github",
    "Gumbel": r"gumbel",
    "Hugging Face": r"Hugging[Ff]ace|huggingface|Hugging face|hugging face",
    "ListOps": r"Listops|LISTOPS|[Ll]ist[ -][Oo]ps",
    "NumPy": r"Numpy",
    "OneSoft": r"Onesoft|[Oo]ne-[Ss]oft|One Soft",
    "PyTorch": r"Pytorch|pytorch|Py Torch",
    "TensorBoard": r"Tensorboard|Tensor Board",
    "Tree-LSTM": r"Tree LSTM|tree-LSTM|treeLSTM",
    "checkpoint": r"[Cc]heck-point",
    "dropout": r"[Dd]rop-out",
    "hyperparameter": r"[Hh]yper-parameters?|[Hh]yper parameters?",
    "near-IID": r"near IID|near iid",
    "parametrization": r"[Pp]arametri[sz]ation(?<!zation)|[Pp]arameterization",
    "subtree": r"[Ss]ub-trees?",
    "tokenizer": r"[Tt]okenisers?",
    "top-k": r"Top-K|[Tt]op [kK]",
    # British spelling
    "behaviour": r"[Bb]ehaviors?",
    "labelled": r"(un)?labeled",
    "neighbour": r"[Nn]eighbors?|[Nn]eighboring",
    "-isation": r"(general|initial|marginal|normal|regular|binar|visual)ization",  # capitals may be of a paper's title
    "analyse": r"[Aa]nalyz(e|ed|es|ing)",
    # but PyTorch's word
    "optimizer": r"[Oo]ptimisers?",
}
# Only in pages: in Python files these are also names of code.
IN_PAGES = {
    "ListOps": r"listops",
    "OneSoft": r"onesoft",
    "colour": r"[Cc]olors?|[Cc]olored",
    "data set": r"data-?sets?",
    "near-IID": r"near-iid",
}
CODE = re.compile(r"^```.*?^```|^ *>>>.*?$|`[^`]*`|\]\([^)]*\)|<[^>]*>|https?://\S+", re.DOTALL | re.MULTILINE)
PROSE = re.compile(r'"""(.*?)"""|(?:^|\s)#(?!:)( .*?)$', re.DOTALL | re.MULTILINE)  # of Python: docstrings, comments


def prose(path):
    """The text of a file without its code, with its line breaks as spaces."""
    text = path.read_text()
    if path.suffix == ".py":
        text = "\n\n".join(docstring or comment for docstring, comment in PROSE.findall(text))
    return re.sub(r"\s+", " ", CODE.sub(" ", text))


def wrong(text, in_page=True):
    """Wrong forms in a text, each with the right one."""
    return [
        (found[0], right)
        for right, pattern in (*TERMS.items(), *(IN_PAGES.items() if in_page else ()))
        for found in re.finditer(rf"(?<![\w./_-])(?:{pattern})(?![\w_/-]|\.\w)", text)
    ]


@pytest.mark.parametrize("pattern", ["*.md", "docs/**/*.md", ".github/**/*.md", "src/**/*.py", "docs/**/*.py"])
def test_terms_are_spelled_in_one_way(pattern):
    paths = sorted(ROOT.glob(pattern))
    assert paths
    found = {path: wrong(prose(path), in_page=path.suffix == ".md") for path in paths}
    assert {str(path.relative_to(ROOT)): pairs for path, pairs in found.items() if pairs} == {}


def test_wrong_forms_are_found():
    text = "Listops, with\nOne-Soft: the [dataset](a.md), `dataset`, at near-IID."
    assert wrong(re.sub(r"\s+", " ", CODE.sub(" ", text))) == [
        ("Listops", "ListOps"),
        ("One-Soft", "OneSoft"),
        ("dataset", "data set"),
    ]
    assert not wrong(" ".join((*TERMS, *IN_PAGES)))


@pytest.mark.parametrize(
    "path", [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))], ids=lambda path: path.stem
)
def test_lines_of_pages_are_wrapped(path):
    """At 100 characters, except tables, code, pictures and what is generated."""
    text = re.sub(r"^```.*?^```|^<!-- runs:.*?^<!-- end -->", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    long = [line for line in text.splitlines() if len(line) > 100 and not line.startswith(("|", "!", ":::"))]
    assert long == []
