"""Runs on a store: their documents, and what the operations of ``api/run`` do."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shlex
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from asterism.api import documents
from asterism.api import run_operations as declared
from asterism.api.documents import document_of
from asterism.api.system import LocalSystem
from asterism.base.follow import Looks
from asterism.base.http_limits import RequestRefused
from asterism.base.secret_mask import Mask
from asterism.base.text import short
from asterism.core.attempt_log import LogReader
from asterism.core.errors import AsterismError, RunRefused
from asterism.core.json_values import plain_json
from asterism.core.limits import uses_of
from asterism.core.plan.task import AGENT_NEEDS
from asterism.core.run.outcomes import attempts_of, waiting_time, work_time
from asterism.core.run.run import ASSIGNED, CLAIMED, COMPLETED, FAILED, UNOWNED, Progress, Run
from asterism.fleet.bulk_creation import (
    BulkCreation,
    BulkProgress,
    CreationMoved,
    InvalidInput,
    forget_old_progress,
    forget_progress,
    read_progress,
)
from asterism.fleet.fleet import Fleet, attempt_number, reported_progress
from asterism.fleet.run_explanation import RunExplanation
from asterism.fleet.run_explanation import explain_run as explain
from asterism.fleet.run_queries import RunList, find_run, labels_of, masks_of
from asterism.fleet.run_queries import list_runs as find_runs
from asterism.fleet.workflows import check_input, input_names
from asterism.peers.registry import PeerRegistry
from asterism.peers.takeover import held_runs
from asterism.store.protocol import Notice, Query, feed_of, has_feed
from asterism.store.store_errors import Conflict, StoreError

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


_PLAIN_FIELDS = (
    *("id", "workflow", "version", "created_at", "created_by", "key", "series", "priority", "pinned", "retry_of"),
    *("heartbeat_timeout", "revision", "epoch", "device", "session", "assigned_by", "assigned_at", "claimed_at"),
    *("started_at", "ended_at", "due_at", "waiting_since", "not_before", "held", "paused", "wish", "wished_by"),
    *("failures", "losses", "rounds", "error", "cancelled", "keep", "label", "batch", "traceparent"),
)
"""The fields of a run that are shown as they are."""

_ATTRIBUTES = {"heartbeat_timeout": "timeout", "wish": "stop_request", "wished_by": "stop_requested_by"}
"""Fields whose attribute has another name."""


# -- documents ---------------------------------------------------------------------------------------------------------


async def run_documents(fleet: Fleet, runs: Sequence[Run]) -> list[documents.Run]:
    """Runs as every door shows them, with secrets masked."""
    described: list[documents.Run] = []
    for start in range(0, len(runs), SLICE):
        described += [documents.Run(**fields) for fields in await _run_fields(fleet, runs[start : start + SLICE])]
        await asyncio.sleep(0)
    return described


async def run_document(fleet: Fleet, run: Run) -> documents.Run:
    [document] = await run_documents(fleet, [run])
    return document


async def _run_fields(fleet: Fleet, runs: Sequence[Run]) -> list[dict[str, Any]]:
    masks = await masks_of(fleet, runs)
    labels = await labels_of(fleet, runs, masks)
    open_runs = [run for run in runs if not run.ended]
    held = await held_runs(fleet.store, [run.id for run in open_runs]) if open_runs else {}
    begun = [run.id for run in open_runs if run.started_at is not None]  # the others have no report of their epoch
    reports = await fleet.store.reports(begun) if begun else {}
    sessions = await fleet.store.sessions(ended=True) if any(run.session is not None for run in runs) else ()
    beats, now = {session.id: session.beat_at for session in sessions}, fleet.store.clock()
    return [
        {
            **_fields_of(run, masks[run.id]),
            "last_heartbeat_at": None if run.session is None else beats.get(run.session),
            "progress": _step(reported_progress(run, reports)),
            "shown_label": labels[run.id],
            "waiting": waiting_for(run, run.id in held, now),
            "held_for": held.get(run.id),
        }
        for run in runs
    ]


def _fields_of(run: Run, mask: Mask) -> dict[str, Any]:
    """What the record of a run says."""
    return {
        **{name: getattr(run, _ATTRIBUTES.get(name, name)) for name in _PLAIN_FIELDS},
        "status": run.reported_status,
        "ended": run.ended,
        "assigned_to": run.device,
        "assignment_expires_at": run.due_at if run.status is ASSIGNED else None,
        "claim_expires_at": run.due_at if run.status is CLAIMED else None,
        "completed_at": run.ended_at if run.status is COMPLETED else None,
        "failed_at": run.ended_at if run.status is FAILED and not run.cancelled else None,
        "cancelled_at": run.ended_at if run.cancelled else None,
        "avoid": list(run.avoid),
        "declined": dict(run.declined),
        "previous_assignments": [document_of(documents.PreviousAssignment, assignment) for assignment in run.previous],
        "scores": dict(run.scores),
        "uses": dict(uses_of(run.uses)) or None,
        "attempts": attempts_of(run),
        "took": work_time(run),
        "waited": None if run.ended_at is None else waiting_time(run),
        "input": mask.data(plain_json(run.input)),
        "output": mask.result(plain_json(run.output)),
        "superseded": [
            document_of(documents.SupersededResult, result, output=mask.result(plain_json(result.output)))
            for result in run.superseded
        ],
        "story": [document_of(documents.StoryEntry, entry) for entry in run.story],
    }


def _step(progress: Progress | None) -> documents.Step | None:
    return None if progress is None else document_of(documents.Step, progress)


def waiting_for(run: Run, held: bool, now: float) -> declared.WaitingFor | None:
    """What a run waits for, in a word. ``held`` is whether a peer may still execute it. None if it has ended, or a
    device works on it."""
    if run.ended:
        return None
    if run.paused is not None:
        return "person"
    if held:
        return "peer"
    if run.held:
        return "turn"
    if run.status in (ASSIGNED, CLAIMED):
        return "claim"
    if run.status not in UNOWNED:
        return None
    if run.not_before > now:
        return "retry"
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
    [fields] = await _run_fields(fleet, [run])
    report = (await fleet.store.reports([run.id])).get(run.id)
    logs, why = await fleet.logs(run.id), await explain(fleet, run.id)
    tail = "" if report is None else report.tail
    if logs:
        tail = "".join(f"{line.text}\n" for line in logs[-1].lines[-TAIL:])
    notices = await fleet.store.notices(run=run.id)
    return documents.RunDetails(
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
    return [document_of(documents.Reason, reason) for reason in why.reasons]


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
    flow = await fleet.workflows.get(run.workflow, run.version)
    name = shlex.quote(run.pinned) if run.pinned is not None else "NAME"
    can = "".join(f" --can {shlex.quote(need)}" for need in sorted(flow.needs - AGENT_NEEDS))
    can += " --agent COMMAND" if flow.agent is not None else ""
    lines = [f"On any machine that reaches the store, start a capable device: asterism device join {name}{can}"]
    called = [peer.name for peer in await PeerRegistry(fleet.store).all() if peer.url is not None]
    if called:
        peer = shlex.quote(called[0]) if len(called) == 1 else "NAME"
        lines.append(f"Or offer it to the devices of a peer: asterism peer sync {peer}")
    return lines


async def read_output(system: LocalSystem, request: declared.OneRun) -> documents.RunOutput:
    run = await find_run(system.fleet, request.run)
    if not run.ended or run.error is not None:
        raise RequestRefused(409, f"run {run.id} is {run.reported_status}: it has no output")
    masks = await masks_of(system.fleet, [run])
    return documents.RunOutput(run=run.id, output=masks[run.id].result(await system.fleet.output(run)))


async def read_run_logs(system: LocalSystem, request: declared.ReadRunLogs) -> documents.RunLog:
    fleet, run_id = system.fleet, (await find_run(system.fleet, request.run)).id
    async for last in Looks(fleet.clock, interval=LOG_INTERVAL, timeout=request.timeout):
        run = await fleet.run(run_id)  # before its log: the last lines come with the end
        items, position = await _new_lines(fleet, run, request)
        if items or run.ended or last:
            break
    elsewhere = has_feed(fleet.store) and bool(await feed_of(fleet.store).left_to([run_id]))
    return documents.RunLog(
        items=items,
        next=position,
        now=fleet.store.clock(),
        run=run_id,
        status=run.reported_status,
        ended=run.ended,
        elsewhere=elsewhere,
    )


async def _new_lines(
    fleet: Fleet, run: Run, request: declared.ReadRunLogs
) -> tuple[list[documents.LogEntry], str | None]:
    """The lines after a position ``EPOCH.LINE``, and the position where the next part begins."""
    epoch, seen = _position(request.after)
    items: list[documents.LogEntry] = []
    for stored in await fleet.store.log(run.id, after=(epoch, seen)):
        attempt = attempt_number(run, stored.epoch)
        if request.attempt not in (None, attempt):
            continue
        if len(items) >= MOST_LINES:
            break
        reader = LogReader(seen if stored.epoch == epoch else 0)
        lines = list(reader.read([await fleet.log_chunk(stored)]))
        items += [documents.LogEntry(attempt=attempt, **line._asdict()) for line in lines]
        epoch, seen = stored.epoch, reader.seen
    return items, f"{epoch}.{seen}"


def _position(after: str | None) -> tuple[int, int]:
    if after is None:
        return 0, 0
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
    names = ("key", "series", "priority", "device", "keep", "label", "batch")
    options = {name: getattr(request, name) for name in names}
    flow = await system.fleet.workflows.find(request.workflow)
    check_input(flow, request.input)
    run = await system.fleet.create(flow, request.input, near=request.near, **options)
    return await run_document(system.fleet, run)


async def create_runs(system: LocalSystem, request: declared.CreateRuns) -> documents.CreatedRuns:
    fleet = system.fleet
    progress = await read_progress(fleet.store, request.creation)
    if progress.lines != request.before:
        raise CreationMoved
    flow = await fleet.workflows.find(request.workflow)
    needed = input_names(flow)
    for index, values in enumerate(request.inputs):
        missing = sorted(needed - values.keys())
        if missing:
            why = f"workflow {flow.name!r} needs {' and '.join(missing)}, and the line does not have it"
            raise InvalidInput(index, why)
    names = ("label", "key", "series", "priority", "device", "keep", "batch")
    options = {name: getattr(request, name) for name in names if getattr(request, name) is not None}
    creation = BulkCreation(fleet, flow, after=progress.at, **options)
    write = progress.advance(request.lines, len(request.inputs), request.sha256, fleet.store.clock())
    try:
        created = await creation.add(request.inputs, write)
    except Conflict as conflict:
        if conflict.concerns("register", write.key):
            raise CreationMoved from None
        raise
    runs = [document_of(documents.CreatedRun, run) for run in created.runs]
    return documents.CreatedRuns(runs=runs, created=created.created)


async def show_creation(system: LocalSystem, request: declared.OneCreation) -> documents.Creation:
    await forget_old_progress(system.fleet.store)
    return _creation(await read_progress(system.fleet.store, request.creation))


async def end_creation(system: LocalSystem, request: declared.OneCreation) -> documents.Creation:
    return _creation(await forget_progress(system.fleet.store, request.creation))


def _creation(progress: BulkProgress) -> documents.Creation:
    return document_of(documents.Creation, progress)


async def pause_run(system: LocalSystem, request: declared.ChangeRun) -> documents.Run:
    return await _change(system, request.run, lambda fleet, run: fleet.pause(run.id, request.reason))


async def resume_run(system: LocalSystem, request: declared.ChangeRun) -> documents.Run:
    return await _change(system, request.run, lambda fleet, run: fleet.resume(run.id, request.reason))


async def cancel_run(system: LocalSystem, request: declared.ChangeRun) -> documents.Run:
    async def cancel(fleet: Fleet, run: Run) -> Run:
        if system.editor is not None:
            from asterism.api.local.edit_limits import check_cancel_run  # with plans, which people do not need

            check_cancel_run(run)
        return await fleet.cancel(run.id, request.reason)

    return await _change(system, request.run, cancel)


async def retry_run(system: LocalSystem, request: declared.ChangeRun) -> documents.Run:
    return await _change(system, request.run, lambda fleet, run: fleet.retry(run.id, request.reason))


async def _change(system: LocalSystem, text: str, change: Callable[[Fleet, Run], Awaitable[Run]]) -> documents.Run:
    return await run_document(system.fleet, await change(system.fleet, await find_run(system.fleet, text)))


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
