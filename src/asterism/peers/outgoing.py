"""What a peer is told: the changes since it last heard, the newest state of each run, and the workflows they need. What
is too large for any message, or whose workflow is gone, is passed over with a notice, and stops nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from asterism.core.errors import InvalidWorkflow
from asterism.core.run.merge import own_story
from asterism.core.run.run import OWNED, Run
from asterism.fleet.fleet import Fleet
from asterism.fleet.workflows import UnknownWorkflow
from asterism.peers import peer_notices
from asterism.peers.messages import (
    MAX_BATCH_BYTES,
    MAX_BATCH_RECORDS,
    MAX_RECORD_BYTES,
    MAX_RECORD_CHARS,
    Cursor,
    encoded_size,
    fits_message,
)
from asterism.peers.record_limits import sendable_record
from asterism.peers.registry import Peer
from asterism.peers.rollback_detection import FeedMarks
from asterism.store.protocol import Change, Notice, ProgressReport, feed_of


@dataclass(frozen=True, slots=True)
class OutgoingBatch:
    """Of the feed: the changes after ``after`` up to ``upto``, but for those that the peer has. The other fields are
    those of a message."""

    after: int = 0
    upto: int = 0
    more: bool = False
    turn: int = 0
    mark: str = ""
    anew: bool = False
    put_back: bool = False
    whole: bool = False
    records: list[dict[str, Any]] = field(default_factory=list)
    workflows: list[dict[str, Any]] = field(default_factory=list)


class _WorkflowData(NamedTuple):
    data: dict[str, Any]
    size: int


class Outgoing:
    """Out of the store of ``fleet``, whose id is ``own`` and whose feed is ``feed``."""

    def __init__(self, fleet: Fleet, own: str, feed: str) -> None:
        self._fleet, self._own = fleet, own
        self._feed = feed_of(fleet.store)
        self._marks = FeedMarks(fleet, feed)

    async def newest(self) -> int:
        """The number of the last change."""
        return await self._feed.newest()

    async def is_behind(self, peer: Peer, cursor: Cursor, upto: int) -> bool:
        """Whether a peer that has come so far was not told everything yet up to a number. The last changes may be of
        runs that are forgotten by now: then there is nothing left to tell."""
        position = await self._marks.position(peer, cursor)
        return position.anew or (position.number < upto and bool(await self._feed.changes(position.number, 1)))

    async def accepts(self, peer: Peer, cursor: Cursor) -> bool:
        """Whether it can be told by what it said in another meeting of how far it has come. It may have heard so much
        since that its mark of then is forgotten; or be somebody else by now."""
        return peer.store is not None and not (await self._marks.position(peer, cursor)).anew

    async def next_batch(self, peer: Peer, cursor: Cursor | None) -> OutgoingBatch:
        """What comes next for a peer that has come so far; for one that has never said so, everything."""
        position = await self._marks.position(peer, cursor)
        if cursor is not None and position.put_back:
            await self._marks.record_rollback(peer, cursor)
        after, whole = position.number, cursor is None or cursor.whole
        found = await self._feed.changes(after, MAX_BATCH_RECORDS + 1)
        changes, more = found[:MAX_BATCH_RECORDS], len(found) > MAX_BATCH_RECORDS
        news = [change for change in changes if whole or not _came_from(peer, change)]
        reports = await self._fleet.store.reports([one.run.id for one in news if one.run.status in OWNED])
        flows: dict[tuple[str, int], _WorkflowData] = {}  # of this part
        records: list[dict[str, Any]] = []
        size, upto = 0, after
        for change in changes:
            if whole or not _came_from(peer, change):
                one = sendable_record(change.number, change.left_to or self._own, _with_progress(change.run, reports))
                kind = (change.run.workflow, change.run.version)
                flow, length = flows.get(kind) or await self._flow(*kind), encoded_size(one)
                if flow is None or not fits_message(one) or length + flow.size > MAX_RECORD_BYTES:
                    await self._pass_over(peer, change.run, flow)
                else:
                    size += length + (flow.size if kind not in flows else 0)
                    if records and size > MAX_BATCH_BYTES:
                        more = True
                        break
                    records.append(one)
                    flows[kind] = flow
            upto = change.number
        # after the changes were read: whoever knows the mark later has come at least so far (marking.py)
        turn, mark = await self._marks.new_mark(peer, cursor, upto) if upto > after else (0, "")
        workflows = [flows[kind].data for kind in sorted(flows)]
        return OutgoingBatch(after, upto, more, turn, mark, position.anew, position.put_back, whole, records, workflows)

    async def _flow(self, name: str, version: int) -> _WorkflowData | None:
        """None if it is gone: forgotten with what it belonged to, while somebody else's run of it is still told."""
        try:
            data = (await self._fleet.workflows.get(name, version)).to_json()
        except (UnknownWorkflow, InvalidWorkflow):
            return None
        return _WorkflowData(data, encoded_size(data))

    async def _pass_over(self, peer: Peer, run: Run, flow: _WorkflowData | None) -> None:
        why = f"its workflow {run.kind} is not kept here any more"
        if flow is not None:
            most = f"a record has {MAX_RECORD_CHARS:,} characters at most"
            why = f"it is too large for a message, or it and its workflow are ({most})"
        words = f"run {run.id} was not sent to peer {peer.name}: {why}"
        notice = Notice(self._fleet.store.clock(), "refused", words, run.id)
        await peer_notices.notify_once(self._fleet.store, peer.name, notice)


def _came_from(peer: Peer, change: Change) -> bool:
    """Whether it is just what came from there."""
    return change.same and change.left_to == peer.store


def _with_progress(run: Run, reports: dict[str, ProgressReport]) -> Run:
    """With how far its owner says it has come. Not if that decides between two of them who know of each other: what was
    compared once is compared by what is in the record, or they would overtake each other for ever."""
    report = reports.get(run.id)
    if report is None or report.progress is None or report.epoch != run.epoch:
        return run
    if run.keep == "furthest" and len(own_story(run)) < len(run.story):
        return run
    return run.changed(progress=report.progress)
