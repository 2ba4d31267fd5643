"""Output and progress of an execution while it runs: its tail, a few times a second, with secrets masked."""

from __future__ import annotations

import asyncio
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from asterism.base import operating_system
from asterism.base.log_recorder import LogRecorder
from asterism.base.secret_mask import Mask
from asterism.core.run.run import Progress

TAIL = 8 * 1024
"""How much of the output is shown while a command runs, in bytes."""

LOOK_INTERVAL = 0.25
"""How often new output and progress are passed on, in seconds."""

_PROGRESS = re.compile(rb"\s*([0-9]{1,15})(?:\s*/\s*([0-9]{1,15}))?\s*")


class RunOutput(Protocol):
    """What keeps the output of an execution. ``mask`` has the secrets to hide in it."""

    mask: Mask

    def recorder(self) -> LogRecorder | None: ...


class OutputWatcher:
    """Passes new output and progress to ``on_output`` and ``on_progress``, a few times a second and when it is
    closed."""

    def __init__(
        self,
        progress: Path,
        mask: Mask,
        on_output: Callable[[str], None],
        on_progress: Callable[[Progress], None],
        output: RunOutput | None = None,
    ) -> None:
        self._output = output
        self._progress, self._mask = progress, mask
        self._on_output, self._on_progress = on_output, on_progress
        self._received = bytearray()
        self.heard = {1: 0, 2: 0}
        """How many bytes came out of each pipe."""
        self._new = False
        self._last: Progress | None = None
        self._seen: tuple[int, int, int] | None = None
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(LOOK_INTERVAL, self._tick)

    def hear(self, pipe: int, data: bytes) -> None:
        recorder = None if self._output is None else self._output.recorder()
        if recorder is not None:
            recorder.hear(pipe, data)
        self.heard[pipe] += len(data)
        self._new = True
        self._received += data
        enough = TAIL + self._mask.longest
        if len(self._received) > 4 * enough:
            del self._received[:-enough]

    def _look(self, *, growing: bool = True) -> None:
        progress = self._read_progress()
        if progress is not None and progress != self._last:
            self._last = progress
            self._on_progress(progress)
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
        tail = bytes(self._received[-(TAIL + self._mask.longest) :])
        cut = len(tail) < sum(self.heard.values())
        text = self._mask.tail(tail.decode(errors="replace"), cut=cut, growing=growing)
        end = text.encode(errors="replace")[-TAIL:]
        return end.decode(errors="ignore")  # leaves out a character that was cut in two

    def _read_progress(self) -> Progress | None:
        """The last line of the file that is not blank. A file that is not a regular one is ignored."""
        try:
            file = os.open(self._progress, os.O_RDONLY | operating_system.PLAIN_FILE_ONLY)
        except OSError:
            return None
        try:
            status = os.fstat(file)
            seen = (status.st_ino, status.st_size, status.st_mtime_ns)
            if seen == self._seen or not stat.S_ISREG(status.st_mode):
                return None
            self._seen = seen
            lines = operating_system.read_at(file, 4096, max(0, status.st_size - 4096)).splitlines()
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
    numbers = _PROGRESS.fullmatch(line)
    if numbers is None:
        return None
    return Progress(int(numbers[1]), None if numbers[2] is None else int(numbers[2]))
