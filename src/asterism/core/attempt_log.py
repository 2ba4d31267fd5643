"""The log of one attempt: what it printed, in order, bounded; the beginning and the end survive, the gap is marked.

Output arrives in *blocks*: some whole lines of one stream, at one time. Lines are numbered from 1, also those that are
dropped, so that a gap is known by its numbers. The first half of the limit is for the beginning (the *head*), the other
half for the end (the *tail*), which drops its oldest lines. A block is not split into lines before somebody reads it:
the cost of a noisy command depends on how often it writes, not on how many lines.

A log is written to a store in *chunks*, while it grows: ``take`` returns what is new. The head never changes again. A
chunk of the tail is dropped once the chunks after it fill the half that the tail may have.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from asterism.core.record import Record

STDOUT = "stdout"
STDERR = "stderr"
LOGGER = "log"
TRACEBACK = "traceback"
"""The stream of the traceback with which a function failed."""
GAP = "gap"
"""The stream of the line that stands for lines that are left out."""

DEFAULT_LIMIT = 256 * 1024
"""How many bytes of each attempt are kept by default."""

BLOCK_COST = 16
"""What a block costs besides its text, in bytes: many empty lines are not free."""


class LogLine(NamedTuple):
    """One line. ``stream`` is ``stdout``, ``stderr``, ``log`` (the given logger), ``traceback`` or
    ``gap``."""

    at: float
    stream: str
    text: str


class LogBlock(NamedTuple):
    """Whole lines of one stream, joined by line breaks, and the time at which they arrived."""

    at: float
    stream: str
    text: str

    @property
    def line_count(self) -> int:
        """How many lines it has."""
        return self.text.count("\n") + 1

    @property
    def cost(self) -> int:
        text = self.text
        return BLOCK_COST + (len(text) if text.isascii() else len(text.encode(errors="surrogatepass")))

    def without(self, lines: int) -> LogBlock:
        """The block without its first lines."""
        return LogBlock(self.at, self.stream, self.text.split("\n", lines)[lines])


class LogChunk(NamedTuple):
    """Consecutive lines. ``first`` is the number of the first one."""

    first: int
    blocks: tuple[LogBlock, ...]

    @property
    def line_count(self) -> int:
        return sum(block.line_count for block in self.blocks)

    def to_json(self) -> list[Any]:
        return [list(block) for block in self.blocks]

    @classmethod
    def from_json(cls, first: int, value: Iterable[Sequence[Any]]) -> LogChunk:
        """Raises TypeError or ValueError for what is not a chunk."""
        if isinstance(value, Mapping):
            raise TypeError("it is an object, not a list of blocks")
        return cls(first, tuple(LogBlock(float(at), str(stream), str(text)) for at, stream, text in value))


class LogUpdate(NamedTuple):
    """What to write: new chunks, and the range of chunks to drop, by the numbers of their first lines (from, before).
    Writing it twice changes nothing."""

    chunks: tuple[LogChunk, ...]
    drop: tuple[int, int] | None


class AttemptLog:
    """Keeps about ``limit`` bytes: more by at most one line."""

    def __init__(self, limit: int = DEFAULT_LIMIT) -> None:
        self._half = max(1, limit // 2)
        self._head: list[LogBlock] = []
        self._head_lines = self._head_cost = 0
        self._head_closed = False
        self._tail: deque[LogBlock] = deque()
        self._tail_lines = self._tail_cost = 0
        self.total = 0
        """How many lines there were, with those that were dropped."""
        self._taken = 0
        self._stored: deque[tuple[int, int]] = deque()  # chunks of the tail that may be in the store: first, cost

    def add(self, at: float, stream: str, text: str) -> None:
        """Add lines, joined by line breaks."""
        block = LogBlock(at, stream, text)
        self.total += block.line_count
        rest: LogBlock | None = block if self._head_closed else self._add_to_head(block)
        if rest is not None:
            self._tail.append(rest)
            self._tail_lines += rest.line_count
            self._tail_cost += rest.cost
            self._shorten_tail()

    def _add_to_head(self, block: LogBlock) -> LogBlock | None:
        """Add as many whole lines as there is room for. Returns the rest."""
        room = self._half - self._head_cost
        rest: LogBlock | None = None
        if block.cost > room:
            self._head_closed = True
            # characters, not bytes: the head may be a little smaller, never larger
            bytes_per_character = block.cost / (len(block.text) + BLOCK_COST)
            end = block.text.rfind("\n", 0, max(0, int(room / bytes_per_character) - BLOCK_COST))
            if end < 0:
                return block
            block, rest = block._replace(text=block.text[:end]), block._replace(text=block.text[end + 1 :])
        self._head.append(block)
        self._head_lines += block.line_count
        self._head_cost += block.cost
        return rest

    def _shorten_tail(self) -> None:
        while (excess := self._tail_cost - self._half) > 0:
            first = self._tail[0]
            end = -1 if first.cost <= excess else first.text.find("\n", min(excess, len(first.text)) - 1)
            if end < 0 and len(self._tail) == 1:
                end = first.text.rfind("\n")  # one long line: it stays whole
                if end < 0:
                    return
            self._tail.popleft()
            self._tail_lines -= first.line_count
            self._tail_cost -= first.cost
            if end >= 0:
                kept = first._replace(text=first.text[end + 1 :])
                self._tail.appendleft(kept)
                self._tail_lines += kept.line_count
                self._tail_cost += kept.cost

    @property
    def cost(self) -> int:
        """How many bytes are kept."""
        return self._head_cost + self._tail_cost

    def chunks(self) -> list[LogChunk]:
        """All that is kept: the head and the tail."""
        chunks = [LogChunk(1, tuple(self._head))] if self._head else []
        return [*chunks, LogChunk(self._tail_first, tuple(self._tail))] if self._tail else chunks

    @property
    def _tail_first(self) -> int:
        return self.total - self._tail_lines + 1

    # -- writing it to a store ---------------------------------------------------------------------------------------

    @property
    def changed(self) -> bool:
        """Whether there is something new to take."""
        return self._taken < self.total

    def take(self) -> LogUpdate | None:
        """What is new since the last call; None if nothing is."""
        if not self.changed:
            return None
        chunks = [_after(chunk, self._taken) for chunk in self.chunks()]
        new = tuple(chunk for chunk in chunks if chunk.blocks)
        if new[-1].first > self._head_lines:
            self._stored.append((new[-1].first, sum(block.cost for block in new[-1].blocks)))
        kept = sum(cost for _, cost in self._stored)
        while len(self._stored) > 1 and kept - self._stored[0][1] >= self._half:
            kept -= self._stored.popleft()[1]
        self._taken = self.total
        first = self._stored[0][0] if self._stored else 0
        return LogUpdate(new, (self._head_lines + 1, first) if first > self._head_lines + 1 else None)

    def give_back(self, update: LogUpdate) -> None:
        """The update may not have been written: the next one has its lines again, as far as they are still kept."""
        self._taken = min(self._taken, update.chunks[0].first - 1)


def _after(chunk: LogChunk, number: int) -> LogChunk:
    """The lines of a chunk that come after a number."""
    first, blocks = chunk.first, list(chunk.blocks)
    while blocks and first <= number:
        count = blocks[0].line_count
        if first + count - 1 > number:
            blocks[0] = blocks[0].without(number - first + 1)
            first = number + 1
        else:
            del blocks[0]
            first += count
    return LogChunk(first, tuple(blocks))


# -- reading -----------------------------------------------------------------------------------------------------------


class LogReader:
    """Turns chunks into lines, in the order of their numbers, each once. ``seen`` is the number of the last line."""

    def __init__(self, seen: int = 0) -> None:
        self.seen = seen

    def read(self, chunks: Iterable[LogChunk]) -> Iterator[LogLine]:
        """The lines that come after those that were read; a ``gap`` for lines that are missing between them."""
        for chunk in sorted(chunks, key=lambda chunk: chunk.first):
            new = _after(chunk, self.seen)
            if not new.blocks:
                continue
            missing = new.first - self.seen - 1
            if missing:
                yield LogLine(new.blocks[0].at, GAP, gap_text(missing))
            for block in new.blocks:
                for text in block.text.split("\n"):
                    self.seen += 1 + missing
                    missing = 0
                    yield LogLine(block.at, block.stream, shown_line(text))


def lines_of(chunks: Iterable[LogChunk]) -> list[LogLine]:
    """All lines of chunks, with gaps."""
    return list(LogReader().read(chunks))


class TaskLog(Record):
    """What one attempt printed. ``attempt`` counts from 1."""

    attempt: int
    chunks: tuple[LogChunk, ...]

    @property
    def lines(self) -> list[LogLine]:
        """The lines with time and stream. A line with the stream ``gap`` stands for lines that were left out."""
        return lines_of(self.chunks)

    @property
    def text(self) -> str:
        return "".join(f"{line.text}\n" for line in self.lines)

    @property
    def traceback(self) -> list[LogLine]:
        """The traceback with which its function failed; empty if there is none."""
        return [line for line in self.lines if line.stream == TRACEBACK]


def gap_text(lines: int) -> str:
    return f"… {lines:,} line{'' if lines == 1 else 's'} left out …"


def shown_line(text: str) -> str:
    """What a terminal would show of a line in the end: a program writes over its line after a carriage return."""
    return text.rstrip("\r").rpartition("\r")[2] if "\r" in text else text
