"""The log of one attempt: bounded, with the beginning and the end, written to a store in chunks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asterism.core.attempt_log import (
    BLOCK_COST,
    GAP,
    AttemptLog,
    LogBlock,
    LogChunk,
    LogReader,
    LogUpdate,
    TaskLog,
    _after,
    lines_of,
)

blocks = st.lists(st.lists(st.text("ab\u00e4", max_size=12), min_size=1, max_size=6), max_size=16)
limits = st.integers(1, 400)


def fill(log: AttemptLog, printed_blocks: list[list[str]]) -> list[str]:
    for number, lines in enumerate(printed_blocks):
        log.add(float(number), "stdout", "\n".join(lines))
    return [line for lines in printed_blocks for line in lines]


def cost(chunks: Iterable[LogChunk]) -> int:
    return sum(block.cost for chunk in chunks for block in chunk.blocks)


def check_lines(shown: list[tuple[str, str]], printed: list[str]) -> None:
    """The lines are those that were printed, apart from marked gaps, each of the right size."""
    at = 0
    for stream, text in shown:
        if stream == GAP:
            at += int(text.split()[1].replace(",", ""))
        else:
            assert text == printed[at]
            at += 1
    assert at == len(printed)


@given(blocks, limits)
def test_beginning_and_end_survive_and_the_gap_is_marked(printed_blocks: list[list[str]], limit: int) -> None:
    log = AttemptLog(limit)
    printed = fill(log, printed_blocks)
    lines = lines_of(log.chunks())
    check_lines([(line.stream, line.text) for line in lines], printed)
    assert log.total == len(printed)
    assert sum(line.stream == GAP for line in lines) <= 1
    longest = max((len(line.encode()) for line in printed), default=0) + BLOCK_COST
    assert cost(log.chunks()) <= max(limit, 2) + longest
    if printed:
        assert lines[-1].text == printed[-1]
    if sum(len(line.encode()) + BLOCK_COST for line in printed) <= limit // 2:
        assert len(lines) == len(printed)  # nothing is dropped before the limit is reached


class StoredChunks:
    """What a store keeps of a log."""

    def __init__(self) -> None:
        self.chunks: dict[int, LogChunk] = {}

    def write(self, update: LogUpdate) -> None:
        if update.drop is not None:
            for first in [first for first in self.chunks if update.drop[0] <= first < update.drop[1]]:
                del self.chunks[first]
        self.chunks |= {chunk.first: chunk for chunk in update.chunks}


@given(blocks, limits, st.lists(st.sampled_from(["", "write", "write", "lost", "unknown"]), min_size=16, max_size=16))
def test_a_log_that_is_written_while_it_grows_is_whole_in_the_store(
    printed_blocks: list[list[str]], limit: int, outcomes: list[str]
) -> None:
    """``lost``: the write did not happen. ``unknown``: it happened, and the writer does not know it."""
    log, store, follower = AttemptLog(limit), StoredChunks(), LogReader()
    printed: list[str] = []
    followed: list[tuple[str, str]] = []
    for number, (lines, outcome) in enumerate(zip(printed_blocks, outcomes, strict=False)):
        log.add(float(number), "stderr", "\n".join(lines))
        printed += lines
        update = log.take() if outcome else None
        if update is not None:
            if outcome != "lost":
                store.write(update)
            if outcome != "write":
                log.give_back(update)
        followed += [(line.stream, line.text) for line in follower.read(store.chunks.values())]
    if (update := log.take()) is not None:
        store.write(update)
    assert log.take() is None
    followed += [(line.stream, line.text) for line in follower.read(store.chunks.values())]
    check_lines(followed, printed)
    stored = lines_of(store.chunks.values())
    check_lines([(line.stream, line.text) for line in stored], printed)
    kept = lines_of(log.chunks())
    assert stored[-1:] == kept[-1:]
    if kept and kept[0].stream != GAP:
        assert stored[0] == kept[0]


def test_the_store_stays_bounded_while_a_command_prints_for_ever() -> None:
    log, store = AttemptLog(4000), StoredChunks()
    for second in range(500):
        log.add(float(second), "stdout", "\n".join(f"{second} {number}" for number in range(20)))
        update = log.take()
        assert update is not None
        store.write(update)
        assert cost(store.chunks.values()) <= 2 * 4000
    lines = lines_of(store.chunks.values())
    assert (lines[0].text, lines[-1].text) == ("0 0", "499 19")


def test_without_dropping_chunks_the_store_grows_for_ever() -> None:
    """Ablation: the range to drop is what bounds the store."""
    log, store = AttemptLog(4000), StoredChunks()
    for second in range(500):
        log.add(float(second), "stdout", "x" * 100)
        update = log.take()
        assert update is not None
        store.write(update._replace(drop=None))
    assert cost(store.chunks.values()) > 10 * 4000


def test_a_line_that_was_written_over_is_shown_as_a_terminal_shows_it() -> None:
    log = AttemptLog()
    log.add(0.0, "stdout", "10 %\r50 %\r100 %\nwindows\r\nplain")
    assert [line.text for line in lines_of(log.chunks())] == ["100 %", "windows", "plain"]


def test_a_chunk_is_written_as_json_and_read() -> None:
    log = AttemptLog(1000)
    log.add(1.0, "stdout", "one\ntwo")
    (chunk,) = log.chunks()
    assert LogChunk.from_json(chunk.first, chunk.to_json()) == chunk
    assert chunk.line_count == 2
    assert log.cost == cost([chunk])


def test_the_log_of_a_task_as_lines_and_text() -> None:
    log = AttemptLog(1000)
    log.add(1.0, "stdout", "one\ntwo")
    whole = TaskLog(1, tuple(log.chunks()))
    assert [line.text for line in whole.lines] == ["one", "two"]
    assert whole.text == "one\ntwo\n"


def test_the_rest_of_a_chunk_may_begin_inside_a_block() -> None:
    log = AttemptLog(1000)
    log.add(1.0, "stdout", "one\ntwo")
    log.add(2.0, "stderr", "three")
    (chunk,) = log.chunks()
    rest = _after(chunk, chunk.first)
    assert rest.first == chunk.first + 1
    assert [block.text for block in rest.blocks] == ["two", "three"]


def test_the_traceback_of_a_log_is_its_lines_of_that_stream() -> None:
    blocks = (LogBlock(1.0, "stdout", "loading"), LogBlock(2.0, "traceback", "Traceback\nValueError"))
    log = TaskLog(1, (LogChunk(1, blocks),))
    assert [line.text for line in log.traceback] == ["Traceback", "ValueError"]


@pytest.mark.parametrize("value", [{}, {"a": 1}, 5, [[1]], [["x", "out", "text"]]])
def test_what_is_not_a_chunk_is_refused(value: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        LogChunk.from_json(0, value)
