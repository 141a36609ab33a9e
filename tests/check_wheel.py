"""Check the distributions that `make dist` builds, and use the wheel as someone who has no clone.

    python tests/check_wheel.py dist                    # reuse the packages installed here, for speed
    python tests/check_wheel.py dist --dependencies     # install them too, as on a fresh machine

The wheel must have exactly the files of the package, the sdist all files of the repository. In a new environment in a
temporary folder, the first Python example of the README and `beamtree parse` must run.
"""

import os
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

from doc_pages import ROOT, blocks

FOREIGN = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")  # not passed on to the new environment
LOCATION = "import beamtree, sys; print(beamtree.__file__, beamtree.__version__); print(sys.path)"
PARSE = ("parse", "listops-bt-grc", "[MAX 2 9 [MIN 4 7 ] 0 ]", "--brackets")


def tracked() -> set[str]:
    """The files of the repository: those that git does not ignore."""
    listed = subprocess.check_output(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT)
    return {name for name in listed.decode().splitlines() if (ROOT / name).is_file()}


def check_contents(wheel: Path, sdist: Path) -> None:
    files = tracked()
    package = {name.removeprefix("src/") for name in files if name.startswith("src/beamtree/")}
    with zipfile.ZipFile(wheel) as archive:
        inside = {name for name in archive.namelist() if ".dist-info/" not in name}
    if inside != package:
        sys.exit(f"{wheel.name} has other files than src/beamtree: {sorted(inside ^ package)}")
    with tarfile.open(sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    if missing := files - inside:
        sys.exit(f"{sdist.name} lacks {sorted(missing)}: see tool.hatch.build.targets.sdist in pyproject.toml")
    print(f"{wheel.name}: {len(package)} files; {sdist.name}: {len(inside)} files")


def check_installed(wheel: Path, folder: Path, dependencies: bool) -> None:
    venv.create(folder / "env", with_pip=True)
    binaries = folder / "env" / "bin"
    environment = {name: value for name, value in os.environ.items() if name not in FOREIGN}
    environment |= {"BEAMTREE_CACHE": str(folder / "cache"), "HF_HUB_OFFLINE": "1"}

    def run(*command: str | Path) -> str:
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
        return done.stdout

    run(binaries / "pip", "install", *(() if dependencies else ("--no-deps", "--no-index")), wheel)
    if not dependencies:
        # Found after the environment's own packages. An editable beamtree there has a .pth file, which is not read.
        site = sysconfig.get_path("purelib", vars={"base": str(folder / "env")})
        Path(site, "reuse.pth").write_text(sysconfig.get_path("purelib") + "\n")
    where = run(binaries / "python", "-c", LOCATION)
    if not where.startswith(str(folder.resolve())) or str(ROOT / "src") in where:
        sys.exit(f"beamtree is not imported from the wheel: {where}")
    (folder / "readme.py").write_text(blocks(ROOT / "README.md", "python")[0])
    run(binaries / "python", "readme.py")
    tree = run(binaries / "beamtree", *PARSE)
    if "([MAX 2)" not in tree:
        sys.exit(f"beamtree {' '.join(PARSE)} printed\n{tree}")
    print(where.splitlines()[0], tree, sep="\n", end="")


if __name__ == "__main__":
    (wheel,), (sdist,) = (list(Path(sys.argv[1]).resolve().glob(f"*{ending}")) for ending in (".whl", ".tar.gz"))
    check_contents(wheel, sdist)
    with tempfile.TemporaryDirectory() as temporary:
        check_installed(wheel, Path(temporary).resolve(), "--dependencies" in sys.argv[2:])
