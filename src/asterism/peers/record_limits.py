"""A record never grows beyond what every peer takes, whatever a peer added to it.

Messages have limits (messages.py, validation.py), and a peer that lies may send a record that is just within one
of them. If our next step were beyond it, every other peer would refuse the run from then on, and nobody could bring the
honest stores together again. So what happened beside the line of a run (core/run/merge.py) is taken only as long as the
record stays within half of each limit; after that only what we knew before is kept of it, or nothing but results. And
what is told of a record that is beyond a limit all the same, since its own line is long, is a shorter one: without the
oldest entries of its story, and without what decides nothing. Who has the run and what came of it is never left out.

Two stores may then know different things of what happened beside the line. They agree about who has the run, and what
came of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any, TypeVar

from asterism.core.run.merge import own_assignments, own_result, own_story
from asterism.core.run.run import Run, Superseded
from asterism.core.run.validation import LONGEST_TEXT, MAX_ENTRIES, MAX_NUMBER
from asterism.peers.messages import (
    MAX_RECORD_BLOBS,
    MAX_RECORD_BYTES,
    MAX_RECORD_CHARS,
    encode_record,
    encoded_size,
    fits_message,
    record_length,
)
from asterism.store import row_codec
from asterism.store.dump_format import blobs_of

MAX_RESULTS = 50
MAX_RESULT_CHARS = 1 << 20
"""How many results that lost, and how many characters of them, are kept of a record that has become too large."""

MAX_SENT_BYTES = MAX_RECORD_BYTES * 3 // 4
"""How many bytes of a message a record may be: its workflow has the rest."""

T = TypeVar("T")


# -- what is taken -----------------------------------------------------------------------------------------------------


def limit_merged(mine: Run, theirs: Run, resolved: Run) -> Run:
    """So much of ``resolved``, which was made of the two, as leaves room for our own steps."""
    if not _is_too_large(resolved):
        return resolved
    results = set(map(repr, (*mine.superseded, *own_result(mine), *own_result(theirs))))
    lost = [one for one in resolved.superseded if repr(one) in results]
    known = _with_beside(resolved, set(mine.story), set(mine.previous), lost)
    return known if not _is_too_large(known) else _with_beside(resolved, (), (), _last_results(known.superseded))


def _is_too_large(run: Run) -> bool:
    """Whether it is beyond half of a limit, and more than its line."""
    if len(own_story(run)) == len(run.story) and len(own_assignments(run)) == len(run.previous) and not run.superseded:
        return False
    return (
        max(len(run.story), len(run.previous), len(run.superseded)) > MAX_ENTRIES // 2
        or len(set(blobs_of(run))) > MAX_RECORD_BLOBS // 2
        or record_length((*row_codec.fixed(run), *row_codec.moving(run))) > MAX_RECORD_CHARS // 2
    )


def _with_beside(run: Run, story: Collection[Any], previous: Collection[Any], superseded: Iterable[Superseded]) -> Run:
    """Its line, and of what is beside it only these."""
    line, ended = own_story(run), own_assignments(run)
    return run.changed(
        story=(*(one for one in _beside_line(run.story, line) if one in story), *line),
        previous=(*(one for one in _beside_line(run.previous, ended) if one in previous), *ended),
        superseded=tuple(superseded),
    )


def _beside_line(whole: tuple[T, ...], line: tuple[T, ...]) -> tuple[T, ...]:
    return whole[: len(whole) - len(line)]


def _last_results(results: tuple[Superseded, ...]) -> list[Superseded]:
    kept: list[Superseded] = []
    room = MAX_RESULT_CHARS
    for one in reversed(results[-MAX_RESULTS:]):
        room -= len(row_codec.to_text(one.output))
        if room >= 0:
            kept.append(one)
    return kept[::-1]


# -- what is told ------------------------------------------------------------------------------------------------------


def sendable_record(number: int, by: str, run: Run) -> dict[str, Any]:
    """The record as every peer takes it, as far as there is a way to make it one."""
    run = _within_counts(run)
    sent = encode_record(number, by, run)
    if _is_accepted(sent):
        return sent
    for shorter in _shorter(run):
        sent = encode_record(number, by, shorter)
        if _is_accepted(sent):
            break
    return sent


def _is_accepted(sent: dict[str, Any]) -> bool:
    if record_length(sent["run"]) <= MAX_RECORD_CHARS // 8:  # however it is written on the way
        return True
    return fits_message(sent) and encoded_size(sent) <= MAX_SENT_BYTES


def _within_counts(run: Run) -> Run:
    run = run.changed(**dict(_capped_fields(run)))
    changes: dict[str, Any] = {}
    if len(run.story) > MAX_ENTRIES:
        line = own_story(run)
        room = MAX_ENTRIES - len(line)
        beside = _beside_line(run.story, line)[-room:] if room > 0 else ()
        changes["story"] = (*beside, *(line if room >= 0 else (line[0], *line[1 - MAX_ENTRIES :])))
    if len(run.previous) > MAX_ENTRIES:
        changes["previous"] = own_assignments(run)
    if len(run.superseded) > MAX_ENTRIES or len(set(blobs_of(run))) > MAX_RECORD_BLOBS:
        changes["superseded"] = tuple(_last_results(run.superseded))
    return run.changed(**changes) if changes else run


def _capped_fields(run: Run) -> Iterator[tuple[str, Any]]:
    """What our own steps may have brought beyond what is believed of a run: it decides nothing in another store."""
    for name in ("failures", "losses", "rounds"):
        if getattr(run, name) > MAX_ENTRIES:
            yield name, MAX_ENTRIES
    for name in ("not_before", "waiting_since"):
        if (getattr(run, name) or 0.0) >= MAX_NUMBER:
            yield name, float(MAX_NUMBER - 1)
    for name in ("paused", "stop_requested_by", "error"):
        text = getattr(run, name)
        if text is not None and len(text) > LONGEST_TEXT:
            yield name, text[:LONGEST_TEXT]
    if len(run.avoid) > MAX_ENTRIES:
        yield "avoid", run.avoid[-MAX_ENTRIES:]
    if len(run.declined) > MAX_ENTRIES:
        yield "declined", dict(list(run.declined.items())[-MAX_ENTRIES:])
    if any(len(one.why) > LONGEST_TEXT for one in run.story):
        yield "story", tuple(one._replace(why=one.why[:LONGEST_TEXT]) for one in run.story)
    if any(len(one.detail) > LONGEST_TEXT for one in run.previous):
        yield "previous", tuple(one._replace(detail=one.detail[:LONGEST_TEXT]) for one in run.previous)


def _shorter(run: Run) -> Iterator[Run]:
    """What is left out of a record that is too large, one after the other."""
    line = own_story(run)
    yield (run := run.changed(story=line, previous=own_assignments(run)))
    yield (run := run.changed(superseded=tuple(_last_results(run.superseded))))
    yield (run := run.changed(scores={}, avoid=(), declined={}))
    yield (run := run.changed(previous=tuple(one._replace(detail=one.detail[:100]) for one in run.previous)))
    yield (run := run.changed(superseded=()))
    kept = len(line)
    while kept > 2:
        kept //= 2
        yield run.changed(story=(line[0], *line[-kept:]))
