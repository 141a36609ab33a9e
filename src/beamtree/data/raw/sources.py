"""The table of sources: each data set with its authors, address and files, and the usual names of its folders.

Checksums are published ones; those of the logic files are of a copy that is identical to the authors'. Addresses on
GitHub contain a commit if one is known to have the files. A licence is stated if the authors state one.
"""

import json
from dataclasses import dataclass
from pathlib import Path

_STANFORD = "https://nlp.stanford.edu"
_GITHUB = "https://raw.githubusercontent.com"
_STRESS = {
    "Antonym": ("antonym_matched", "antonym_mismatched"),
    "Length_Mismatch": ("length_mismatch_matched", "length_mismatch_mismatched"),
    "Negation": ("negation_matched", "negation_mismatched"),
    "Numerical_Reasoning": ("quant_hard",),
    "Spelling_Error": tuple(
        f"dev_gram_{kind}_{side}"
        for kind in ("contentword_swap_perturbed", "functionword_swap_perturbed", "keyboard", "swap")
        for side in ("matched", "mismatched")
    ),
    "Word_Overlap": ("taut2_matched", "taut2_mismatched"),
}


@dataclass(frozen=True)
class Download:
    """A file to download: its address, and its name in the folder of downloads."""

    url: str
    file: str
    checksum: str | None = None  # "sha256:…" or "md5:…"


@dataclass(frozen=True)
class File:
    """A file of a data set, identified by the end of its path; or all files of a folder, if the name ends in '/'."""

    name: str
    others: tuple[str, ...] = ()  # alternative names
    optional: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.others)


@dataclass(frozen=True)
class Source:
    """A data set. `folders` are subfolders that may contain it; `archives` are patterns of file names."""

    name: str
    about: str
    homepage: str
    downloads: tuple[Download, ...]
    folders: tuple[str, ...]
    archives: tuple[str, ...]
    files: tuple[File, ...]


def _from(address: str, *files: str, checksum: str | None = None) -> tuple[Download, ...]:
    return tuple(Download(f"{address}/{file}", file, checksum) for file in files)


def _files(*names: str, optional: bool = False) -> tuple[File, ...]:
    return tuple(File(name, optional=optional) for name in names)


_LOGIC = [f"{part}{operators}" for part in ("train", "test") for operators in range(13)]
_LENGTHS = [f"test_{shortest}_{shortest + 100}.tsv" for shortest in range(200, 1000, 100)]
_CONTRAST = ["dev_contrast.tsv", "dev_original.tsv", "test_contrast.tsv", "test_original.tsv"]
_COUNTERFACTUAL = [f"{side}/{part}.tsv" for side in ("new", "orig") for part in ("train", "dev", "test")]

_CHECKSUMS: dict[str, dict[str, str]] = json.loads((Path(__file__).parent / "checksums.json").read_bytes())

_ALL = (
    Source(
        name="listops",
        about="ListOps, the original files (Nangia & Bowman 2018)",
        homepage="https://github.com/nyu-mll/spinn/tree/listops-release/python/spinn/data/listops",
        downloads=tuple(
            Download(f"{_GITHUB}/nyu-mll/spinn/listops-release/python/spinn/data/listops/{file}", file, checksum)
            for file, checksum in (
                ("train_d20s.tsv", "md5:f3141589f80dad7de8ce2b6bcbbd306b"),
                ("test_d20s.tsv", "md5:a533eeca66c3b8a9ca7ddc47d4e5254b"),
            )
        ),
        folders=("listops",),
        archives=("listops.*",),
        files=(File("test_d20s.tsv"), File("train_d20s.tsv", optional=True)),
    ),
    Source(
        name="listops-lengths",
        about="ListOps of 200 to 1000 tokens, the original files (Havrylov, Kruszewski & Joulin 2019)",
        homepage="https://github.com/facebookresearch/latent-treelstm/blob/master/data/listops/external/urls.txt",
        downloads=(
            Download(
                "https://www.dropbox.com/sh/fwv82mv0o9w7igj/AAAkUuP7opJgx54Ns0Q57oZXa?dl=1", "listops-lengths.zip"
            ),
        ),
        folders=("listops-lengths", "listops"),
        archives=("listops-lengths.*",),
        files=_files(*_LENGTHS),
    ),
    Source(
        name="listops-lra",
        about="ListOps of the Long Range Arena (Tay et al. 2021), Apache-2.0; 7.7 GB, with all its other tasks",
        homepage="https://github.com/google-research/long-range-arena",
        downloads=_from("https://storage.googleapis.com/long-range-arena", "lra_release.gz"),
        folders=("listops-lra", "listops_lra", "lra_release/listops-1000", "listops-1000", "listops"),
        archives=("lra_release*",),
        files=(File("basic_test.tsv"), *_files("basic_train.tsv", "basic_val.tsv", optional=True)),
    ),
    Source(
        name="logic",
        about="Logical inference (Bowman, Manning & Potts 2015), as of Ordered Memory (Shen et al. 2019), MIT",
        homepage="https://github.com/yikangshen/Ordered-Memory/tree/master/data/propositionallogic",
        downloads=tuple(
            Download(f"{_GITHUB}/yikangshen/Ordered-Memory/master/data/propositionallogic/{file}", file, checksum)
            for file, checksum in _CHECKSUMS["logic"].items()
        ),
        folders=("logic", "logic/propositionallogic", "propositionallogic", "proplogic", "data/propositionallogic"),
        archives=("propositionallogic.*", "logic.*", "Ordered-Memory*"),
        files=_files(*_LOGIC),
    ),
    Source(
        name="sst",
        about="Stanford Sentiment Treebank (Socher et al. 2013)",
        homepage=f"{_STANFORD}/sentiment/",
        downloads=_from(
            f"{_STANFORD}/sentiment",
            "trainDevTestTrees_PTB.zip",
            checksum="sha256:5c613a4f673fc74097d523a2c83f38e0cc462984d847b82c7aaf36b01cbbbfcc",
        ),
        folders=("sst", "sst/trees", "trees"),
        archives=("trainDevTestTrees_PTB.*", "trees.*"),
        files=_files("train.txt", "dev.txt", "test.txt"),
    ),
    Source(
        name="imdb",
        about="IMDB, the Large Movie Review Dataset (Maas et al. 2011)",
        homepage="https://ai.stanford.edu/~amaas/data/sentiment/",
        downloads=_from(
            "https://ai.stanford.edu/~amaas/data/sentiment",
            "aclImdb_v1.tar.gz",
            checksum="sha256:c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe",
        ),
        folders=("imdb", "imdb/aclImdb", "aclImdb", "IMDB", "IMDB/aclImdb"),
        archives=("aclImdb*",),
        files=_files("train/pos/", "train/neg/", "test/pos/", "test/neg/"),
    ),
    Source(
        name="imdb-contrast",
        about="IMDB contrast sets (Gardner et al. 2020)",
        homepage="https://github.com/allenai/contrast-sets/tree/main/IMDb",
        downloads=_from(f"{_GITHUB}/allenai/contrast-sets/main/IMDb/data", *_CONTRAST),
        folders=("imdb-contrast", "imdb/contrast", "contrast", "contrast-sets/IMDb/data", "IMDb/data", "imdb", "IMDB"),
        archives=("contrast.*", "contrast-sets*"),
        files=_files(*_CONTRAST),
    ),
    Source(
        name="imdb-counterfactual",
        about="Counterfactually augmented IMDB (Kaushik, Hovy & Lipton 2020), Apache-2.0",
        homepage="https://github.com/acmi-lab/counterfactually-augmented-data/tree/master/sentiment",
        downloads=_from(
            f"{_GITHUB}/acmi-lab/counterfactually-augmented-data/24d94ba4fccde76af36b051d5ca8acb9d5b8f084/sentiment",
            *_COUNTERFACTUAL,
        ),
        folders=(
            *("imdb-counterfactual", "imdb/counterfactual", "counterfactual", "imdb", "IMDB"),
            *("counterfactually-augmented-data/sentiment", "sentiment"),
        ),
        archives=("counterfactual*",),
        files=(
            File("new/test.tsv", ("test_counterfactual.tsv",)),
            *_files(*(file for file in _COUNTERFACTUAL if file != "new/test.tsv"), optional=True),
        ),
    ),
    Source(
        name="multinli",
        about="MultiNLI 1.0 (Williams, Nangia & Bowman 2018), mostly under the licence of the open ANC",
        homepage="https://cims.nyu.edu/~sbowman/multinli/",
        downloads=_from(
            "https://cims.nyu.edu/~sbowman/multinli",
            "multinli_1.0.zip",
            checksum="sha256:049f507b9e36b1fcb756cfd5aeb3b7a0cfcb84bf023793652987f7e7e0957822",
        ),
        folders=(
            *("multinli", "multinli_1.0", "multinli/multinli_1.0", "MNLI", "MNLI/multinli_1.0"),
            *("nli", "nli/multinli_1.0", "nli/multinli"),
        ),
        archives=("multinli.*", "multinli_1.0.*"),
        files=(
            File("multinli_1.0_train.jsonl", ("multinli_1.0_train.subset.jsonl",)),
            File("multinli_1.0_dev_matched.jsonl"),
            File("multinli_1.0_dev_mismatched.jsonl", ("multinli_1.0_dev_mismatched.sample.jsonl",)),
        ),
    ),
    Source(
        name="nli-stress",
        about="Stress tests of natural language inference (Naik et al. 2018)",
        homepage="https://abhilasharavichander.github.io/NLI_StressTest/",
        downloads=(
            Download(
                "https://drive.google.com/uc?export=download&id=1faGA5pHdu5Co8rFhnXn-6jbBYC2R1dhw", "StressTests.zip"
            ),
        ),
        folders=("nli-stress", "nli-stress/StressTests", "StressTests", "nli", "nli/StressTests", "MNLI"),
        archives=("*[Ss]tress*",),
        files=tuple(
            File(f"multinli_0.9_{name}.jsonl", (f"{folder}/multinli_0.9_{name}.jsonl",), optional=True)
            for folder, names in _STRESS.items()
            for name in names
        ),
    ),
    Source(
        name="snli",
        about="SNLI 1.0 (Bowman, Angeli, Potts & Manning 2015), CC BY-SA 4.0",
        homepage=f"{_STANFORD}/projects/snli/",
        downloads=_from(
            f"{_STANFORD}/projects/snli",
            "snli_1.0.zip",
            checksum="sha256:afb3d70a5af5d8de0d9d81e2637e0fb8c22d1235c2749d83125ca43dab0dbd3e",
        ),
        folders=("snli", "snli_1.0", "snli/snli_1.0", "SNLI", "nli", "nli/snli_1.0", "nli/snli"),
        archives=("snli.*", "snli_1.0.*"),
        files=(File("snli_1.0_dev.jsonl"), *_files("snli_1.0_train.jsonl", "snli_1.0_test.jsonl", optional=True)),
    ),
    Source(
        name="sick",
        about="SICK (Marelli et al. 2014), CC BY-NC-SA 3.0",
        homepage="https://zenodo.org/records/2787612",
        downloads=_from(
            "https://zenodo.org/records/2787612/files",
            "SICK.zip",
            checksum="sha256:da272af924399fc2de4889ed55383e38822c10d16c4a949a89d597d09a0b7912",
        ),
        folders=("sick", "SICK", "nli", "nli/sick", "nli/SICK"),
        archives=("sick.*", "SICK.*"),
        # The authors have one table of all three; copies in the format of MultiNLI have a file each.
        files=tuple(File(f"sick_{part}.jsonl", ("SICK.txt",)) for part in ("train", "dev", "test")),
    ),
    Source(
        name="glove-6b",
        about="GloVe vectors from 6 billion tokens (Pennington, Socher & Manning 2014), public domain (PDDL 1.0)",
        homepage=f"{_STANFORD}/projects/glove/",
        downloads=_from(f"{_STANFORD}/data", "glove.6B.zip", checksum="md5:056ea991adb4740ac6bf1b6d9b50408b"),
        folders=("glove", "glove/glove.6B", "glove.6B", "vectors"),
        archives=("glove.6B.zip",),
        files=tuple(
            File(f"glove.6B.{width}d.txt", (f"glove_6B_{width}d_taskvocab.npz",), optional=True)
            for width in (50, 100, 200, 300)
        ),
    ),
    Source(
        name="glove-840b",
        about="GloVe vectors from 840 billion tokens (Pennington, Socher & Manning 2014), public domain (PDDL 1.0)",
        homepage=f"{_STANFORD}/projects/glove/",
        downloads=_from(f"{_STANFORD}/data", "glove.840B.300d.zip", checksum="md5:2ffafcc9f9ae46fc8c95f32372976137"),
        folders=("glove", "glove/glove.840B.300d", "glove.840B.300d", "vectors"),
        archives=("glove.840B.300d.zip",),
        files=_files("glove.840B.300d.txt"),
    ),
)

SOURCES = {source.name: source for source in _ALL}
