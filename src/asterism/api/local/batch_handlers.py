"""Batches of a store: their documents, and what the operations of ``api/batch_operations`` do.

All figures are derived from the runs: the store counts them by status (``Store.batches``).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Literal

from asterism.api import batch_operations as declared
from asterism.api import documents
from asterism.api.documents import document_of
from asterism.api.local.run_handlers import act_on_runs
from asterism.api.run_operations import MOST_AT_ONCE, ActOnRuns
from asterism.api.system import LocalSystem
from asterism.base.follow import Looks
from asterism.base.secret_mask import Mask
from asterism.core.json_values import plain_json
from asterism.core.run.outcomes import attempts_of, work_time
from asterism.core.run.run import CLAIMED, COMPLETED, FAILED, PROCESSING, TERMINAL, Run
from asterism.fleet.fleet import Fleet
from asterism.fleet.ledger import blob_of
from asterism.fleet.run_queries import UnknownBatch, labels_of, list_runs, masks_of
from asterism.store.protocol import BatchPart, Query

WAIT_INTERVAL = 1.0
"""How often the runs of a batch are counted that somebody waits for, in seconds."""

WAIT_REST = 20.0
"""How many times as long as a count the pause after it is: all runs of a batch are counted, which takes long for
100,000."""

PACE = 100
"""How many of the last ends say how fast a batch is."""

MOST_FAILURES = 10
LAST_LINES = 3
"""How many failed runs are shown with a batch, and how many lines of each."""

LARGEST_PAGE = 8 << 20
"""After so many bytes of results that are stored apart a page ends."""


# -- reading -----------------------------------------------------------------------------------------------------------


async def list_batches(system: LocalSystem, request: declared.ListBatches) -> documents.Page[documents.Batch]:
    parts = await system.fleet.store.batches()
    batches = [_batch(list(group)) for _, group in groupby(parts, key=lambda part: part.batch)]
    batches.sort(key=lambda batch: batch.created_at, reverse=True)
    return documents.Page(items=batches, now=system.fleet.store.clock())


def _batch(parts: Sequence[BatchPart]) -> documents.Batch:
    """A batch of its parts; there is at least one."""

    def count(*statuses: str, cancelled: bool = False) -> int:
        return sum(part.number for part in parts if part.status in statuses and part.cancelled is cancelled)

    ended, running = count(*TERMINAL) + count(FAILED, cancelled=True), count(CLAIMED, PROCESSING)
    total = sum(part.number for part in parts)
    return documents.Batch(
        name=parts[0].batch,
        runs=total,
        waiting=total - ended - running,
        running=running,
        completed=count(COMPLETED),
        failed=count(FAILED),
        cancelled=count(FAILED, cancelled=True),
        ended=ended == total,
        created_at=min(part.created_at for part in parts),
        ended_at=max((part.ended_at for part in parts if part.ended_at is not None), default=None),
    )


async def _find_batch(fleet: Fleet, name: str) -> documents.Batch:
    parts = await fleet.store.batches(name)
    if not parts:
        raise UnknownBatch(name)
    return _batch(parts)


async def show_batch(system: LocalSystem, request: declared.OneBatch) -> documents.BatchDetails:
    return await _details(system.fleet, await _find_batch(system.fleet, request.batch))


async def wait_batch(system: LocalSystem, request: declared.WaitBatch) -> documents.BatchDetails:
    clock = system.fleet.clock
    async for last in Looks(clock, interval=WAIT_INTERVAL, timeout=request.timeout, rest=WAIT_REST):
        batch = await _find_batch(system.fleet, request.batch)
        if batch.ended or last:
            break
    return await _details(system.fleet, batch)


async def _details(fleet: Fleet, batch: documents.Batch) -> documents.BatchDetails:
    now = fleet.store.clock()
    rate = None if batch.ended else await _rate(fleet, batch, now)
    left = None if rate is None else (batch.waiting + batch.running) / rate
    failures = await _failures(fleet, batch.name) if batch.failed else []
    return document_of(documents.BatchDetails, batch, now=now, rate=rate, time_left=left, failures=failures)


async def _rate(fleet: Fleet, batch: documents.Batch, now: float) -> float | None:
    """How many runs ended per second, lately: since the earliest of the last PACE ends, or since the first run was
    created if fewer have ended. None if none has."""
    ends = await fleet.store.last_ends(batch.name, PACE)
    since = ends[-1] if len(ends) == PACE else batch.created_at
    return len(ends) / (now - since) if ends and now > since else None


async def _failures(fleet: Fleet, batch: str) -> list[documents.FailedRun]:
    """The newest runs that failed, with the last lines that they printed."""
    runs = (await list_runs(fleet, Query(batch=batch), MOST_FAILURES, statuses=["failed"])).runs
    labels = await labels_of(fleet, runs)
    return [
        document_of(documents.FailedRun, run, label=labels[run.id], tail=await _last_lines(fleet, run)) for run in runs
    ]


async def _last_lines(fleet: Fleet, run: Run) -> str:
    logs = await fleet.logs(run.id)
    return "".join(f"{line.text}\n" for line in logs[-1].lines[-LAST_LINES:]) if logs else ""


async def read_batch_results(
    system: LocalSystem, request: declared.ReadBatchResults
) -> documents.Page[documents.BatchResult]:
    fleet, limit = system.fleet, request.limit
    runs = await fleet.store.find(Query(batch=request.batch, statuses=TERMINAL, after=request.after, limit=limit + 1))
    if not runs and request.after is None:
        await _find_batch(fleet, request.batch)
    masks, labels = await masks_of(fleet, runs), await labels_of(fleet, runs)
    items: list[documents.BatchResult] = []
    size = 0
    for run in runs[:limit]:
        items.append(await _result(fleet, run, labels[run.id], masks[run.id]))
        size += run.output["size"] if blob_of(run.output) is not None else 0
        if size > LARGEST_PAGE:
            break
    following = runs[len(items) - 1].id if len(runs) > len(items) else None
    return documents.Page(items=items, next=following, now=fleet.store.clock())


async def _result(fleet: Fleet, run: Run, label: str, mask: Mask) -> documents.BatchResult:
    return document_of(
        documents.BatchResult,
        run,
        label=label,
        status=run.reported_status,
        input=mask.data(plain_json(run.input)),
        output=mask.result(await fleet.output(run)),
        attempts=attempts_of(run),
        took=work_time(run),
    )


# -- changing ----------------------------------------------------------------------------------------------------------


async def cancel_batch(system: LocalSystem, request: declared.CancelBatch) -> documents.BulkOutcome:
    return await _act(system, request, "cancel", "open")


async def retry_batch(system: LocalSystem, request: declared.RetryBatch) -> documents.BulkOutcome:
    return await _act(system, request, "retry", "failed" if request.failed else "failed,cancelled")


async def _act(
    system: LocalSystem,
    request: declared.CancelBatch | declared.RetryBatch,
    action: Literal["cancel", "retry"],
    status: str,
) -> documents.BulkOutcome:
    await _find_batch(system.fleet, request.batch)
    matching = ActOnRuns(
        status=status,
        batch=request.batch,
        after=request.after,
        limit=MOST_AT_ONCE,
        action=action,
        reason=request.reason,
    )
    return await act_on_runs(system, matching)
