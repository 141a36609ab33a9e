"""Chromium for the tests: found on this machine, or installed next to Python from the package registry.

    python tests/web/browser.py                 # install it if needed, and print its path

The browser is the headless Chromium of the npm package @sparticuz/chromium. It needs neither root nor npm: the package
is downloaded by its URL, verified by its digest, and unpacked by the Node that is part of Playwright. Set
BEAMTREE_BROWSER to the path of another browser to use it instead.
"""

import base64
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
from pathlib import Path

VERSION = "153.0.0"
DIGEST = "jiGWqSvPMdu4+P9TilYqAR7yEGPEHINx+lCvE/NqNO/EHYzF/x1hUiI5T6ioVIt7dEy7n88byyT0vk+dnsgQwA=="  # SHA-512, as npm's
REGISTRY = os.environ.get("NPM_CONFIG_REGISTRY", "https://registry.npmjs.org").rstrip("/")
FOLDER = Path(sys.prefix) / "browser" / VERSION
NAMES = ("chromium", "chromium-browser", "google-chrome")

# The files in the package are compressed with Brotli, which Python cannot read but Node can.
_UNPACK = """
const { readFileSync, writeFileSync } = require("node:fs");
const { brotliDecompressSync } = require("node:zlib");
for (const file of process.argv.slice(1)) writeFileSync(file.slice(0, -3), brotliDecompressSync(readFileSync(file)));
"""
# A CI machine may have no fonts, and then its browser shows no text.
_FONTS = '<?xml version="1.0"?>\n<fontconfig><dir>/usr/share/fonts</dir><dir>{}</dir></fontconfig>\n'


def find() -> str | None:
    """The path of the browser; None if there is none."""
    named = os.environ.get("BEAMTREE_BROWSER")
    if named:
        return named
    if (FOLDER / "chromium").exists():
        return str(FOLDER / "chromium")
    return next(filter(None, map(shutil.which, NAMES)), None)


def environment() -> dict[str, str]:
    """Environment variables with which the installed browser finds its libraries and fonts."""
    if find() != str(FOLDER / "chromium"):
        return dict(os.environ)
    libraries = filter(None, [os.environ.get("LD_LIBRARY_PATH"), str(FOLDER / "lib")])
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(libraries), "FONTCONFIG_FILE": str(FOLDER / "fonts.conf")}


def install() -> str:
    """Install the browser atomically."""
    import playwright

    address = f"{REGISTRY}/@sparticuz/chromium/-/chromium-{VERSION}.tgz"
    with urllib.request.urlopen(address, timeout=300) as answer:
        package = answer.read()
    if base64.b64encode(hashlib.sha512(package).digest()).decode() != DIGEST:
        raise SystemExit(f"{address} is not the file that it should be: its SHA-512 differs")
    FOLDER.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER.parent) as making:
        folder = Path(making) / VERSION
        with tarfile.open(fileobj=io.BytesIO(package)) as files:
            parts = [part for part in files if part.name.startswith("package/bin/") and part.name.endswith(".br")]
            for part in parts:
                part.name = Path(part.name).name
                files.extract(part, folder, filter="data")
        compressed = sorted(map(str, folder.glob("*.br")))
        node = Path(playwright.__file__).parent / "driver" / "node"
        subprocess.run([node, "-e", _UNPACK, *compressed], check=True)
        for archive in folder.glob("*.tar"):
            with tarfile.open(archive) as files:
                files.extractall(folder, filter="data")
            archive.unlink()
        for file in compressed:
            Path(file).unlink()
        (folder / "fonts.conf").write_text(_FONTS.format(FOLDER / "fonts"))
        (folder / "chromium").chmod(0o755)
        folder.replace(FOLDER)
    return str(FOLDER / "chromium")


if __name__ == "__main__":
    print(find() or install())
