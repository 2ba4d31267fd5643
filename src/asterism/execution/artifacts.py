"""Artifacts: the files that tasks make, in a store of content that is named by its hash (base/content_store.py).

The outputs of one execution have a manifest, which lists the path, size, hash and mode of each file. The manifest is
kept in the same place, so its hash names all the files: that hash is what a plan records. Files are streamed, whatever
their size, and verified when they are read. A link that leaves the working folder is refused.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import shutil
import stat
import tempfile
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path, PurePath
from typing import BinaryIO, NamedTuple

from asterism.base.content_store import ContentAccess, ContentFolder
from asterism.base.file_patterns import folder_entries, matching_paths
from asterism.base.private_file import open_plain
from asterism.core.errors import AsterismError
from asterism.core.json_values import JsonObject
from asterism.core.plan.task_files import is_content_name

CHUNK = 1 << 20
"""How many bytes of a file are in memory at once."""

MOST_FILES = 10_000
"""How many files a task may make."""

MOST_SEARCHED = 1_000_000
"""How many paths the search for an output looks at."""

LARGEST_MANIFEST, ENTRY_SIZE = 4 << 20, 120
"""How long a manifest is at most, in bytes. An entry is about so much longer than its path."""

LONGEST_READ = 32 << 20
"""How long a manifest is at most that an earlier version has kept, in bytes."""

_ALL_LIST = "the list of the files of a task"


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
        self._last: tuple[str, Manifest] | None = None  # the manifest that was read last: its files come one by one

    @property
    def is_temporary(self) -> bool:
        """Whether the files are gone when this process ends."""
        return self._content is None

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
        return self._keep_paths(
            root, {name: matching_files(root, name, outputs[name], check) for name in outputs}, check
        )

    def keep_what_exists(
        self, root: Path, outputs: Mapping[str, str], check: Callable[[], None] = lambda: None
    ) -> str | None:
        """Keep the outputs of a task that failed, as far as they can be kept: an output that is missing has no files.
        Returns None if there are none. Raises ArtifactProblem and OSError."""
        paths: dict[str, list[str]] = {}
        for name, pattern in outputs.items():
            try:
                paths[name] = matching_files(root, name, pattern, check)
            except ArtifactProblem:
                check()
                paths[name] = []
        return self._keep_paths(root, paths, check) if any(paths.values()) else None

    def _keep_paths(self, root: Path, paths: Mapping[str, list[str]], check: Callable[[], None]) -> str:
        _check_size(paths)
        every = dict.fromkeys(path for its in paths.values() for path in its)
        known = {path: self._keep(root, path, check) for path in every}
        manifest: JsonObject = {name: [list(known[path]) for path in its] for name, its in paths.items()}
        return self.content.put([json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()]).name

    def _keep(self, root: Path, path: str, check: Callable[[], None]) -> FileEntry:
        content = self.content.put(_FileChunks(root / path, check))
        return FileEntry(path, content.size, content.name, stat.S_IMODE((root / path).stat().st_mode) & 0o777)

    def has_all(self, manifest: str) -> bool:
        """Whether a manifest and all its files are there. Raises OSError."""
        try:
            names = self.names(manifest)
        except ArtifactProblem:
            return False
        return all(map(self._has, {manifest, *names}))

    def _has(self, name: str) -> bool:
        file = self.content.open(name)
        if file is not None:
            file.close()
        return file is not None

    # -- to read -----------------------------------------------------------------------------------------------------

    def manifest(self, name: str) -> Manifest:
        """The manifest with this hash. Raises ArtifactProblem."""
        last = self._last
        if last is not None and last[0] == name:
            return last[1]
        with self._open(name, _ALL_LIST) as file:
            data = b"".join(itertools.islice(chunks_of(file, lambda: None), LONGEST_READ // CHUNK + 1))
        foreign = ArtifactProblem(f"{name} in {self.content.location} is not {_ALL_LIST}")
        if len(data) > LONGEST_READ:
            raise foreign
        if hashlib.sha256(data).hexdigest() != name:
            raise self._damaged(_ALL_LIST, name)
        try:
            manifest = _manifest(data)
        except (ValueError, TypeError, AttributeError, RecursionError):  # a device may send anything
            raise foreign from None
        self._last = name, manifest
        return manifest

    def names(self, manifest: str) -> set[str]:
        """The names of all content of a manifest, without its own. Raises ArtifactProblem."""
        return {entry.sha256 for entry in entries_of(self.manifest(manifest))}

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
        """Write a file of a manifest to its path below ``root``, and verify it. Raises ArtifactProblem, OSError."""
        target, hashed = root / entry.path, hashlib.sha256()
        target.parent.mkdir(parents=True, exist_ok=True)
        with self.open_file(entry) as source, target.open("xb") as file:
            for chunk in chunks_of(source, check):
                hashed.update(chunk)
                file.write(chunk)
            size = file.tell()
        try:
            self.verify(hashed, entry)
            if size != entry.size:
                raise ArtifactProblem(f"the file {entry.path!r} has {size:,} bytes, and its list says {entry.size:,}")
        except ArtifactProblem:
            target.unlink()
            raise
        target.chmod(entry.mode & 0o777)

    def _open(self, name: str, what: str, offset: int = 0) -> BinaryIO:
        file = self.content.open(name, offset)
        if file is None:
            raise ArtifactProblem(f"{what} is not in {self.content.location}: it was removed there; restore {name}")
        return file

    def _damaged(self, what: str, name: str) -> ArtifactProblem:
        where = f"{name} in {self.content.location}"
        return ArtifactProblem(f"{what} is damaged: {where} does not match its hash; restore it from a backup")


def _check_size(paths: Mapping[str, list[str]]) -> None:
    """Refuse more files than a manifest may have, before the first of them is kept."""
    listed = [path for its in paths.values() for path in its]
    if len(listed) > MOST_FILES:
        raise _too_many("the task has made")
    if sum(len(json.dumps(path)) + ENTRY_SIZE for path in listed) > LARGEST_MANIFEST:
        text = f"the task has {len(listed):,} output files, whose list would be longer than {LARGEST_MANIFEST:,} bytes"
        raise ArtifactProblem(f"{text}: pack them into an archive")


def entries_of(manifest: Manifest) -> list[FileEntry]:
    """All files of a manifest."""
    return [entry for entries in manifest.values() for entry in entries]


def _manifest(data: bytes) -> Manifest:
    """The manifest in a text. Raises ValueError, TypeError, AttributeError and RecursionError."""
    manifest = {output: tuple(FileEntry(*entry) for entry in entries) for output, entries in json.loads(data).items()}
    json.dumps(manifest, ensure_ascii=False).encode()  # without halves of characters, which no answer could contain
    for entry in entries_of(manifest):
        numbers = [type(number) is int and number >= 0 for number in (entry.size, entry.mode)]
        if not (stays_inside(entry.path) and is_content_name(entry.sha256) and all(numbers)):
            raise ValueError(entry)
    return manifest


def stays_inside(path: str) -> bool:
    """Whether a path is one of a file below the folder to which it is joined, on this system."""
    pure = PurePath(path)
    return bool(pure.parts) and not pure.anchor and ".." not in pure.parts and "\0" not in path


def matching_files(root: Path, name: str, pattern: str, check: Callable[[], None] = lambda: None) -> list[str]:
    """The paths of the files below ``root`` that a pattern matches, in order. Of a folder that it matches, these are
    all files in it. ``check`` is called for each path. Raises ArtifactProblem for what is not a file inside ``root``,
    for a folder that cannot be read, if there is no file, or if the search is too long."""
    looked = itertools.count(1)

    def look() -> None:
        check()
        if next(looked) > MOST_SEARCHED:
            text = f"the search for the output {name!r} has looked at {MOST_SEARCHED:,} paths: name it more closely"
            raise ArtifactProblem(text)

    def refuse(path: str, error: OSError) -> None:
        folder = Path(path).relative_to(root).as_posix()
        text = f"the output {name!r} cannot be searched: the folder {folder!r} cannot be read ({error.strerror})"
        raise ArtifactProblem(text) from None

    plain = "/".join(part for part in pattern.split("/") if part not in ("", "."))
    matches = matching_paths(plain, str(root), look, hidden=True, unreadable=refuse)
    paths = list[str]()
    for path in _files_at(root, matches, f"the output {name!r} has", look, refuse):
        if len(paths) == MOST_FILES:
            raise _too_many(f"the output {name!r} has")
        paths.append(path)
    if not paths:
        raise ArtifactProblem(f"the task ended without its output {name!r}: no file matches {pattern!r}")
    for path in paths:
        try:
            path.encode()
        except UnicodeEncodeError:  # no JSON could name it
            raise ArtifactProblem(f"the output {name!r} has {path!r}, whose name is not UTF-8") from None
    return sorted(paths, key=PurePath)


def _files_at(
    root: Path,
    matches: Iterable[str],
    has: str,
    look: Callable[[], None],
    unreadable: Callable[[str, OSError], None],
) -> Iterator[str]:
    """The matches that are files, and all files in those that are folders, also behind links; each once."""
    top, known = root.resolve(), set[Path]()
    for match in matches:
        stack = [(root / match, frozenset[Path]())]
        while stack:
            path, above = stack.pop()
            if path in known:
                continue
            known.add(path)
            look()
            real, relative = path.resolve(), path.relative_to(root).as_posix()
            if not real.is_relative_to(top):
                raise ArtifactProblem(f"{has} the link {relative!r}, which leaves the working folder")
            if real in above:
                raise ArtifactProblem(f"{has} the link {relative!r} to a folder around it")
            if real.is_dir():
                entries = folder_entries(str(path), look, unreadable)
                stack += [(Path(entry), above | {real}) for entry in entries]
            elif real.is_file():
                yield relative
            else:
                raise ArtifactProblem(f"{has} {relative!r}, which is not a file")


def _too_many(what: str) -> ArtifactProblem:
    return ArtifactProblem(f"{what} more than {MOST_FILES:,} files: pack them into an archive")


class _FileChunks:
    """The content of a file, which may be read again."""

    def __init__(self, path: Path, check: Callable[[], None]) -> None:
        self._path, self._check = path, check

    def __iter__(self) -> Iterator[bytes]:
        with open(open_plain(self._path.resolve()), "rb") as file:
            yield from chunks_of(file, self._check)


def chunks_of(file: BinaryIO, check: Callable[[], None]) -> Iterator[bytes]:
    """The content of a file, piece by piece; ``check`` is called before each piece."""
    while True:
        check()
        chunk = file.read(CHUNK)
        if not chunk:
            return
        yield chunk
