"""GitHub's own description of its API, from the registry of npm, for tests only.

``make github-schema`` fetches it into a folder that git ignores: the
OpenAPI description, the GraphQL schema, and the reference implementation of GraphQL that checks queries against it.
Each package is pinned by its version and the hash of its contents, and only the files that are needed are unpacked.
"""

from __future__ import annotations

import base64
import hashlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parents[3] / ".github-schema"
MISSING = "GitHub's description is not here: make github-schema fetches it (it needs npm)"


class Package(NamedTuple):
    name: str
    version: str
    integrity: str
    wanted: str
    """What is taken from it: a file, or a folder that ends with a slash; within the folder ``package``."""
    becomes: str


PACKAGES = (
    Package(
        "@octokit/openapi",
        "23.0.2",
        "sha512-pV8M7L9GY23AybNvTmo2nyjmpmnt6+2sRE/tqr0ZLQcPS4lnw7u5eZGNmwRNkBC3D7gZXbFx5AHzLUVRBXGDhg==",
        "generated/api.github.com.json",
        "openapi.json",
    ),
    Package(
        "@octokit/graphql-schema",
        "15.26.1",
        "sha512-RFDC2MpRBd4AxSRvUeBIVeBU7ojN/SxDfALUd7iVYOSeEK3gZaqR2MGOysj4Zh2xj2RY5fQAUT+Oqq7hWTraMA==",
        "schema.graphql",
        "schema.graphql",
    ),
    Package(
        "graphql",
        "16.15.0",
        "sha512-32kz9FecohDiC/tgcViwnRXM7HFBVTPiW7pHO+DikKOI5KjhU/jNULOReXsrFqt2WAYbE9xFXsTffJw6iTO8qw==",
        "",
        "graphql",
    ),
)


def fetch() -> None:
    FOLDER.mkdir(exist_ok=True)
    for package in PACKAGES:
        mark = FOLDER / f"{package.becomes}.version"
        if mark.exists() and mark.read_text() == package.integrity:
            continue
        with tempfile.TemporaryDirectory() as scratch:
            words = ["npm", "pack", "--silent", "--ignore-scripts", "--pack-destination", scratch]
            subprocess.run([*words, f"{package.name}@{package.version}"], check=True, stdout=subprocess.DEVNULL)
            [archive] = Path(scratch).iterdir()
            digest = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
            if f"sha512-{digest}" != package.integrity:
                sys.exit(f"{package.name} {package.version} is not what it was: sha512-{digest}")
            unpack(archive, package)
        mark.write_text(package.integrity)
        print(f"{package.name} {package.version}")


def unpack(archive: Path, package: Package) -> None:
    with tarfile.open(archive) as tar, tempfile.TemporaryDirectory(dir=FOLDER) as scratch:
        wanted = f"package/{package.wanted}"
        members = [member for member in tar.getmembers() if member.name.startswith(wanted)]
        tar.extractall(scratch, members=members, filter="data")
        target = FOLDER / package.becomes
        if target.is_dir():
            shutil.rmtree(target)
        (Path(scratch) / wanted).rename(target)


if __name__ == "__main__":
    fetch()
