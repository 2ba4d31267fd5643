"""Packages from the registry of npm, for tests only: each is pinned by its version and the hash of its contents, and
only the files that are needed are unpacked, into a folder that git ignores. Nothing of them is run by npm."""

from __future__ import annotations

import base64
import hashlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple


class Package(NamedTuple):
    name: str
    version: str
    integrity: str
    wanted: str
    """What is taken from it: a file, or a folder that ends with a slash; within the folder ``package``."""
    becomes: str


def fetch(packages: Iterable[Package], folder: Path) -> None:
    for package in packages:
        mark = folder / f"{package.becomes}.version"
        if mark.exists() and mark.read_text() == package.integrity:
            continue
        mark.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as scratch:
            words = ["npm", "pack", "--silent", "--ignore-scripts", "--pack-destination", scratch]
            subprocess.run([*words, f"{package.name}@{package.version}"], check=True, stdout=subprocess.DEVNULL)
            [archive] = Path(scratch).iterdir()
            digest = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
            if f"sha512-{digest}" != package.integrity:
                sys.exit(f"{package.name} {package.version} is not what it was: sha512-{digest}")
            unpack(archive, f"package/{package.wanted}", folder / package.becomes)
        mark.write_text(package.integrity)
        print(f"{package.name} {package.version}")


def unpack(archive: Path, wanted: str, target: Path) -> None:
    """Take one file or folder out of an archive, whose hash is known. Python 3.11.2 has no filters for that."""
    with tarfile.open(archive) as tar, tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        for member in tar.getmembers():
            if member.isfile() and member.name.startswith(wanted):
                file, content = Path(scratch) / member.name, tar.extractfile(member)
                assert content is not None
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content.read())
        if target.is_dir():
            shutil.rmtree(target)
        (Path(scratch) / wanted).rename(target)
