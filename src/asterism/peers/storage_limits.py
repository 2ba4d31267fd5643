"""Limits of what a peer may store here: a quota of runs and bytes for each peer, a size limit for each record.

**Quota**: runs, bytes of records, and bytes of the blobs they refer to. A peer is charged for each run that was first
received from it, and for the growth of records by what it sends, even if another store created the run. It is not
charged for additions to a run that was created here, since that is what it received the run for. When a run is
forgotten, its charge is dropped. A record beyond the quota is refused with one notice; the sender keeps it and receives
the reason. The rest of the sync continues. When there is room again, because runs were forgotten or the setting was
raised, the peer is asked to send everything once more (ingest.py), so nothing is lost.

**Record size**: messages and records have limits (messages.py, core/run/peer_record_validation.py), and a peer that
lies may send a record that is just within one of them. If our next step exceeded it, every other peer would refuse the
run from then on, and the honest stores could never agree again. So history beside the winning record
(core/run/merge.py) is accepted only while the merged record stays within half of each limit; beyond that, only what we
knew before is kept, or nothing but results. A record that exceeds a limit by its own history is sent
shortened: without the oldest entries of its story, and without fields that decide nothing. Its owner and its result are
never left out.

Two stores may then have different histories beside the record. They agree on the owner of the run and on its result.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any, TypeVar

from asterism.core.json_values import JsonObject
from asterism.core.run.merge import own_assignments, own_result, own_story
from asterism.core.run.peer_record_validation import LONGEST_TEXT, MAX_ENTRIES, MAX_NUMBER
from asterism.core.run.run import Run, Superseded
from asterism.fleet.settings import Settings
from asterism.peers.messages import (
    MAX_RECORD_BLOBS,
    MAX_RECORD_BYTES,
    MAX_RECORD_CHARS,
    encode_record,
    encoded_size,
    fits_message,
    record_length,
)
from asterism.peers.registry import Peer, peer_key
from asterism.store import row_codec
from asterism.store.dump_format import blob_sizes, blobs_of
from asterism.store.protocol import Contribution, Usage

MAX_RESULTS = 50
MAX_RESULT_CHARS = 1 << 20
"""How many superseded results, and how many characters of them, a record keeps that is too large."""

QUOTA_TOPIC = "quota"
"""The topic of the notice about an exceeded quota."""

REPLAY_FRACTION = 20
"""The peer is asked for everything again when one part in so many of the quota became free."""

_UNITS = Usage("runs", "bytes of records", "bytes of large inputs and outputs")  # type: ignore[arg-type]
_OPTIONS = Usage("--peer-runs", "--peer-bytes", "--peer-blobs")  # type: ignore[arg-type]

T = TypeVar("T")


# -- the quota of a peer -----------------------------------------------------------------------------------------------


def quota_limits(settings: Settings) -> Usage:
    return Usage(int(settings.peer_runs), int(settings.peer_bytes), int(settings.peer_blobs))


def storage_cost(peer: Peer, mine: Run | None, theirs: Run, after: Run) -> Contribution:
    """The charge for storing ``after``, which was merged from our record and the peer's."""
    known = blob_sizes(mine) if mine is not None else {}
    blobs = sum(size for name, size in blob_sizes(theirs).items() if name not in known)
    growth = _length(after) - (_length(mine) if mine is not None else 0)
    return Contribution(after.id, peer.store or "", int(mine is None), max(0, growth), blobs)


def _length(run: Run) -> int:
    return record_length(row_codec.row_of(run))


class Quota:
    """The quota of one peer while a batch of its records is ingested. ``exceeded`` says which limit refused a record,
    None if none did."""

    def __init__(self, peer: Peer, used: Usage, limits: Usage) -> None:
        self._peer, self._used, self._limits = peer, used, limits
        self.exceeded: str | None = None

    def reserve(self, cost: Contribution) -> str | None:
        """Charge a record. Returns why it does not fit, None if it does."""
        after = Usage(*(used + more for used, more in zip(self._used, cost[2:], strict=True)))
        for wanted, limit, more, unit, option in zip(after, self._limits, cost[2:], _UNITS, _OPTIONS, strict=True):
            if wanted > limit and more:
                self.exceeded = (
                    f"peer {self._peer.name} has used its quota of {limit:,} {unit} in this store. It keeps the "
                    f"refused records, and sends them again when there is room: raise the limit with `asterism fleet "
                    f"set {option}`, or forget old runs"
                )
                return self.exceeded
        self._used = after
        return None

    def remaining(self) -> list[int]:
        """What is left of each limit."""
        return [limit - used for used, limit in zip(self._used, self._limits, strict=True)]


def has_grown(before: list[Any], quota: Quota, limits: Usage) -> bool:
    """Whether there is enough more room than at the time of a refusal to ask for the records again."""
    return any(
        now >= then + max(1, limit // REPLAY_FRACTION)
        for then, now, limit in zip(before, quota.remaining(), limits, strict=True)
    )


def quota_key(peer: Peer) -> str:
    """The key of the register with the room that was left when a record of a peer was last refused."""
    return peer_key(peer.name, "full")


# -- the size of incoming records --------------------------------------------------------------------------------------


def limit_merged(mine: Run, theirs: Run, merged: Run) -> Run:
    """The merged record, shortened as far as needed to leave room for our own steps."""
    if not _is_too_large(merged):
        return merged
    results = set(map(repr, (*mine.superseded, *own_result(mine), *own_result(theirs))))
    lost = [result for result in merged.superseded if repr(result) in results]
    known = _with_beside(merged, set(mine.story), set(mine.previous), lost)
    return known if not _is_too_large(known) else _with_beside(merged, (), (), _last_results(known.superseded))


def _is_too_large(run: Run) -> bool:
    """Whether a record exceeds half of a limit, and has history beside its own."""
    if len(own_story(run)) == len(run.story) and len(own_assignments(run)) == len(run.previous) and not run.superseded:
        return False
    return (
        max(len(run.story), len(run.previous), len(run.superseded)) > MAX_ENTRIES // 2
        or len(set(blobs_of(run))) > MAX_RECORD_BLOBS // 2
        or record_length(row_codec.row_of(run)) > MAX_RECORD_CHARS // 2
    )


def _with_beside(run: Run, story: Collection[Any], previous: Collection[Any], superseded: Iterable[Superseded]) -> Run:
    """The record with its own history, and only these entries beside it."""
    line, ended = own_story(run), own_assignments(run)
    return run.changed(
        story=(*(entry for entry in _beside_line(run.story, line) if entry in story), *line),
        previous=(*(assignment for assignment in _beside_line(run.previous, ended) if assignment in previous), *ended),
        superseded=tuple(superseded),
    )


def _beside_line(whole: tuple[T, ...], line: tuple[T, ...]) -> tuple[T, ...]:
    return whole[: len(whole) - len(line)]


def _last_results(results: tuple[Superseded, ...]) -> list[Superseded]:
    last: list[Superseded] = []
    room = MAX_RESULT_CHARS
    for result in reversed(results[-MAX_RESULTS:]):
        room -= len(row_codec.to_text(result.output))
        if room >= 0:
            last.append(result)
    return last[::-1]


# -- the size of outgoing records --------------------------------------------------------------------------------------


def sendable_record(number: int, by: str, run: Run) -> JsonObject:
    """The record, shortened so that every peer accepts it, as far as possible."""
    run = _within_counts(run)
    sent = encode_record(number, by, run)
    if _is_accepted(sent):
        return sent
    for shorter in _shorter(run):
        sent = encode_record(number, by, shorter)
        if _is_accepted(sent):
            break
    return sent


def _is_accepted(sent: JsonObject) -> bool:
    if record_length(sent["run"]) <= MAX_RECORD_CHARS // 8:  # the worst case of JSON escapes
        return True
    return fits_message(sent) and encoded_size(sent) <= MAX_RECORD_BYTES


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
    """Fields that our own steps may have brought beyond a limit, capped: they decide nothing in another store."""
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
    if any(len(entry.why) > LONGEST_TEXT for entry in run.story):
        yield "story", tuple(entry._replace(why=entry.why[:LONGEST_TEXT]) for entry in run.story)
    if any(len(ended.detail) > LONGEST_TEXT for ended in run.previous):
        yield "previous", tuple(ended._replace(detail=ended.detail[:LONGEST_TEXT]) for ended in run.previous)


def _shorter(run: Run) -> Iterator[Run]:
    """Shorter and shorter versions of a record that is too large."""
    line = own_story(run)
    yield (run := run.changed(story=line, previous=own_assignments(run)))
    yield (run := run.changed(superseded=tuple(_last_results(run.superseded))))
    yield (run := run.changed(scores={}, avoid=(), declined={}))
    yield (run := run.changed(previous=tuple(ended._replace(detail=ended.detail[:100]) for ended in run.previous)))
    yield (run := run.changed(superseded=()))
    entries = len(line)
    while entries > 2:
        entries //= 2
        yield run.changed(story=(line[0], *line[-entries:]))
