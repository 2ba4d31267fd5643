"""What a peer is told: the changes since it last heard, the newest state of each run, and the workflows they need."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from asterism.core.resolve import line_of
from asterism.core.run import OWNED, Run
from asterism.runtime.fleet.fleet import Fleet
from asterism.runtime.peers.knowing import Peer
from asterism.runtime.peers.messages import LARGEST_BATCH, MOST_RECORDS, Cursor, record, size_of
from asterism.store.protocol import Change, Report, feed_of


@dataclass(frozen=True, slots=True)
class Part:
    """Of the feed: the changes after ``after`` up to ``upto``, but for those that the peer has."""

    after: int = 0
    upto: int = 0
    more: bool = False
    records: list[dict[str, Any]] = field(default_factory=list)
    workflows: list[dict[str, Any]] = field(default_factory=list)


class Sending:
    """Out of the store of ``fleet``, whose id is ``own`` and whose feed is ``feed``."""

    def __init__(self, fleet: Fleet, own: str, feed: str) -> None:
        self._fleet, self._own, self._id = fleet, own, feed
        self._feed = feed_of(fleet.store)

    async def newest(self) -> int:
        """The number of the last change."""
        return await self._feed.newest()

    async def behind(self, cursor: Cursor, upto: int) -> bool:
        """Whether a peer that has come so far was not told everything yet up to a number."""
        return await self._known(cursor) < upto

    async def part(self, peer: Peer, cursor: Cursor | None) -> Part:
        """What comes next for a peer that has come so far; for one that has never said so, everything."""
        after = await self._known(cursor) if cursor is not None else 0
        found = await self._feed.changes(after, MOST_RECORDS + 1)
        changes, more = found[:MOST_RECORDS], len(found) > MOST_RECORDS
        news = [change for change in changes if not (change.same and change.left_to == peer.store)]
        reports = await self._fleet.store.reports([one.run.id for one in news if one.run.status in OWNED])
        records: list[dict[str, Any]] = []
        size, upto = 0, changes[-1].number if changes else after
        for change in news:
            one = record(change.number, change.left_to or self._own, _with_progress(change.run, reports))
            size += size_of(one)
            if records and size > LARGEST_BATCH:
                return Part(after, records[-1]["number"], True, records, await self._flows(news[: len(records)]))
            records.append(one)
        return Part(after, upto, more, records, await self._flows(news))

    async def _known(self, cursor: Cursor) -> int:
        """How far a peer has come. What it says of another feed, or of changes that never were, means nothing."""
        good = cursor.feed == self._id and cursor.number <= await self._feed.newest()
        return cursor.number if good else 0

    async def _flows(self, changes: list[Change]) -> list[dict[str, Any]]:
        kinds = sorted({(change.run.workflow, change.run.version) for change in changes})
        return [(await self._fleet.workflows.get(*kind)).to_json() for kind in kinds]


def _with_progress(run: Run, reports: dict[str, Report]) -> Run:
    """With how far its owner says it has come. Not if that decides between two of them who know of each other: what was
    compared once is compared by what is in the record, or they would overtake each other for ever."""
    report = reports.get(run.id)
    if report is None or report.progress is None or report.epoch != run.epoch:
        return run
    if run.keep == "furthest" and len(line_of(run)) < len(run.story):
        return run
    return run.changed(progress=report.progress)
