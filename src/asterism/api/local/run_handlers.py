"""Runs, batches, workflows, limits and events of a store: their documents, and what the operations on them do."""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
import shlex
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from itertools import groupby
from typing import Any, Literal

from asterism.api import documents
from asterism.api import run_operations as declared
from asterism.api.documents import document_of
from asterism.api.operation import NoFields
from asterism.api.run_operations import MOST_AT_ONCE, ActOnRuns
from asterism.api.system import LocalSystem
from asterism.base.clock import Looks
from asterism.base.http_limits import RequestRefused
from asterism.base.secret_mask import Mask
from asterism.base.text import short
from asterism.core.attempt_log import LogReader
from asterism.core.errors import AsterismError, RunRefused
from asterism.core.json_values import plain_json
from asterism.core.limits import SERIES, SERIES_LIMIT, InvalidLimit, Limit, LimitedRuns, Rate, limit_for, uses_of
from asterism.core.plan.task import action_needs, plugins_in
from asterism.core.record import asdict
from asterism.core.run.run import ASSIGNED, CLAIMED, COMPLETED, FAILED, PROCESSING, TERMINAL, UNOWNED, Run
from asterism.core.run.run_label import shown_label
from asterism.core.run.transitions import attempts_of, waiting_time, work_time
from asterism.core.run.work import DEFAULTS, Workflow
from asterism.fleet import sent_events, stored_limits
from asterism.fleet.bulk_creation import (
    BulkCreation,
    InvalidInput,
)
from asterism.fleet.fleet import Fleet, attempt_number, reported_progress
from asterism.fleet.ledger import blob_of
from asterism.fleet.run_explanation import RunExplanation
from asterism.fleet.run_explanation import explain_run as explain
from asterism.fleet.run_queries import RunList, UnknownBatch, find_run, labels_of, masks_of
from asterism.fleet.run_queries import list_runs as find_runs
from asterism.fleet.sent_events import SentEvent
from asterism.fleet.stored_limits import LimitNotSet, StoredLimits, read_stored_limits
from asterism.fleet.workflows import UnknownWorkflow, WorkflowInUse, check_input, input_names
from asterism.peers.registry import PeerRegistry
from asterism.peers.takeover import held_runs
from asterism.store.protocol import BatchPart, Notice, Query, Store, feed_of, has_feed
from asterism.store.store_errors import StoreError

AT_ONE_TIME = 100
"""How many runs are acted on at one time, so that a store commits them together."""

MOVE_TIMEOUT = 10.0
"""How long a request waits until a device has handed back a run that is moved, in seconds."""

TAIL = 20
"""How many lines of the output of a run are shown with it."""

SLICE = 250
"""After so many documents of runs others get their turn in the event loop."""

MOST_LINES = 5_000
"""After so many lines of a log an answer ends."""

LOG_INTERVAL = 0.5
"""How often the store is asked for new lines, in seconds."""


# -- documents ---------------------------------------------------------------------------------------------------------


async def run_documents(fleet: Fleet, runs: Sequence[Run]) -> list[documents.Run]:
    """Runs as every door shows them, with secrets masked."""
    described: list[documents.Run] = []
    for start in range(0, len(runs), SLICE):
        some = runs[start : start + SLICE]
        fields = await _run_fields(fleet, some)
        described += [document_of(documents.Run, run, **fields[run.id]) for run in some]
        await asyncio.sleep(0)
    return described


async def run_document(fleet: Fleet, run: Run) -> documents.Run:
    [document] = await run_documents(fleet, [run])
    return document


async def _run_fields(fleet: Fleet, runs: Sequence[Run]) -> dict[str, dict[str, Any]]:
    """The fields of documents of runs that their records do not have, or in another form."""
    masks = masks_of(runs)
    open_runs = [run for run in runs if not run.ended]
    held = await held_runs(fleet.store, [run.id for run in open_runs]) if open_runs else {}
    begun = [run.id for run in open_runs if run.started_at is not None]  # the others have no report of their epoch
    reports = await fleet.store.reports(begun) if begun else {}
    sessions = await fleet.store.sessions(ended=True) if any(run.session is not None for run in runs) else ()
    beats, now = {session.id: session.beat_at for session in sessions}, fleet.store.clock()
    progress = {run.id: reported_progress(run, reports) for run in runs}
    steps = {run: None if step is None else document_of(documents.Step, step) for run, step in progress.items()}
    return {
        run.id: {
            **_fields_of(run, masks[run.id]),
            "last_heartbeat_at": None if run.session is None else beats.get(run.session),
            "progress": steps[run.id],
            "waiting": waiting_for(run, run.id in held, now),
            "held_for": held.get(run.id),
        }
        for run in runs
    }


def _fields_of(run: Run, mask: Mask) -> dict[str, Any]:
    run_input = mask.data(plain_json(run.input))
    return {
        "heartbeat_timeout": run.timeout,
        "wish": run.stop_request,
        "wished_by": run.stop_requested_by,
        "status": run.reported_status,
        "assigned_to": run.device,
        "assignment_expires_at": run.due_at if run.status is ASSIGNED else None,
        "claim_expires_at": run.due_at if run.status is CLAIMED else None,
        "completed_at": run.ended_at if run.status is COMPLETED else None,
        "failed_at": run.ended_at if run.status is FAILED and not run.cancelled else None,
        "cancelled_at": run.ended_at if run.cancelled else None,
        "declined": dict(run.declined),
        "previous_assignments": [document_of(documents.PreviousAssignment, assignment) for assignment in run.previous],
        "scores": dict(run.scores),
        "uses": {name: amount for name, amount in uses_of(run.uses).items() if not name.startswith(SERIES)} or None,
        "held": run.awaits_turn,
        "attempts": attempts_of(run),
        "took": work_time(run),
        "waited": None if run.ended_at is None else waiting_time(run),
        "input": run_input,
        "shown_label": shown_label(run, run_input),
        "output": mask.result(plain_json(run.output)),
        "superseded": [
            document_of(documents.SupersededResult, result, output=mask.result(plain_json(result.output)))
            for result in run.superseded
        ],
        "story": [document_of(documents.StoryEntry, entry) for entry in run.story],
    }


def waiting_for(run: Run, held: bool, now: float) -> declared.WaitingFor | None:
    """What a run waits for, in a word. ``held`` is whether a peer may still execute it. None if it has ended, or a
    device works on it."""
    if run.ended:
        return None
    if run.paused is not None:
        return "person"
    if held:
        return "peer"
    if run.status in (ASSIGNED, CLAIMED):
        return "claim"
    if run.status not in UNOWNED:
        return None
    if run.not_before > now:
        return "retry"
    if run.awaits_turn:
        return "turn"
    return "device" if run.uses is None else "limit"


def notice_document(number: int, notice: Notice) -> documents.Notice:
    return document_of(documents.Notice, notice, number=number)


# -- reading -----------------------------------------------------------------------------------------------------------


async def list_runs(system: LocalSystem, request: declared.ListRuns) -> documents.Page[documents.Run]:
    page = await _matches(system.fleet, request)
    items = await run_documents(system.fleet, page.runs)
    return documents.Page(items=items, next=page.next, now=system.fleet.store.clock())


async def _matches(fleet: Fleet, request: declared.ListRuns) -> RunList:
    statuses = tuple(request.status.split(",")) if request.status else ()
    unknown = [status for status in statuses if status not in declared.STATUSES]
    if unknown:
        raise RequestRefused(422, f"{unknown[0]!r} is not a status; they are: {', '.join(declared.STATUSES)}")
    query = Query(
        **{name: getattr(request, name) for name in ("workflow", "device", "series", "batch", "search", "after")}
    )
    if request.waiting is None:
        return await find_runs(fleet, query, request.limit, statuses=statuses)
    choose = partial(_choose_waiting, fleet, request.waiting)
    return await find_runs(fleet, query, request.limit, statuses=statuses or ("open",), choose=choose)


async def _choose_waiting(fleet: Fleet, waiting: declared.WaitingFor, runs: Sequence[Run]) -> list[Run]:
    """Those of some runs that wait for this."""
    held = await held_runs(fleet.store, [run.id for run in runs if not run.ended])
    now = fleet.store.clock()
    return [run for run in runs if waiting_for(run, run.id in held, now) == waiting]


async def show_run(system: LocalSystem, request: declared.OneRun) -> documents.RunDetails:
    fleet = system.fleet
    run = await find_run(fleet, request.run)
    fields = (await _run_fields(fleet, [run]))[run.id]
    report = (await fleet.store.reports([run.id])).get(run.id)
    logs, why = await fleet.logs(run.id), await explain(fleet, run.id)
    tail = "" if report is None else report.tail
    if logs:
        tail = "".join(f"{line.text}\n" for line in logs[-1].lines[-TAIL:])
    notices = await fleet.store.notices(run=run.id)
    return document_of(
        documents.RunDetails,
        run,
        **fields,
        now=fleet.store.clock(),
        tail=tail,
        more_output=bool(logs) and len(logs[-1].lines) > TAIL,
        notices=[notice_document(number, notice) for number, notice in notices],
        why=_reasons(why),
        advice=await run_advice(fleet, run, why),
    )


async def explain_run(system: LocalSystem, request: declared.OneRun) -> documents.RunWhy:
    run = await find_run(system.fleet, request.run)
    why = await explain(system.fleet, run.id)
    advice = await run_advice(system.fleet, run, why)
    return documents.RunWhy(run=why.run_id, status=why.status, reasons=_reasons(why), advice=advice)


def _reasons(why: RunExplanation) -> list[documents.Reason]:
    return list(why.reasons)


async def run_advice(fleet: Fleet, run: Run, why: RunExplanation) -> list[str]:
    """A sentence with a command for each reason that has one."""
    kinds = {reason.kind for reason in why.reasons}
    lines = []
    if "pause" in kinds:
        lines.append(f"Resume it with: asterism runs resume {short(run.id)}")
    for name in [reason.name for reason in why.reasons if reason.kind == "suspended"]:
        lines.append(f"Look for the fault on {name}: it tries a run from time to time, and recovers when one succeeds.")
    lines += [
        f"Run it here, with the other runs of the peer: asterism peer remove {shlex.quote(str(reason.name))} --adopt"
        for reason in why.reasons
        if reason.kind == "removed"
    ]
    there = run.pinned is not None and kinds & {"objection", "suspended"}  # the only device that may run it
    if "no_device" in kinds and not there:
        lines += await _device_advice(fleet, run)
    if "unwatched" in kinds:
        lines.append("Start a coordinator: asterism monitor, or any device: asterism device join NAME")
    return lines


async def _device_advice(fleet: Fleet, run: Run) -> list[str]:
    """How to get a device that can execute a run."""
    work = run.work
    name = shlex.quote(run.pinned) if run.pinned is not None else "NAME"
    can = "".join(f" --can {shlex.quote(need)}" for need in sorted(work.needs - action_needs(work)))
    can += " --agent COMMAND" if work.agent is not None else ""
    lines = [f"On any machine that reaches the store, start a capable device: asterism device join {name}{can}"]
    lines += [
        f"It has to have the plug-in {name!r}: asterism plugins lists its plug-ins" for name in plugins_in(work.needs)
    ]
    called = [peer.name for peer in await PeerRegistry(fleet.store).all() if peer.url is not None]
    if called:
        peer = shlex.quote(called[0]) if len(called) == 1 else "NAME"
        lines.append(f"Or offer it to the devices of a peer: asterism peer sync {peer}")
    return lines


async def read_output(system: LocalSystem, request: declared.OneRun) -> documents.RunOutput:
    run = await find_run(system.fleet, request.run)
    if not run.ended or run.error is not None:
        raise RequestRefused(409, f"run {run.id} is {run.reported_status}: it has no output")
    masks = masks_of([run])
    return documents.RunOutput(run=run.id, output=masks[run.id].result(await system.fleet.output(run)))


async def read_run_logs(system: LocalSystem, request: declared.ReadRunLogs) -> documents.RunLog:
    fleet, run_id = system.fleet, (await find_run(system.fleet, request.run)).id
    after = _place(request.after)
    async for last in Looks(fleet.clock, interval=LOG_INTERVAL, timeout=request.timeout):
        run = await fleet.run(run_id)  # before its log: the last lines come with the end
        items, (epoch, seen) = await new_lines(fleet, run, after, attempt=request.attempt, most=MOST_LINES)
        if items or run.ended or last:
            break
    elsewhere = has_feed(fleet.store) and bool(await feed_of(fleet.store).left_to([run_id]))
    return documents.RunLog(
        items=items,
        next=f"{epoch}.{seen}",
        now=fleet.store.clock(),
        run=run_id,
        status=run.reported_status,
        ended=run.ended,
        elsewhere=elsewhere,
    )


LogPlace = tuple[int, int]
"""A place in the log of a run: an epoch, and how many of its lines come before."""

LOG_BEGIN: LogPlace = (0, 0)


async def new_lines(
    fleet: Fleet, run: Run, after: LogPlace, *, attempt: int | None = None, most: float = math.inf
) -> tuple[list[documents.LogEntry], LogPlace]:
    """The lines of a run after a place, or those of one attempt, and the place where they end. No part of the log is
    read once there are ``most`` lines."""
    epoch, seen = after
    items: list[documents.LogEntry] = []
    for stored in await fleet.store.log(run.id, after=after):
        number = attempt_number(run, stored.epoch)
        if attempt not in (None, number):
            continue
        if len(items) >= most:
            break
        reader = LogReader(seen if stored.epoch == epoch else 0)
        lines = reader.read([await fleet.log_chunk(stored)])
        items += [documents.LogEntry(attempt=number, **line._asdict()) for line in lines]
        epoch, seen = stored.epoch, reader.seen
    return items, (epoch, seen)


def _place(after: str | None) -> LogPlace:
    """The place that an answer named as ``EPOCH.LINE``. Raises RequestRefused."""
    if after is None:
        return LOG_BEGIN
    match = re.fullmatch(r"([0-9]{1,9})\.([0-9]{1,12})", after)
    if match is None:
        raise RequestRefused(422, f"after={after!r} is not the `next` of an earlier answer")
    return int(match[1]), int(match[2])


async def wait_run(system: LocalSystem, request: declared.WaitRun) -> documents.Run:
    run = await find_run(system.fleet, request.run)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(request.timeout):
            run = await system.fleet.wait(run.id)
    return await run_document(system.fleet, await system.fleet.run(run.id))


# -- changing ----------------------------------------------------------------------------------------------------------


async def create_run(system: LocalSystem, request: declared.CreateRun) -> documents.Run:
    fleet, entry = system.fleet, system.entry
    options = {name: value for name, value in asdict(request).items() if name not in ("workflow", "input", "near")}
    flow = await fleet.workflows.find(request.workflow)
    check_input(flow, request.input)

    async def add(run: Run, assign: Callable[[Run], Run]) -> Run:
        assert entry is not None
        added = await fleet.ledger.add(run, assign, beside=[entry.write(run.id)])
        entry.written = added.id == run.id  # else its key is taken, and nothing was written
        return added

    run = await fleet.create(flow, request.input, near=request.near, add=add, **options)
    return await run_document(fleet, run)


async def create_runs(system: LocalSystem, request: declared.CreateRuns) -> documents.CreatedRuns:
    fleet = system.fleet
    flow = await fleet.workflows.find(request.workflow)
    needed = input_names(flow)
    for index, values in enumerate(request.inputs):
        missing = sorted(needed - values.keys())
        if missing:
            why = f"workflow {flow.name!r} needs {' and '.join(missing)}, and the input does not have it"
            raise InvalidInput(index, why)
    names = ("label", "key", "series", "priority", "device", "keep", "batch")
    options = {name: getattr(request, name) for name in names if getattr(request, name) is not None}
    assert system.entry is not None
    created = await BulkCreation(fleet, flow, **options).add(request.inputs, system.entry.write(flow.name))
    system.entry.written = True
    runs = [document_of(documents.CreatedRun, run) for run in created.runs]
    return documents.CreatedRuns(runs=runs, created=created.created)


async def pause_run(system: LocalSystem, request: declared.ChangeRun) -> documents.Run:
    return await _change(system, request, system.fleet.pause)


async def resume_run(system: LocalSystem, request: declared.ChangeRun) -> documents.Run:
    return await _change(system, request, system.fleet.resume)


async def cancel_run(system: LocalSystem, request: declared.ChangeRun) -> documents.Run:
    if system.editor is not None:
        from asterism.api.local.edit_handlers import check_cancel_run  # with plans, which people do not need

        check_cancel_run(await find_run(system.fleet, request.run))
    return await _change(system, request, system.fleet.cancel)


async def retry_run(system: LocalSystem, request: declared.ChangeRun) -> documents.Run:
    return await _change(system, request, system.fleet.retry)


async def _change(
    system: LocalSystem, request: declared.ChangeRun, change: Callable[[str, str], Awaitable[Run]]
) -> documents.Run:
    run = await find_run(system.fleet, request.run)
    return await run_document(system.fleet, await change(run.id, request.reason))


async def move_run(system: LocalSystem, request: declared.MoveRun) -> documents.Run:
    """If its device takes long to hand the run back, the answer is the run as it is, and the move goes on."""
    fleet = system.fleet
    run = await find_run(fleet, request.run)
    work = system.spawn(fleet.move(run.id, request.device, stop=request.stop, reason=request.reason))
    await asyncio.wait([work], timeout=MOVE_TIMEOUT)
    return await run_document(fleet, work.result() if work.done() else await fleet.run(run.id))


async def prune_runs(system: LocalSystem, request: declared.PruneRuns) -> documents.PrunedRuns:
    return documents.PrunedRuns(pruned=await system.fleet.prune(request.older_than))


async def act_on_runs(system: LocalSystem, request: declared.ActOnRuns) -> documents.BulkOutcome:
    """Act on the runs that match, each on its own: a refusal of one does not stop the others. A store commits those
    of one time together (``store/sqlite/group_commit``), and a second request finds what the first has done."""
    if not request.all and not request.conditions:
        names = ", ".join(declared.CONDITIONS)
        raise RequestRefused(422, f'this would act on every run: give a condition ({names}), or "all"')
    page, fleet = await _matches(system.fleet, request), system.fleet
    action = {"pause": fleet.pause, "resume": fleet.resume, "cancel": fleet.cancel, "retry": fleet.retry}
    changed: list[str] = []
    refused: dict[str, str] = {}
    for first in range(0, len(page.runs), AT_ONE_TIME):
        runs = page.runs[first : first + AT_ONE_TIME]
        acts = [action[request.action](run.id, request.reason) for run in runs]
        for run, outcome in zip(runs, await asyncio.gather(*acts, return_exceptions=True), strict=True):
            if isinstance(outcome, Run):
                changed.append(outcome.id)
            elif isinstance(outcome, AsterismError) and not isinstance(outcome, StoreError):
                refused[run.id] = outcome.why if isinstance(outcome, RunRefused) else str(outcome)
            else:
                raise outcome
    return documents.BulkOutcome(changed=changed, refused=refused, next=page.next)


# -- batches of a store ------------------------------------------------------------------------------------------------


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


async def list_batches(system: LocalSystem, request: NoFields) -> documents.Page[documents.Batch]:
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
    runs = (await find_runs(fleet, Query(batch=batch), MOST_FAILURES, statuses=["failed"])).runs
    labels = labels_of(runs)
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
    masks = masks_of(runs)
    labels = labels_of(runs, masks)
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


# -- workflows of a store ----------------------------------------------------------------------------------------------


async def list_workflows(system: LocalSystem, request: NoFields) -> documents.Page[documents.Workflow]:
    flows = await system.fleet.workflows.all()
    return documents.Page(items=[documents.Workflow(**_fields(flow)) for flow in flows])


async def show_workflow(system: LocalSystem, request: declared.OneWorkflow) -> documents.Workflow:
    return documents.Workflow(**_fields(await system.fleet.workflows.find(request.workflow)))


async def add_workflow(system: LocalSystem, request: declared.AddWorkflow) -> documents.AddedWorkflow:
    workflows, wanted = system.fleet.workflows, Workflow.from_json(request.workflow)
    try:
        before = (await workflows.latest(wanted.name)).version
    except UnknownWorkflow:
        before = 0
    flow = await workflows.add(wanted)
    await system.leave_reason(f"added workflow {flow.name}@{flow.version}", request.reason)
    return documents.AddedWorkflow(**_fields(flow), added=flow.version != before)


async def remove_workflow(system: LocalSystem, request: declared.RemoveWorkflow) -> documents.Workflow:
    fleet, name = system.fleet, request.workflow
    for schedule in await fleet.schedules.all():
        if schedule.workflow == name:
            raise WorkflowInUse(
                f"workflow {name!r} is not removed: schedule {schedule.name!r} creates its runs. "
                f"Remove that first with: asterism schedule remove {schedule.name}"
            )
    flow = await fleet.workflows.remove(name)
    await system.leave_reason(f"removed workflow {flow.name!r}", request.reason)
    return documents.Workflow(**_fields(flow))


def _fields(flow: Workflow) -> dict[str, Any]:
    """All fields of a workflow, including defaults."""
    fields: dict[str, Any] = {"name": flow.name, "version": flow.version}
    for name in DEFAULTS:
        value = getattr(flow, name)
        fields[name] = plain_json(sorted(value) if isinstance(value, frozenset) else value, f"{name} of {flow.name!r}")
    return fields


# -- limits of a store -------------------------------------------------------------------------------------------------


MOST_NAMED = 100
"""How many runs that hold a limit, and how many that wait for it, are named."""


async def list_limits(system: LocalSystem, request: NoFields) -> documents.Page[documents.Limit]:
    store = system.fleet.store
    stored = await read_stored_limits(store)
    items = [_limit(limit, stored) for limit in stored.limits.values()]
    return documents.Page(
        items=[item for item in items if item.name != SERIES_LIMIT.name or item.used or item.waiting], now=store.clock()
    )


async def show_limit(system: LocalSystem, request: declared.OneLimit) -> documents.LimitDetails:
    fleet = system.fleet
    stored = await read_stored_limits(fleet.store)
    limit = stored.limits.get(request.limit)
    if limit is None:
        raise LimitNotSet(request.limit)
    now, groups = fleet.store.clock(), _groups_of(limit, stored)
    holding = [group for group in groups if not group.waiting]
    waiting = stored.book(now).by_turn(group for group in groups if group.waiting)
    return document_of(
        documents.LimitDetails,
        _limit(limit, stored),
        holders=await _users(fleet, limit, stored, holding),
        next_runs=await _users(fleet, limit, stored, waiting),
        now=now,
    )


async def set_limit(system: LocalSystem, request: declared.SetLimit) -> documents.Limit:
    fleet = system.fleet
    if (request.rate is None) != (request.period is None):
        raise InvalidLimit(f"the rate of limit {request.limit!r} needs a number and a period (example: 10 in 60 s)")
    rate = None if request.rate is None or request.period is None else Rate(request.rate, request.period)
    limit = Limit(request.limit, request.size, rate)
    await stored_limits.set_limit(fleet.store, limit)
    await system.leave_reason(f"set limit {limit.name!r}", request.reason)
    return _limit(limit, await read_stored_limits(fleet.store))


async def remove_limit(system: LocalSystem, request: declared.RemoveLimit) -> documents.Limit:
    fleet = system.fleet
    limit = await stored_limits.remove_limit(fleet.store, request.limit)
    await system.leave_reason(f"removed limit {limit.name!r}", request.reason)
    stored = await read_stored_limits(fleet.store)
    stored.limits[limit.name] = limit
    return _limit(limit, stored)


def _groups_of(limit: Limit, stored: StoredLimits) -> list[LimitedRuns]:
    """The runs that use a limit."""
    return [group for group in stored.groups if any(_names(limit, stored, group.uses))]


def _names(limit: Limit, stored: StoredLimits, uses: str | None) -> Iterable[str]:
    """Those names in ``uses`` for which the limit counts."""
    return (name for name in uses_of(uses) if limit_for(stored.limits, name) == limit)


def _limit(limit: Limit, stored: StoredLimits) -> documents.Limit:
    used: Counter[str] = Counter()
    waiting = 0
    for group in _groups_of(limit, stored):
        if group.waiting:
            waiting += group.number
        else:
            used.update({name: uses_of(group.uses)[name] * group.number for name in _names(limit, stored, group.uses)})
    rate, period = limit.rate if limit.rate is not None else (None, None)
    return documents.Limit(
        name=limit.name, size=limit.size, rate=rate, period=period, used=dict(sorted(used.items())), waiting=waiting
    )


async def _users(
    fleet: Fleet, limit: Limit, stored: StoredLimits, groups: Iterable[LimitedRuns]
) -> list[documents.LimitUser]:
    users = await stored_limits.users(fleet.store, stored, groups, MOST_NAMED)
    labels = labels_of([user for user in users if isinstance(user, Run)])
    documents_of_users = []
    for user in users:
        uses = {name: uses_of(user.uses)[name] for name in _names(limit, stored, user.uses)}
        if isinstance(user, Run):
            since = user.assigned_at or user.waiting_since or user.created_at
            fields: dict[str, Any] = {"label": labels[user.id], "since": since}
        else:
            fields = {"label": user.task, "workflow": user.turn, "batch": None, "device": None, "since": user.at}
        documents_of_users.append(document_of(documents.LimitUser, user, uses=uses, **fields))
    return documents_of_users


# -- events of a store -------------------------------------------------------------------------------------------------


async def _documents(store: Store, events: Sequence[SentEvent]) -> list[documents.SentEvent]:
    takers = {name: await sent_events.takers_of(store, name) for name in {event.name for event in events}}
    items = []
    for event in events:
        by_time = sorted(takers[event.name].get(event.number, ()), key=lambda taker: taker.at)
        taken = [document_of(documents.EventTaker, taker) for taker in by_time]
        items.append(document_of(documents.SentEvent, event, taken_by=taken))
    return items


async def send_event(system: LocalSystem, request: declared.SendEvent) -> documents.SentEvent:
    fleet = system.fleet
    event = await sent_events.send_event(fleet.store, request.name, request.data, key=request.key, by=fleet.by)
    [item] = await _documents(fleet.store, [event])
    return item


async def list_events(system: LocalSystem, request: declared.ListEvents) -> documents.Page[documents.SentEvent]:
    store = system.fleet.store
    if request.name is None:
        events = await sent_events.latest_events(store, request.before, request.limit)
    else:
        kept = await sent_events.events_of(store, request.name)
        older = (event for event in kept if request.before is None or event.number < request.before)
        events = sorted(older, key=lambda event: -event.number)[: request.limit]
    items = await _documents(store, events)
    following = str(events[-1].number) if len(events) == request.limit else None
    return documents.Page(items=items, next=following, now=store.clock())
