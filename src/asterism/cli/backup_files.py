"""The files of tasks in a backup, behind the records.

Each file is several lines ``{"content": name, "part": base64}`` and one ``{"content": name, "size": bytes}``. It is
verified when it is restored.
"""

from __future__ import annotations

import base64
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, BinaryIO

from asterism.execution.artifacts import CHUNK, chunks_of
from asterism.fleet.kept_files import manifests_of_dump, names_of
from asterism.store.store_errors import StoreCorrupt

if TYPE_CHECKING:
    from asterism.base.content_store import ContentAccess

CONTENT = "content"


class BackedUpFiles:
    """The files to which the records of a backup refer. ``missing`` counts those that are not there."""

    def __init__(self) -> None:
        self.missing = 0
        self._used: set[str] = set()

    def note(self, record: Mapping[str, Any]) -> None:
        """Note the manifests that a record of a backup refers to."""
        self._used |= manifests_of_dump(record)

    def __bool__(self) -> bool:
        return bool(self._used)

    def lines(self, content: ContentAccess) -> Iterator[Mapping[str, Any]]:
        """The lines of the files. Raises OSError."""
        for name in names_of(content, self._used):
            file = content.open(name)
            if file is None:
                self.missing += 1
                continue
            with file:
                yield from _parts(name, file)


def _parts(name: str, file: BinaryIO) -> Iterator[Mapping[str, Any]]:
    size = 0
    for chunk in chunks_of(file, lambda: None):
        size += len(chunk)
        yield {CONTENT: name, "part": base64.b64encode(chunk).decode()}
    yield {CONTENT: name, "size": size}


def restore_files(lines: Iterable[Mapping[str, Any]], content: ContentAccess) -> int:
    """Put the files among the lines of a backup. Returns how many. Raises StoreCorrupt for one that does not match its
    name, and OSError."""
    count = 0
    with tempfile.TemporaryFile() as spool:
        for line in lines:
            if CONTENT not in line:
                continue
            try:
                name = line[CONTENT]
                if "part" in line:
                    spool.write(base64.b64decode(line["part"], validate=True))
                    continue
            except (TypeError, ValueError) as error:
                raise StoreCorrupt(f"a file in the backup cannot be read: {error}") from error
            spool.seek(0)
            if content.put(iter(lambda: spool.read(CHUNK), b"")).name != name:
                raise StoreCorrupt(f"the file {name} in the backup is damaged: its content does not match its name")
            spool.seek(0)
            spool.truncate()
            count += 1
    return count
