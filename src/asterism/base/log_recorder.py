"""Records what one attempt prints: bytes of a command, text of a function, from any thread, into its AttemptLog.

The log holds the output as it came. Secrets are masked when it is read (``chunks``, ``take``): what is dropped need not
be masked. A line that is cut because it is too long is masked before the cut.
"""

from __future__ import annotations

import re
import threading
from codecs import getincrementaldecoder
from collections.abc import Callable

from asterism.base.secret_mask import Mask
from asterism.core.attempt_log import DEFAULT_LIMIT, STDERR, STDOUT, AttemptLog, LogChunk, LogUpdate

LONGEST_LINE = 8 * 1024
"""A longer line is cut into several, so that the end of a log can be kept whatever a program prints."""

_PIPES = {1: STDOUT, 2: STDERR}
_decoder = getincrementaldecoder("utf-8")


class LogRecorder:
    """``clock`` dates the lines. ``on_new`` is called after new lines, in the thread that wrote them. ``mask`` returns
    the secrets to hide; it may be set later, but before the log is read."""

    def __init__(
        self,
        clock: Callable[[], float],
        limit: int = DEFAULT_LIMIT,
        *,
        mask: Callable[[], Mask] = Mask,
        on_new: Callable[[], None] | None = None,
    ) -> None:
        self.mask = mask
        self._clock, self._on_new = clock, on_new
        self._longest = max(1, min(LONGEST_LINE, limit // 4))
        self._too_long = re.compile(rf"[^\n]{{{self._longest}}}(?=[^\n])")
        self._log = AttemptLog(limit)
        self._lock = threading.Lock()
        self._rest: dict[str, str] = {}  # the line of each stream that has no end yet
        self._decoders = {pipe: _decoder(errors="replace") for pipe in _PIPES}
        self._closed = False

    # -- writing -----------------------------------------------------------------------------------------------------

    def hear(self, pipe: int, data: bytes) -> None:
        """Record a piece of the output of a command; ``pipe`` is 1 or 2."""
        self.write(_PIPES[pipe], self._decoders[pipe].decode(data))

    def write(self, stream: str, text: str) -> None:
        """Record text. A line appears in the log when its end comes. After ``close`` nothing is recorded."""
        with self._lock:
            if self._closed or not text:
                return
            whole, end, rest = text.rpartition("\n")
            before = self._rest.pop(stream, "")
            if end:
                self._add(stream, before + whole)
            else:
                rest = before + rest
            if len(rest) > self._longest:
                rest = self._shortened(stream, rest)
            if rest:
                self._rest[stream] = rest
        if self._on_new is not None and self._log.changed:
            self._on_new()

    def write_last(self, stream: str, text: str) -> None:
        """Record text after unfinished lines, and nothing after that."""
        self._finish(lambda: self._add(stream, text.removesuffix("\n")))
        if self._on_new is not None and self._log.changed:
            self._on_new()

    def close(self) -> None:
        """Record unfinished lines, and nothing after that."""
        self._finish()

    def _finish(self, add_last: Callable[[], None] | None = None) -> None:
        with self._lock:
            if self._closed:
                return
            for pipe, stream in _PIPES.items():
                left = self._decoders[pipe].decode(b"", final=True)
                self._rest[stream] = self._rest.get(stream, "") + left
            for stream, rest in self._rest.items():
                if rest:
                    self._add(stream, rest)
            self._rest.clear()
            if add_last is not None:
                add_last()
            self._closed = True

    def _add(self, stream: str, text: str) -> None:
        if len(text) > self._longest and self._too_long.search(text) is not None:
            text = self._too_long.sub(r"\g<0>\n", self.mask().text(text))
        self._log.add(self._clock(), stream, text)

    def _shortened(self, stream: str, rest: str) -> str:
        """A line that is too long and has no end yet: drop what was written over, or record the beginning. Returns what
        is left. A possible beginning of a secret is left for the next piece."""
        over = rest.rfind("\r", 0, len(rest) - 1)
        if over >= 0:
            return rest[over + 1 :]
        mask = self.mask()
        masked, safe = mask.text(rest), mask.tail(rest, growing=True)
        left = len(masked) - len(safe)
        if safe:
            self._add(stream, safe)
        return rest[len(rest) - left :] if left else ""

    # -- reading -----------------------------------------------------------------------------------------------------

    def __bool__(self) -> bool:
        return self._log.total > 0

    @property
    def size(self) -> int:
        """How many bytes are kept."""
        return self._log.cost

    @property
    def changed(self) -> bool:
        """Whether there is something new to take."""
        return self._log.changed

    def chunks(self) -> list[LogChunk]:
        """All that is kept, masked."""
        with self._lock:
            chunks = self._log.chunks()
        return [self._masked(chunk) for chunk in chunks]

    def take(self) -> LogUpdate | None:
        """What is new, masked; see AttemptLog."""
        with self._lock:
            update = self._log.take()
        return update and update._replace(chunks=tuple(map(self._masked, update.chunks)))

    def give_back(self, update: LogUpdate) -> None:
        with self._lock:
            self._log.give_back(update)

    def _masked(self, chunk: LogChunk) -> LogChunk:
        mask = self.mask()
        if not mask:
            return chunk
        return chunk._replace(blocks=tuple(block._replace(text=_masked(mask, block.text)) for block in chunk.blocks))


def _masked(mask: Mask, text: str) -> str:
    """The text with as many lines as before: a secret of several lines leaves empty ones at the end."""
    masked = mask.text(text)
    return masked + "\n" * (text.count("\n") - masked.count("\n"))
