"""Original files: found in all usual layouts, read identically from folders and archives, and rejected if damaged."""

import bz2
import csv
import gzip
import io
import lzma
import os
import re
import tarfile
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import real_files
from beamtree.data.raw import SOURCES, Download, File, NotFound, RawFiles, Source, download_folder, find, reading

TOY = Source(
    name="toy",
    about="a toy",
    homepage="https://example.org/toy",
    downloads=(Download("https://example.org/toy.zip", "toy.zip"),),
    folders=("toy", "toy/inner"),
    archives=("toy.*",),
    files=(File("train.txt"), File("dev.txt", ("trial.txt",)), File("pos/"), File("extra.txt", optional=True)),
)
CONTENT = {
    "train.txt": b"one\r\ntwo \xc3\xa9\n\nfour",
    "trial.txt": b"\xef\xbb\xbfa\tb\n",
    "pos/0_9.txt": b"good",
    "pos/1_8.txt": b"",
    "other.txt": b"of no account",
}


def make_folder(path: Path, content: dict[str, bytes]) -> None:
    for name, data in content.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)


def make_zip(path: Path, content: dict[str, bytes], top: str = "top/") -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"__MACOSX/{top}._train.txt", b"not this one")
        for name, data in content.items():
            archive.writestr(top + name, data)


def make_tar(path: Path, content: dict[str, bytes], top: str = "./top/") -> None:
    modes = {".gz": "w:gz", ".tgz": "w:gz", ".xz": "w:xz", ".bz2": "w:bz2"}
    with tarfile.open(path, modes.get(path.suffix, "w")) as archive:
        folder = tarfile.TarInfo(f"{top}pos")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        link = tarfile.TarInfo(f"{top}extra.txt")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
        for name, data in content.items():
            member = tarfile.TarInfo(top + name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


def packed(content: dict[str, bytes], ending: str, pack: Callable[[bytes], bytes]) -> dict[str, bytes]:
    return {
        name if "/" in name else name + ending: data if "/" in name else pack(data) for name, data in content.items()
    }


MAKERS: dict[str, Callable[[Path, dict[str, bytes]], None]] = {
    "folder": lambda root, content: make_folder(root / "toy", content),
    "inner folder": lambda root, content: make_folder(root / "toy" / "inner", content),
    "bare folder": make_folder,
    "files.xz": lambda root, content: make_folder(root / "toy", packed(content, ".xz", lzma.compress)),
    "files.gz": lambda root, content: make_folder(root, packed(content, ".gz", gzip.compress)),
    "files.bz2": lambda root, content: make_folder(root, packed(content, ".bz2", bz2.compress)),
    "zip": lambda root, content: make_zip(root / "toy.zip", content),
    "tar": lambda root, content: make_tar(root / "toy.tar", content),
    "tar.gz": lambda root, content: make_tar(root / "toy.tar.gz", content),
    "tgz": lambda root, content: make_tar(root / "toy.tgz", content),
    "tar.xz": lambda root, content: make_tar(root / "toy.tar.xz", content),
    "tar.bz2": lambda root, content: make_tar(root / "toy.tar.bz2", content),
}
LABELS = {
    "folder": "toy/train.txt",
    "inner folder": "toy/inner/train.txt",
    "bare folder": "train.txt",
    "files.xz": "toy/train.txt.xz",
    "files.gz": "train.txt.gz",
    "files.bz2": "train.txt.bz2",
    **{ending: f"toy.{ending}:top/train.txt" for ending in ("zip", "tar", "tar.gz", "tgz", "tar.xz", "tar.bz2")},
}
ARCHIVES = ["toy.zip", "toy.tar", "toy.tar.gz", "toy.tar.xz", "toy.tar.bz2"]


def make_archive(path: Path, content: dict[str, bytes]) -> None:
    (make_zip if path.suffix == ".zip" else make_tar)(path, content)


def all_of(originals: RawFiles) -> tuple[list[str], str, dict[str, bytes]]:
    return list(originals.lines("train.txt")), originals.text("dev.txt").read(), dict(originals.members())


def outcome(root: Path) -> tuple[list[str], str, dict[str, bytes]] | str:
    """The content of all files, or the error message."""
    try:
        return all_of(find(TOY, [root]))
    except ValueError as error:
        return f"{type(error).__name__} {error}"


def one_line(error: pytest.ExceptionInfo[ValueError]) -> str:
    assert type(error.value) in (ValueError, NotFound)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("way", MAKERS)
def test_files_are_the_same_however_they_are_packed(tmp_path: Path, way: str) -> None:
    MAKERS[way](tmp_path, CONTENT)
    before = sorted(tmp_path.rglob("*"))
    originals = find(TOY, [tmp_path])
    assert originals.name == "toy"
    assert list(originals.lines("train.txt")) == ["one", "two é", "", "four"]
    assert list(originals.lines("dev.txt")) == ["a\tb"]
    assert originals.text("train.txt").read() == "one\r\ntwo é\n\nfour"
    assert originals.open("pos/0_9.txt").read() == b"good"
    assert (originals.has("train.txt"), originals.has("extra.txt"), originals.has("nothing")) == (True, False, False)
    assert "trial.txt" in originals.actual("dev.txt")
    assert originals.label("train.txt") == f"{tmp_path}/{LABELS[way]}"
    found = dict(originals.members())
    assert found == {name: CONTENT[name] for name in ("train.txt", "trial.txt", "pos/0_9.txt", "pos/1_8.txt")}
    assert dict(originals.members(lambda name: name.startswith("pos/0"))) == {"pos/0_9.txt": b"good"}
    assert sorted(tmp_path.rglob("*")) == before  # nothing was unpacked


@pytest.mark.parametrize("way", ["folder", "zip", "tar.xz"])
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n\ufeff"))))
def test_lines_end_at_line_feeds_and_nowhere_else(
    tmp_path_factory: pytest.TempPathFactory, way: str, lines: list[str]
) -> None:
    root = tmp_path_factory.mktemp("root")
    MAKERS[way](root, {**CONTENT, "train.txt": "".join(f"{line}\n" for line in lines).encode()})
    assert list(find(TOY, [root]).lines("train.txt")) == lines


def test_text_keeps_the_line_ends_that_a_csv_field_holds(tmp_path: Path) -> None:
    rows = [["Sentiment", "Text"], ["Positive", "two\r\nlines"], ["Negative", "a \x85 \u2028 b"]]
    buffer = io.StringIO(newline="")
    csv.writer(buffer, delimiter="\t").writerows(rows)
    make_zip(tmp_path / "toy.zip", {**CONTENT, "train.txt": buffer.getvalue().encode()})
    assert list(csv.reader(find(TOY, [tmp_path]).text("train.txt"), delimiter="\t")) == rows


def counted_passes(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """A list that gets an item whenever a tar is decompressed."""
    passes: list[Path] = []
    unpacked = reading._unpacked
    monkeypatch.setattr(reading, "_unpacked", lambda path: passes.append(path) or unpacked(path))
    return passes


def test_a_large_file_of_a_tar_is_streamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    large = b"".join(b"%d\n" % number for number in range(50_000))
    make_tar(tmp_path / "toy.tar.gz", {**CONTENT, "train.txt": large})
    monkeypatch.setattr(reading, "_KEPT", 1000)
    passes = counted_passes(monkeypatch)
    originals = find(TOY, [tmp_path])
    for _ in range(2):
        assert sum(int(line) for line in originals.lines("train.txt")) == sum(range(50_000))
    assert len(passes) == 3  # one of them lists the files
    assert list(originals.lines("dev.txt")) == ["a\tb"]
    assert next(originals.lines("train.txt")) == "0"  # without reading the rest


def test_a_small_tar_is_unpacked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_tar(tmp_path / "toy.tar.xz", CONTENT)
    passes = counted_passes(monkeypatch)
    originals = find(TOY, [tmp_path])
    assert not passes  # finding it reads nothing
    originals.fingerprint()
    assert not passes
    for _ in range(2):
        for file in ("train.txt", "dev.txt"):
            list(originals.lines(file))
    assert originals.has("extra.txt") is False
    assert len(passes) == 1


def test_a_path_that_leads_out_of_an_archive_leads_nowhere(tmp_path: Path) -> None:
    make_tar(tmp_path / "toy.tar", {**CONTENT, "../../evil.txt": b"x"}, top="../../")
    originals = find(TOY, [tmp_path])
    assert next(originals.lines("train.txt")) == "one"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["toy.tar"]


@pytest.mark.parametrize("ending", ["zip", "tar.xz"])
def test_an_archive_that_lacks_a_file_is_named_with_it(tmp_path: Path, ending: str) -> None:
    content = {name: data for name, data in CONTENT.items() if name != "trial.txt"}
    make_archive(tmp_path / f"toy.{ending}", content)
    for read in (lambda found: next(found.lines("train.txt")), lambda found: dict(found.members())):
        with pytest.raises(ValueError, match=rf"toy\.{ending} lacks dev\.txt or trial\.txt") as caught:
            read(find(TOY, [tmp_path]))
        one_line(caught)
    if ending == "zip":  # which has a list of its files
        with pytest.raises(ValueError, match="lacks"):
            find(TOY, [tmp_path])


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    make_folder(tmp_path, CONTENT)
    originals = find(TOY, [tmp_path])
    for file in ("extra.txt", "nothing"):
        with pytest.raises(ValueError, match=f"it has no file {file}"):
            next(originals.lines(file))


@pytest.mark.parametrize("name", ARCHIVES)
def test_a_cut_archive_never_passes_for_a_whole_one(tmp_path: Path, name: str) -> None:
    make_archive(tmp_path / name, CONTENT)
    whole = (tmp_path / name).read_bytes()
    expected = all_of(find(TOY, [tmp_path]))
    sizes = [0, 1, 5, *range(7, len(whole), max(len(whole) // 40, 1)), len(whole) - 1]
    outcomes = []
    for size in sizes:
        (tmp_path / name).write_bytes(whole[:size])
        outcomes.append(outcome(tmp_path))
    refused = [found for found in outcomes if found != expected]  # of a tar, the last zeros may be missing
    assert len(refused) > 5
    for complaint in refused:
        assert isinstance(complaint, str), "a part was read as if it were all"
        assert re.fullmatch(rf"ValueError .*{name}.*", complaint)


@pytest.mark.parametrize("name", [name for name in ARCHIVES if name != "toy.tar"])  # which has no checksum
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_changed_bit_never_changes_what_is_read(
    tmp_path_factory: pytest.TempPathFactory, name: str, place: float, bit: int
) -> None:
    root = tmp_path_factory.mktemp("root")
    make_archive(root / name, CONTENT)
    expected = all_of(find(TOY, [root]))
    content = bytearray((root / name).read_bytes())
    content[int(place * len(content))] ^= 1 << bit
    (root / name).write_bytes(content)
    found = outcome(root)
    if isinstance(found, str):
        assert re.fullmatch(rf"ValueError .*{name}.*", found)
    elif name == "toy.zip":  # whose list of names has no checksum
        assert found[:2] == expected[:2]
        assert found[2].items() <= expected[2].items()
    else:
        assert found == expected


@pytest.mark.parametrize("ending", [".xz", ".gz", ".bz2"])
def test_a_damaged_packed_file_is_refused(tmp_path: Path, ending: str) -> None:
    pack = {".xz": lzma.compress, ".gz": gzip.compress, ".bz2": bz2.compress}[ending]
    make_folder(tmp_path, packed(CONTENT, ending, pack))
    for damaged in (pack(CONTENT["train.txt"])[:-3], b"no packed file", b""):
        (tmp_path / f"train.txt{ending}").write_bytes(damaged)
        originals = find(TOY, [tmp_path])
        if damaged or ending == ".xz":
            with pytest.raises(ValueError, match=rf"train\.txt{ending}: the file is damaged, truncated") as caught:
                list(originals.lines("train.txt"))
            one_line(caught)


def test_what_is_no_archive_is_refused(tmp_path: Path) -> None:
    (tmp_path / "toy.zip").write_text("<html>404</html>")
    with pytest.raises(ValueError, match=r"toy\.zip: the file is damaged, truncated or of an unknown kind") as caught:
        next(find(TOY, [tmp_path]).lines("train.txt"))
    one_line(caught)


def test_what_is_not_utf8_is_refused_with_its_line(tmp_path: Path) -> None:
    make_folder(tmp_path, {**CONTENT, "train.txt": b"good\nb\xe9d\n"})
    originals = find(TOY, [tmp_path])
    with pytest.raises(ValueError, match=r"train\.txt, line 2: this is not UTF-8 text \(.* at byte 1\)") as caught:
        list(originals.lines("train.txt"))
    one_line(caught)
    with pytest.raises(ValueError, match=r"train\.txt: this is not UTF-8 text \(.* at byte 6\)") as caught:
        originals.text("train.txt")
    one_line(caught)


def test_the_fingerprint_follows_the_files(tmp_path: Path) -> None:
    for way in ("folder", "tar.gz"):
        root = tmp_path / way
        root.mkdir()
        MAKERS[way](root, CONTENT)
        seen = [find(TOY, [root]).fingerprint()]
        assert find(TOY, [root]).fingerprint() == seen[0]
        root = root.rename(tmp_path / f"{way} moved")
        assert find(TOY, [root]).fingerprint() == seen[0]
        changed = root / "toy" / "pos" / "1_8.txt" if way == "folder" else root / "toy.tar.gz"
        os.utime(changed, ns=(0, 1))
        seen.append(find(TOY, [root]).fingerprint())
        changed.write_bytes(changed.read_bytes() + b" ")
        os.utime(changed, ns=(0, 1))
        seen.append(find(TOY, [root]).fingerprint())
        assert len(set(seen)) == 3


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path, Path]:
    """Two folders in BEAMTREE_DATA, and the cache."""
    first, second, cache = (tmp_path / name for name in ("first", "second", "cache"))
    for folder in (first, second):
        folder.mkdir()
    monkeypatch.setenv("BEAMTREE_DATA", f"{first}{os.pathsep}{os.pathsep}{second}")
    monkeypatch.setenv("BEAMTREE_CACHE", str(cache))
    return first, second, cache


def test_folders_are_searched_in_their_order(places: tuple[Path, Path, Path]) -> None:
    _, second, cache = places
    whole = {**CONTENT, "extra.txt": b"1"}
    make_folder(cache / "originals" / "toy", whole)
    assert find(TOY).where == cache / "originals" / "toy" == download_folder(TOY)
    make_folder(second, whole)
    assert find(TOY).where == second
    make_folder(second / "toy", whole)  # the source's subfolder has priority
    assert find(TOY).where == second / "toy"
    assert find(TOY, [cache / "originals" / "toy"]).where == cache / "originals" / "toy"


def test_a_folder_with_all_files_is_preferred_to_one_with_enough(places: tuple[Path, Path, Path]) -> None:
    first, second, cache = places
    make_folder(first / "toy", CONTENT)
    assert find(TOY).where == first / "toy"
    make_folder(second / "toy", {**CONTENT, "extra.txt": b"1"})
    assert find(TOY).where == second / "toy"
    (second / "toy" / "extra.txt").unlink()
    assert find(TOY).where == first / "toy"
    (first / "toy" / "train.txt").unlink()
    assert find(TOY).where == second / "toy"
    (cache / "originals" / "toy").mkdir(parents=True)
    make_zip(cache / "originals" / "toy" / "toy.zip", CONTENT)
    assert find(TOY).where.name == "toy.zip"


def test_half_a_download_is_not_taken_for_the_file(places: tuple[Path, Path, Path]) -> None:
    make_zip(places[0] / "toy.zip", CONTENT)
    (places[0] / "toy.zip").rename(places[0] / "toy.zip.part")
    with pytest.raises(ValueError, match="toy is not in"):
        find(TOY)


def test_what_is_missing_is_told_with_how_to_get_it(places: tuple[Path, Path, Path]) -> None:
    first, second, cache = places
    with pytest.raises(ValueError, match="toy is not in") as caught:
        find(TOY)
    message = one_line(caught)
    for part in (first, second, cache / "originals" / "toy", "beamtree data get toy", TOY.homepage, "BEAMTREE_DATA"):
        assert str(part) in message
    make_folder(second / "toy", {"train.txt": b""})
    with pytest.raises(ValueError, match=rf"^{second}/toy lacks dev\.txt or trial\.txt, pos/: 'beamtree data get toy'"):
        find(TOY)


def test_a_folder_that_does_not_exist_is_named(places: tuple[Path, Path, Path]) -> None:
    places[1].rmdir()
    with pytest.raises(ValueError, match=f"BEAMTREE_DATA names '{places[1]}', which is not a folder") as caught:
        find(TOY)
    one_line(caught)
    with pytest.raises(ValueError, match=f"^{places[1]} is not a folder: it must be a folder with toy$"):
        find(TOY, [places[1]])


@pytest.mark.parametrize("name", SOURCES)
def test_the_table_of_sources_is_sound(name: str) -> None:
    source = SOURCES[name]
    assert source.name == name
    assert "\n" not in source.about
    assert source.homepage.startswith("https://")
    assert source.downloads
    for download in source.downloads:
        assert download.url.startswith("https://")
        assert not Path(download.file).is_absolute()
        assert ".." not in Path(download.file).parts
        assert download.checksum is None or re.fullmatch("sha256:[0-9a-f]{64}|md5:[0-9a-f]{32}", download.checksum)
    assert len({download.file for download in source.downloads}) == len(source.downloads)


@pytest.mark.parametrize("name", SOURCES)
def test_what_is_downloaded_is_found(tmp_path: Path, name: str) -> None:
    source = SOURCES[name]
    folder = tmp_path / source.name
    content = {file.name + ("0_1.txt" if file.name.endswith("/") else ""): b"x" for file in source.files}
    folder.mkdir()
    for download in source.downloads:
        path = folder / download.file
        if path.suffix in (".zip", ".gz"):
            make_archive(path, content)
        else:
            make_folder(folder, {download.file: b"x"})
    originals = find(source, [folder])
    assert {found for found, _ in originals.members()} == set(content)


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("sst", ["trees/train.txt", "trees/dev.txt", "trees/test.txt"]),
        ("imdb", [f"aclImdb/{part}/{side}/0_9.txt" for part in ("train", "test") for side in ("pos", "neg", "unsup")]),
        (
            "multinli",
            [f"multinli_1.0/multinli_1.0_{part}.jsonl" for part in ("train", "dev_matched", "dev_mismatched")],
        ),
        ("snli", [f"snli_1.0/snli_1.0_{part}.jsonl" for part in ("train", "dev", "test")]),
        ("sick", ["SICK/SICK.txt", "SICK/readme.txt"]),
        (
            "imdb-contrast",
            [f"IMDb/data/{part}_{kind}.tsv" for part in ("dev", "test") for kind in ("original", "contrast")],
        ),
        ("imdb-counterfactual", ["counterfactually-augmented-data/sentiment/new/test.tsv"]),
        ("nli-stress", ["StressTests/Negation/multinli_0.9_negation_matched.jsonl"]),
        ("listops-lra", ["lra_release/listops-1000/basic_test.tsv"]),
        ("glove-6b", ["glove/glove.6B.300d.txt"]),
    ],
)
def test_archives_unpacked_in_the_usual_way_are_found(tmp_path: Path, name: str, files: list[str]) -> None:
    make_folder(tmp_path, dict.fromkeys(files, b"x"))
    originals = find(SOURCES[name], [tmp_path])
    found = {found.rpartition("/")[2] for found, _ in originals.members()}
    assert found == {Path(file).name for file in files} - {"readme.txt"}
    assert not any("unsup" in found for found, _ in originals.members())


@pytest.fixture(scope="module")
def real() -> Path:
    return real_files.find("sst").parent


COUNTS = {
    "listops": {"test_d20s.tsv": 10_000},
    "logic": {"train6": 32_952, "test8": 3_347, "test12": 853},
    "sst": {"train.txt": 8_544, "dev.txt": 1_101, "test.txt": 2_210},
    "imdb-contrast": {"dev_contrast.tsv": 101, "test_contrast.tsv": 489},
    "imdb-counterfactual": {"new/test.tsv": 489, "orig/test.tsv": 489},
    "multinli": {"multinli_1.0_dev_matched.jsonl": 9_815},
    "snli": {"snli_1.0_dev.jsonl": 9_842},
    "sick": {"sick_train.jsonl": 4_439, "sick_dev.jsonl": 495, "sick_test.jsonl": 4_906},
}


def needed(name: str, real: Path) -> RawFiles:
    try:
        return find(SOURCES[name], [real])
    except ValueError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("name", COUNTS)
def test_the_real_files_are_found_and_read(real: Path, name: str) -> None:
    originals = needed(name, real)
    assert {file: sum(1 for _ in originals.lines(file)) for file in COUNTS[name]} == COUNTS[name]


@pytest.mark.usefixtures("shape_checks_off")
def test_the_real_reviews_are_read_in_one_pass(real: Path) -> None:
    originals = needed("imdb", real)
    counts = Counter(name.rpartition("/")[0] for name, content in originals.members() if content)
    assert counts == dict.fromkeys(("train/pos", "train/neg", "test/pos", "test/neg"), 12_500)
