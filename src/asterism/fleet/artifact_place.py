"""The place where a fleet keeps the files of its tasks: a folder beside its store, a shared folder, or a bucket.

The setting ``artifacts`` names it: ``file:///shared/folder`` or ``s3://bucket/prefix``. Without it the files are beside
the file of a SQLite store. Stores may share a folder or a bucket: each uses a part of its own, named by its identity.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from asterism.base.content_bucket import ContentBucket
from asterism.base.content_store import ContentFolder, ContentStore
from asterism.execution.artifacts import ArtifactProblem

if TYPE_CHECKING:
    from asterism.store.protocol import Store

FORMS = "file:///folder or s3://bucket/prefix"

SHARED_MODE = 0o777
"""The mode of folders in a shared folder; the umask of the process takes its part."""


def place_problem(url: str) -> str | None:
    """Why files cannot be kept at this address; None if they can."""
    parts = urlsplit(url)
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        return f"the address of files is {FORMS}, without a password, '?' and '#'"
    if parts.scheme == "file" and (parts.netloc or not parts.path.strip("/")):
        return "the address of a folder is file:/// and its path from the root (example: file:///shared/files)"
    if parts.scheme == "s3" and not parts.netloc:
        return "the address of a bucket is s3:// and its name (example: s3://bucket/prefix)"
    if parts.scheme not in ("file", "s3"):
        return f"{url!r} is not an address for files (it is {FORMS})"
    return None


def open_place(url: str, identity: str, clock: Callable[[], float]) -> ContentStore:
    """The content at an address that belongs to the store with this identity. Raises ArtifactProblem."""
    problem = place_problem(url)
    if problem is not None:
        raise ArtifactProblem(problem)
    parts = urlsplit(url)
    if parts.scheme == "file":
        return SharedFolder(Path(unquote(parts.path)), identity, clock)
    return ContentBucket(parts.netloc, f"{unquote(parts.path)}/{identity}", clock)


def place_of(url: str | None, store: Store, identity: str) -> ContentStore:
    """Where the files of a store are kept; ``url`` is the setting. Raises ArtifactProblem."""
    if url is not None:
        return open_place(url, identity, store.clock)
    folder = store.files_folder
    if folder is None:
        raise ArtifactProblem(
            "this fleet has no place for the files of tasks: name one that all its devices reach, with "
            "'asterism fleet set --artifacts file:///shared/folder'"
        )
    return ContentFolder(folder, store.clock)


class SharedFolder(ContentFolder):
    """The part of a shared folder that belongs to one store. The shared folder itself is never made: it may be a file
    system that is not mounted."""

    def __init__(self, shared: Path, identity: str, clock: Callable[[], float]) -> None:
        super().__init__(shared / identity, clock, lambda: SHARED_MODE)

    def check(self) -> None:
        if not self.folder.parent.is_dir():
            raise FileNotFoundError(f"the folder {self.folder.parent} for files is not there: mount it, or make it")
