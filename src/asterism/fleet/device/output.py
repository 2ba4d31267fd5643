"""Output of a running command: the tail of what it prints, and the progress it reports in a file."""

from __future__ import annotations

import asyncio
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path

from asterism.base.secret_mask import Mask
from asterism.core.run.run import Progress

TAIL = 8 * 1024
"""How much of the output is shown while a command runs, in bytes."""

LOOK_INTERVAL = 0.25
"""How often new output and progress are passed on, in seconds."""

_PROGRESS = re.compile(rb"\s*([0-9]{1,15})(?:\s*/\s*([0-9]{1,15}))?\s*")


class OutputWatcher:
    """Passes new output and progress to ``on_output`` and ``on_progress``, a few times a second and when it is
    closed."""

    def __init__(
        self,
        progress: Path,
        mask: Mask,
        on_output: Callable[[str], None],
        on_progress: Callable[[Progress], None],
    ) -> None:
        self._progress, self._mask = progress, mask
        self._on_output, self._on_progress = on_output, on_progress
        self._kept = bytearray()
        self.heard = {1: 0, 2: 0}
        """How many bytes came out of each pipe."""
        self._new = False
        self._last: Progress | None = None
        self._seen: tuple[int, int, int] | None = None
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(LOOK_INTERVAL, self._tick)

    def hear(self, pipe: int, data: bytes) -> None:
        self.heard[pipe] += len(data)
        self._new = True
        self._kept += data
        enough = TAIL + self._mask.longest
        if len(self._kept) > 4 * enough:
            del self._kept[:-enough]

    def _look(self, *, growing: bool = True) -> None:
        found = self._read_progress()
        if found is not None and found != self._last:
            self._last = found
            self._on_progress(found)
        if self._new:
            self._new = False
            self._on_output(self._tail(growing))

    def close(self) -> None:
        self._timer.cancel()
        self._look(growing=False)

    def _tick(self) -> None:
        self._timer = self._loop.call_later(LOOK_INTERVAL, self._tick)
        self._look()

    def _tail(self, growing: bool) -> str:
        kept = bytes(self._kept[-(TAIL + self._mask.longest) :])
        cut = len(kept) < sum(self.heard.values())
        text = self._mask.tail(kept.decode(errors="replace"), cut=cut, growing=growing)
        end = text.encode(errors="replace")[-TAIL:]
        return end.decode(errors="ignore")  # leaves out a character that was cut in two

    def _read_progress(self) -> Progress | None:
        """The last line of the file that is not blank. A file that is not a regular one is ignored."""
        try:
            file = os.open(self._progress, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return None
        try:
            status = os.fstat(file)
            seen = (status.st_ino, status.st_size, status.st_mtime_ns)
            if seen == self._seen or not stat.S_ISREG(status.st_mode):
                return None
            self._seen = seen
            lines = os.pread(file, 4096, max(0, status.st_size - 4096)).splitlines()
        except OSError:
            return None
        finally:
            os.close(file)
        for line in reversed(lines):
            if line.strip():
                return progress_of(line)
        return None


def progress_of(line: bytes) -> Progress | None:
    """Parse ``3/10`` or ``3``."""
    found = _PROGRESS.fullmatch(line)
    return None if found is None else Progress(int(found[1]), None if found[2] is None else int(found[2]))
