"""Outgoing batches: changed runs that a peer has not received, and the workflows they need.

A record that is too large for any message, or whose workflow is gone, is skipped with a notice; the others are sent.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from asterism.core.errors import InvalidWorkflow
from asterism.core.json_values import JsonObject
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
from asterism.peers.registry import Peer
from asterism.peers.rollback_detection import FeedMarks
from asterism.peers.storage_limits import sendable_record
from asterism.store.protocol import Change, Notice, ProgressReport, feed_of


@dataclass(frozen=True, slots=True)
class OutgoingBatch:
    """The changes of the feed after ``after`` up to ``upto``, without those that came from the peer. All fields are
    those of a message (messages.py)."""

    after: int = 0
    upto: int = 0
    more: bool = False
    turn: int = 0
    mark: str = ""
    anew: bool = False
    put_back: bool = False
    whole: bool = False
    records: list[JsonObject] = field(default_factory=list)
    workflows: list[JsonObject] = field(default_factory=list)


class _WorkflowData(NamedTuple):
    data: JsonObject
    size: int


class Outgoing:
    """Batches out of the store of ``fleet``, whose id is ``own`` and whose feed has the id ``feed``."""

    def __init__(self, fleet: Fleet, own: str, feed: str) -> None:
        self._fleet, self._own = fleet, own
        self._feed = feed_of(fleet.store)
        self._marks = FeedMarks(fleet, feed)

    async def newest(self) -> int:
        """The number of the last change."""
        return await self._feed.newest()

    async def is_behind(self, peer: Peer, cursor: Cursor, upto: int) -> bool:
        """Whether changes up to ``upto`` are left to send to a peer with this cursor. The last changes may belong to
        runs that are forgotten by now; then nothing is left."""
        position = await self._marks.position(peer, cursor)
        return position.anew or (position.number < upto and bool(await self._feed.changes(position.number, 1)))

    async def accepts(self, peer: Peer, cursor: Cursor) -> bool:
        """Whether a cursor of an earlier sync is still valid. The peer may have received so much since that its old
        mark is forgotten, or it may be another store by now."""
        return peer.store is not None and not (await self._marks.position(peer, cursor)).anew

    async def next_batch(self, peer: Peer, cursor: Cursor | None) -> OutgoingBatch:
        """The next batch for a peer with this cursor; without a cursor it starts with the first change."""
        position = await self._marks.position(peer, cursor)
        if cursor is not None and position.rolled_back:
            await self._marks.record_rollback(peer, cursor)
        after, whole = position.number, cursor is None or cursor.whole
        fetched = await self._feed.changes(after, MAX_BATCH_RECORDS + 1)
        changes, more = fetched[:MAX_BATCH_RECORDS], len(fetched) > MAX_BATCH_RECORDS
        news = [change for change in changes if whole or not _came_from(peer, change)]
        reports = await self._fleet.store.reports([change.run.id for change in news if change.run.status in OWNED])
        workflows: dict[tuple[str, int], _WorkflowData] = {}  # of this batch
        records: list[JsonObject] = []
        size, upto = 0, after
        for change in changes:
            if whole or not _came_from(peer, change):
                record = sendable_record(
                    change.number, change.left_to or self._own, _with_progress(change.run, reports)
                )
                kind = (change.run.workflow, change.run.version)
                workflow, length = workflows.get(kind) or await self._workflow(*kind), encoded_size(record)
                if workflow is None or not fits_message(record) or length + workflow.size > MAX_RECORD_BYTES:
                    await self._skip(peer, change.run, workflow)
                else:
                    size += length + (workflow.size if kind not in workflows else 0)
                    if records and size > MAX_BATCH_BYTES:
                        more = True
                        break
                    records.append(record)
                    workflows[kind] = workflow
            upto = change.number
        # after the changes were read: a peer that returns the mark has received at least these (see the module)
        turn, mark = await self._marks.new_mark(peer, cursor, upto) if upto > after else (0, "")
        data = [workflows[kind].data for kind in sorted(workflows)]
        return OutgoingBatch(after, upto, more, turn, mark, position.anew, position.rolled_back, whole, records, data)

    async def _workflow(self, name: str, version: int) -> _WorkflowData | None:
        """None if it is gone: it was forgotten with the plan it belonged to, but another store's run of it is left."""
        try:
            data = (await self._fleet.workflows.get(name, version)).to_record()
        except (UnknownWorkflow, InvalidWorkflow):
            return None
        return _WorkflowData(data, encoded_size(data))

    async def _skip(self, peer: Peer, run: Run, workflow: _WorkflowData | None) -> None:
        reason = f"its workflow {run.kind} is no longer in this store"
        if workflow is not None:
            reason = f"with its workflow it is too large for a message (limit: {MAX_RECORD_CHARS:,} characters)"
        message = f"run {run.id} was not sent to peer {peer.name}: {reason}"
        notice = Notice(self._fleet.store.clock(), "refused", message, run.id)
        await peer_notices.notify_once(self._fleet.store, peer.name, notice)


def _came_from(peer: Peer, change: Change) -> bool:
    """Whether our record is the one that this peer sent."""
    return change.same and change.left_to == peer.store


def _with_progress(run: Run, reports: dict[str, ProgressReport]) -> Run:
    """The run with the progress its owner last reported. Not if progress decides between two records that know of each
    other: once compared, they are compared by what the records contain, or they would overtake each other forever."""
    report = reports.get(run.id)
    if report is None or report.progress is None or report.epoch != run.epoch:
        return run
    if run.keep == "furthest" and len(own_story(run)) < len(run.story):
        return run
    return run.changed(progress=report.progress)
