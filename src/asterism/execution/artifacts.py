"""Artifacts: the files that tasks make, in a store of content that is named by its hash (base/content_store.py).

The outputs of one execution have a manifest, which lists the path, size, hash and mode of each file. The manifest is
kept in the same place, so its hash names all the files: that hash is what a plan records. Files are streamed, whatever
their size, and verified when they are read. A link that leaves the working folder is refused.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, NamedTuple

from asterism.base.content_folder import ContentFolder
from asterism.base.content_store import ContentAccess
from asterism.core.errors import AsterismError
from asterism.core.json_values import JsonObject
from asterism.core.plan.task_files import path_problem

CHUNK = 1 << 20
"""How many bytes of a file are in memory at once."""


class ArtifactProblem(AsterismError):
    """Files of a task are missing, damaged, or cannot be kept."""


class FileEntry(NamedTuple):
    """A file of a manifest: its path in the working folder, its size in bytes, its SHA-256 and its mode."""

    path: str
    size: int
    sha256: str
    mode: int


class StoredFile(NamedTuple):
    """A file that a task has made."""

    path: str
    size: int
    sha256: str
    mode: int
    artifacts: Artifacts

    def part(self, offset: int, limit: int) -> bytes:
        """At most ``limit`` bytes from ``offset`` on, not verified. Raises ArtifactProblem and OSError."""
        with self.artifacts.open_file(self, offset) as file:
            return file.read(limit)

    def open(self) -> BinaryIO:
        """Open it for reading, without a check of its hash. Raises ArtifactProblem and OSError."""
        return self.artifacts.open_file(self)

    def read(self) -> bytes:
        """Its content, verified. Raises ArtifactProblem and OSError."""
        with self.open() as file:
            data = file.read()
        self.artifacts.verify(hashlib.sha256(data), self)
        return data


Manifest = Mapping[str, tuple[FileEntry, ...]]
"""The files of an execution, by the names of the outputs."""


class Artifacts:
    """The artifacts in ``content``. Without it they are in a temporary folder, which lasts as long as this object."""

    def __init__(self, content: ContentAccess | None = None) -> None:
        self._content = content

    @cached_property
    def content(self) -> ContentAccess:
        if self._content is not None:
            return self._content
        folder = tempfile.mkdtemp(prefix="asterism-files-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        return ContentFolder(Path(folder), time.time)

    # -- to keep -----------------------------------------------------------------------------------------------------

    def keep_outputs(self, root: Path, outputs: Mapping[str, str], check: Callable[[], None] = lambda: None) -> str:
        """Keep the files in ``root`` that ``outputs`` name, and return the hash of their manifest; all of it is durable
        then. ``check`` is called again and again, and may raise. Raises ArtifactProblem and OSError."""
        known: dict[str, FileEntry] = {}
        manifest: JsonObject = {}
        for name, pattern in outputs.items():
            paths = list(matching_files(root, name, pattern))
            if not paths:
                raise ArtifactProblem(f"the task ended without its output {name!r}: no file matches {pattern!r}")
            for path in paths:
                if path not in known:
                    known[path] = self._keep(root, path, check)
            manifest[name] = [list(known[path]) for path in paths]
        return self.content.put([json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()]).name

    def _keep(self, root: Path, path: str, check: Callable[[], None]) -> FileEntry:
        with (root / path).open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            content = self.content.put(chunks_of(file, check))
        return FileEntry(path, content.size, content.name, mode)

    # -- to read -----------------------------------------------------------------------------------------------------

    def manifest(self, name: str) -> Manifest:
        """The manifest with this hash. Raises ArtifactProblem."""
        with self._open(name, "the list of the files of a task") as file:
            data = file.read()
        if hashlib.sha256(data).hexdigest() != name:
            raise self._damaged("the list of the files of a task", name)
        return {output: tuple(FileEntry(*entry) for entry in entries) for output, entries in json.loads(data).items()}

    def stored_files(self, name: str) -> dict[str, tuple[StoredFile, ...]]:
        """The files of a manifest, to be read. Raises ArtifactProblem."""
        return {
            output: tuple(StoredFile(*entry, self) for entry in entries)
            for output, entries in self.manifest(name).items()
        }

    def open_file(self, entry: FileEntry | StoredFile, offset: int = 0) -> BinaryIO:
        """Open the content of a file for reading, from byte ``offset`` on. Raises ArtifactProblem and OSError."""
        return self._open(entry.sha256, f"the file {entry.path!r}", offset)

    def verify(self, hashed: hashlib._Hash, entry: FileEntry | StoredFile) -> None:
        """Compare a file that was read with its hash. Raises ArtifactProblem."""
        if hashed.hexdigest() != entry.sha256:
            raise self._damaged(f"the file {entry.path!r}", entry.sha256)

    def place(self, entry: FileEntry, root: Path, check: Callable[[], None] = lambda: None) -> None:
        """Write a file to its path below ``root``, and verify it. Raises ArtifactProblem, FileExistsError, OSError."""
        if path_problem(entry.path) is not None:
            raise ArtifactProblem(f"the path {entry.path!r} of a file of a task leaves its folder")
        target, hashed = root / entry.path, hashlib.sha256()
        target.parent.mkdir(parents=True, exist_ok=True)
        with self.open_file(entry) as source, target.open("xb") as file:
            for chunk in chunks_of(source, check):
                hashed.update(chunk)
                file.write(chunk)
        try:
            self.verify(hashed, entry)
        except ArtifactProblem:
            target.unlink()
            raise
        target.chmod(entry.mode)

    def _open(self, name: str, what: str, offset: int = 0) -> BinaryIO:
        file = self.content.open(name, offset)
        if file is None:
            raise ArtifactProblem(f"{what} is not in {self.content.location}: it was removed there; restore {name}")
        return file

    def _damaged(self, what: str, name: str) -> ArtifactProblem:
        where = f"{name} in {self.content.location}"
        return ArtifactProblem(f"{what} is damaged: {where} does not match its hash; restore it from a backup")


def matching_files(root: Path, name: str, pattern: str) -> Iterator[str]:
    """The paths of the files below ``root`` that a pattern matches, in order. Of a folder that it matches, these are
    all files in it. Raises ArtifactProblem for what is not a file inside ``root``."""
    top, paths = root.resolve(), set()
    for match in root.glob(pattern):
        paths |= {path for path in match.rglob("*") if not path.is_dir()} if match.is_dir() else {match}
    for path in sorted(paths):
        relative = path.relative_to(root).as_posix()
        if not path.resolve().is_relative_to(top):
            raise ArtifactProblem(f"the output {name!r} has the link {relative!r}, which leaves the working folder")
        if not path.is_file():
            raise ArtifactProblem(f"the output {name!r} has {relative!r}, which is not a file")
        yield relative


def chunks_of(file: BinaryIO, check: Callable[[], None]) -> Iterator[bytes]:
    """The content of a file, piece by piece; ``check`` is called before each piece."""
    while True:
        check()
        chunk = file.read(CHUNK)
        if not chunk:
            return
        yield chunk
