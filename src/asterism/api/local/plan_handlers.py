"""Plans on a store: what the operations of ``api/plan_operations`` do.

Every change is a command to the plan (``durable/plan_actor.py``), which is done by the process that runs it, or here if
none does.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import re
from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import dropwhile, islice
from pathlib import PurePath
from typing import Any, TypeVar

from asterism.api import documents
from asterism.api import plan_operations as declared
from asterism.api.documents import LogEntry, PlanLog, TaskLogEntry, document_of
from asterism.api.local import edit_handlers, plan_documents
from asterism.api.local.edit_handlers import checked_batch
from asterism.api.local.run_handlers import LOG_BEGIN, MOST_LINES, LogPlace, new_lines, run_advice
from asterism.api.system import LocalSystem
from asterism.base.clock import Looks
from asterism.base.http_limits import RequestRefused
from asterism.core.attempt_log import LogReader
from asterism.core.errors import PlanError
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.edit_rules import ApprovalRule, EditScope
from asterism.core.plan.group_elements import folded_groups
from asterism.core.plan.status import RUNNING
from asterism.core.plan.task_files import makers_of
from asterism.core.record import Struct, asdict, decode, field, replace
from asterism.durable import plan_actor, stored_plans
from asterism.durable.approval_store import approval_terms, list_approvals
from asterism.durable.journal_store import check_name, read_head
from asterism.durable.plan_history import (
    PlanEvents,
    PlanFollower,
    Position,
    VersionUnknown,
    edit_history,
    plan_at,
    plan_events,
    versions,
)
from asterism.durable.plan_submissions import submit_plan as store_plan
from asterism.durable.plan_summaries import live_owner
from asterism.durable.rejected_edits import rejected_edits
from asterism.durable.runner_registers import submit_again
from asterism.durable.stored_plans import (
    StoredPlan,
    TaskRun,
    read_plan,
    story_tracebacks,
    task_executions,
    task_runs,
    unknown_task,
)
from asterism.durable.task_logs import StoredLog, log_chunks
from asterism.execution.artifacts import ArtifactProblem, FileEntry
from asterism.fleet import retention
from asterism.fleet.fleet import Fleet
from asterism.orchestrator.plan_mask import PlanMask
from asterism.store.protocol import Notice

CANCEL_INTERVAL = 1.0
"""Seconds between two looks whether a plan that is being cancelled has ended."""

EVENT_INTERVAL = 0.2
"""Seconds between two looks for events of a plan."""

END_INTERVAL = 0.5
"""Seconds between two looks whether a plan has ended."""

MOST_NAMES = 100
"""How many names a plan may get that is started several times within a minute."""

MAX_EVENTS = 5_000
"""How many events one answer has."""

SMALL_PLAN = 200
"""A plan of at most this many tasks is drawn and copied at once; a larger one in a thread."""

Rule = TypeVar("Rule")
Answer = TypeVar("Answer")


# -- reading -----------------------------------------------------------------------------------------------------------


async def show_plan(system: LocalSystem, request: declared.ShowPlan) -> documents.Plan:
    fleet, opened = system.fleet, _opened(request)
    stored = await read_plan(fleet, request.plan)
    large = request.tasks and not system.own and _shown(stored.record.plan, opened) > SMALL_PLAN
    if large:
        stored = await read_plan(fleet, request.plan, for_thread=True)
    approvals = await plan_documents.approval_documents(fleet, stored.record, stored.waiting)
    view = partial(
        plan_documents.view,
        stored,
        now=fleet.store.clock(),
        tasks=request.tasks,
        results=request.results,
        opened=opened,
        approvals=approvals,
    )
    return await asyncio.to_thread(view) if large else view()


def _shown(plan: Constellation, opened: Collection[str] | None) -> int:
    """How many tasks of a plan are shown."""
    return len(plan) if opened is None or len(plan) <= SMALL_PLAN else len(folded_groups(plan, opened).nodes(plan))


def _opened(request: declared.ShowPlan | declared.ShowVersion) -> list[str] | None:
    """Which large groups are shown task by task; None for all."""
    return request.opened.split("|") if request.folded else None


async def _read_with(system: LocalSystem, name: str, *tasks: str | None) -> StoredPlan:
    """A plan that has these tasks. Raises UnknownTask."""
    stored = await read_plan(system.fleet, name)
    plan = stored.record.plan
    unknown = next((task for task in tasks if task is not None and task not in plan), None)
    if unknown is not None:
        raise unknown_task(plan, unknown)
    return stored


async def list_tasks(system: LocalSystem, request: declared.ListTasks) -> documents.Page[documents.PlanTask]:
    stored = await _read_with(system, request.plan, request.group, request.after)
    return plan_documents.task_page(stored, request)


async def watch_plan(system: LocalSystem, request: declared.WatchPlan) -> documents.Plan:
    async for last in Looks(system.fleet.clock, interval=END_INTERVAL, timeout=request.timeout):
        head, _ = await read_head(system.fleet.store, request.plan)
        if head.ended or last:
            break
    return await show_plan(system, declared.ShowPlan(request.plan, tasks=False))


async def copy_plan(system: LocalSystem, request: declared.CopyPlan) -> documents.PlanCopy:
    stored = await read_plan(system.fleet, request.plan, for_thread=not system.own)
    copy = partial(plan_documents.plan_copy, stored, system.fleet.store.clock(), request.results)
    return await _apart(system, stored.record.plan, copy)


async def draw_plan(system: LocalSystem, request: declared.DrawPlan) -> documents.Drawing:
    how = request.form, request.width, request.opened.split("|")
    if request.version is None:
        stored = await read_plan(system.fleet, request.plan, for_thread=not system.own)
        plan: Constellation = stored.record.plan
        draw = partial(plan_documents.drawing, plan, *how, stored.phase)
    else:
        plan = (await plan_at(system.fleet.store, request.plan, request.version)).plan
        draw = partial(plan_documents.drawing, plan, *how)
    return await _apart(system, plan, draw)


async def _apart(system: LocalSystem, plan: Constellation, compute: Callable[[], Answer]) -> Answer:
    """What is computed of a plan: in a thread if the plan is large and others wait for this process."""
    return compute() if system.own or len(plan) <= SMALL_PLAN else await asyncio.to_thread(compute)


async def read_story(system: LocalSystem, request: declared.ReadStory) -> documents.Page[documents.StoryEntry]:
    plan = (await read_plan(system.fleet, request.plan)).record.plan
    entries = plan.story(request.task)
    if request.task is not None and not entries and request.task not in plan:
        raise unknown_task(plan, request.task)
    tracebacks = await story_tracebacks(system.fleet, plan, entries)
    return documents.Page(items=plan_documents.story_documents(entries, PlanMask(plan), tracebacks))


async def list_files(system: LocalSystem, request: declared.ListFiles) -> documents.Page[documents.PlanFile]:
    plan = (await _read_with(system, request.plan, request.task)).record.plan
    makers = list(plan.nodes.values() if request.task is None else makers_of(plan.nodes, request.task))
    task, *passed = ("",) if request.after is None else _file_key(request.after)
    if request.after is not None:
        makers = list(dropwhile(lambda node: node.id != task, makers))
        if not makers:
            raise RequestRefused(
                409, f"task {task!r}, where the page before ended, is gone: list the files from the beginning"
            )
    wanted = [node for node in makers if node.files is not None]
    if not wanted:
        return documents.Page(items=[])
    artifacts = await system.fleet.files()

    def read() -> list[documents.PlanFile]:
        """The files of the page, and one more if there is one."""
        files = (
            documents.PlanFile(task=node.id, output=output, **entry._asdict())
            for node in wanted
            for output, entries in sorted(artifacts.manifest(str(node.files)).items())
            for entry in sorted(entries, key=_in_folders)
            # the file where the page before ended may be gone: a retry makes others
            if node.id != task or (output, _in_folders(entry)) > (passed[0], passed[1].split("/"))
        )
        return list(islice(files, request.limit + 1))

    items = await asyncio.to_thread(read)
    last = items[request.limit - 1] if len(items) > request.limit else None
    following = None if last is None else json.dumps([last.task, last.output, last.path])
    return documents.Page(items=items[: request.limit], next=following)


def _in_folders(entry: FileEntry) -> list[str]:
    """The place of a file among others: those of a folder are together."""
    return entry.path.split("/")


def _file_key(after: str) -> list[str]:
    """The last file of a page. Raises RequestRefused."""
    with contextlib.suppress(ValueError):
        key = json.loads(after)
        if isinstance(key, list) and len(key) == 3 and all(isinstance(part, str) for part in key):
            return key
    raise RequestRefused(422, "after: it is not the `next` of a page of files")


async def read_file(system: LocalSystem, request: declared.ReadFile) -> documents.FilePart:
    plan = (await _read_with(system, request.plan, request.task)).record.plan
    manifest = plan.node(request.task).files
    artifacts = None if manifest is None else await system.fleet.files()

    def read() -> documents.FilePart | None:
        entries = {} if manifest is None or artifacts is None else artifacts.manifest(manifest)
        entry = next((entry for entry in entries.get(request.output, ()) if entry.path == request.path), None)
        if entry is None or artifacts is None:
            return None
        if request.offset > entry.size:
            raise RequestRefused(416, f"{entry.path!r} has {entry.size:,} bytes: it ends before {request.offset:,}")
        with artifacts.open_file(entry, request.offset) as file:
            data = base64.b64encode(file.read(request.limit)).decode()
        return documents.FilePart(offset=request.offset, size=entry.size, sha256=entry.sha256, data=data)

    part = await asyncio.to_thread(read)
    if part is None:
        raise ArtifactProblem(f"the output {request.output!r} of task {request.task!r} has no file {request.path!r}")
    return part


async def show_task(system: LocalSystem, request: declared.OneTask) -> documents.Task:
    stored = await _read_with(system, request.plan, request.task)
    plan = stored.record.plan
    runs = await task_runs(system.fleet.store, request.plan, request.task)
    tracebacks = await story_tracebacks(system.fleet, plan, plan.story(request.task))
    return plan_documents.task_details(stored, request.task, runs, tracebacks)


async def explain_task(system: LocalSystem, request: declared.OneTask) -> documents.TaskWhy:
    answer = await stored_plans.explain_task(system.fleet, request.plan, request.task, run_advice)
    return document_of(
        documents.TaskWhy,
        answer,
        name=answer.plan,
        reasons=list(answer.reasons),
        advice=list(answer.hints),
        answered_by=answer.by,
    )


async def explain_plan(system: LocalSystem, request: declared.OnePlan) -> documents.PlanWhy:
    answer = await stored_plans.explain_plan(system.fleet, request.plan, run_advice)
    causes = [
        documents.PlanCause(
            tasks=cause.tasks,
            text=plan_documents.cause_text(cause.needs, [why.text for why in cause.reasons]),
            reasons=list(cause.reasons),
            behind=len(cause.behind),
            advice=list(cause.hints),
        )
        for cause in answer.causes
    ]
    return documents.PlanWhy(
        name=answer.plan, state=answer.state, running=answer.running, causes=causes, left=answer.left
    )


async def read_task_logs(system: LocalSystem, request: declared.ReadTaskLogs) -> documents.PlanLog:
    return await plan_log(system.fleet, **asdict(request))


async def read_plan_logs(system: LocalSystem, request: declared.ReadPlanLogs) -> documents.PlanLog:
    return await plan_log(system.fleet, **asdict(request))


async def list_versions(system: LocalSystem, request: declared.OnePlan) -> documents.Versions:
    name, store = request.plan, system.fleet.store
    history, rejected = await edit_history(store, name), await rejected_edits(store, name)
    approvals = await list_approvals(store, name)
    return documents.Versions(
        items=[decode(documents.PlanVersion, version.to_json()) for version in history.versions],
        rejected=[decode(documents.RejectedEdit, edit.to_json()) for edit in rejected],
        cycles=plan_documents.closed_cycles(history.cycles, approvals),
        cost=plan_documents.total_cost(history.cycles),
    )


async def show_version(system: LocalSystem, request: declared.ShowVersion) -> documents.PastPlan:
    past = await plan_at(system.fleet.store, request.plan, request.version)
    edit = decode(documents.PlanVersion, past.version.to_json())
    content = await _apart(system, past.plan, partial(plan_documents.content, past.plan, opened=_opened(request)))
    return document_of(documents.PastPlan, content, version=past.version.version, edit=edit)


async def read_changes(system: LocalSystem, request: declared.ReadChanges) -> documents.Changes:
    await read_head(system.fleet.store, request.plan)
    kinds = request.kinds.split(",") if request.kinds else []
    if unknown := set(kinds) - set(declared.EVENT_KINDS):
        raise RequestRefused(
            422, f"{min(unknown)!r} is not a kind of events; they are: {', '.join(declared.EVENT_KINDS)}"
        )
    events, position, reset = await _events(system.fleet, request, kinds)
    more = len(events) > MAX_EVENTS
    if more:
        position = events[MAX_EVENTS - 1].position
    return documents.Changes(
        items=[event.to_json() for event in events[:MAX_EVENTS]],
        position=str(position),
        reset=reset,
        next=str(position) if more else None,
    )


async def _events(fleet: Fleet, request: declared.ReadChanges, kinds: Collection[str]) -> PlanEvents:
    """The events of some kinds, as soon as there are any or the time is up."""
    store, name, since = fleet.store, request.plan, await _beginning(fleet, request)
    if since is None and request.since is None:
        events, position, reset = await plan_events(store, name)
        return PlanEvents([event for event in events if not kinds or event.kind in kinds], position, reset)
    follower = await PlanFollower.open(store, name, since)
    async for last in Looks(fleet.clock, interval=EVENT_INTERVAL, timeout=request.timeout):
        read = await follower.read()
        events = [event for event in read if not kinds or event.kind in (*kinds, "reset", "gone")]
        if events or last:
            break
    told = [event for event in events if event.kind != "reset"]
    return PlanEvents(told, follower.position, len(told) < len(events))


async def _beginning(fleet: Fleet, request: declared.ReadChanges) -> Position | None:
    """Where the events begin; None for the beginning of the plan, or for now. Raises VersionUnknown."""
    if request.since_version is None:
        return None if request.since in (None, "now") else parse_position(request.since)
    if request.since is not None:
        raise RequestRefused(422, "give either since or since_version")
    for version in await versions(fleet.store, request.plan):
        if version.version == request.since_version:
            return version.position
    raise VersionUnknown(
        f"plan {request.plan!r} has no version {request.since_version}, or its history does not reach back to it"
    )


def parse_position(text: str) -> Position:
    """Raises RequestRefused."""
    try:
        return Position.parse(text)
    except ValueError as error:
        raise RequestRefused(422, str(error)) from None


# -- changing ----------------------------------------------------------------------------------------------------------


async def submit_plan(system: LocalSystem, request: declared.SubmitPlan) -> documents.Plan:
    rules, scopes = _rules(ApprovalRule.parse, request.approvals), _rules(EditScope.parse, request.scopes)
    from asterism.api.local.schedule_handlers import read_plan_text  # with YAML, which other operations do not need

    name = PurePath(request.file).stem or "plan"
    plan_file = await read_plan_text(request.text, name, request.params, request.includes, request.only, request.tick)
    plan = plan_file.constellation
    edit_handlers.check_tasks(len(plan))
    edit_handlers.check_replaces_none(system, plan)
    try:
        first, *_ = names = list(islice(plan_file.names(request.name), MOST_NAMES))
        check_name(first)
    except PlanError as error:
        raise RequestRefused(422, str(error)) from None
    options = {name: getattr(request, name) for name in ("edit_timeout", "no_device_timeout", "strategy")}
    options |= approval_terms(rules, request.approval_timeout, scopes, request.approval_escalation)
    policy = request.policy or plan_file.policy or "scoped"
    file = PurePath(request.file).name
    await store_plan(
        system.fleet, plan, policy=policy, params=plan_file.params, options=options, names=names, file=file
    )
    system.submitted()
    return plan_documents.view(await read_plan(system.fleet, plan.id), now=system.fleet.store.clock(), tasks=False)


async def check_plan(system: LocalSystem, request: declared.CheckPlan) -> documents.CheckedPlan:
    from asterism.api.local.schedule_handlers import examine_plan_text, read_texts  # with YAML
    from asterism.planfile.parameters import GivenParameters, declared_parameters

    name = PurePath(request.file).stem or "plan"
    given = GivenParameters(request.params, required=False)
    plan_file, mistakes = await examine_plan_text(request.text, name, given, request.includes)
    plan = None if plan_file is None else plan_file.constellation
    findings = [document_of(documents.PlanFinding, mistake) for mistake in mistakes]
    params = await read_texts(partial(declared_parameters, request.text), [request.text])
    return documents.CheckedPlan(
        valid=plan is not None,
        name=None if plan_file is None else next(plan_file.names(None)),
        tasks=0 if plan is None else len(plan),
        dependencies=0 if plan is None else sum(1 for _ in plan.dependencies),
        params=[document_of(documents.PlanParameter, parameter) for parameter in params],
        findings=findings,
    )


def _rules(parse: Callable[[str], Rule], texts: list[str]) -> list[Rule]:
    try:
        return [parse(text) for text in texts]
    except PlanError as error:
        raise RequestRefused(422, str(error)[:2000]) from None


async def pause_plan(system: LocalSystem, request: declared.ChangePlan) -> documents.PlanState:
    answer = await plan_actor.pause_plan(system.fleet, request.plan, request.reason)
    return await _state(
        system, request.plan, paused=answer.reason, owner=answer.owner, applied_by=answer.by, already=answer.already
    )


async def resume_plan(system: LocalSystem, request: declared.ChangePlan) -> documents.PlanState:
    """Withdraw a pause, and let a server run the plan if no process does."""
    head, _ = await read_head(system.fleet.store, request.plan)
    if head.ended:
        raise RequestRefused(409, f"plan {request.plan!r} is {head.state}: it cannot be resumed")
    await plan_actor.unpause_plan(system.fleet, request.plan)
    await _run_somewhere(system, request.plan)
    return await _state(system, request.plan)


async def cancel_plan(system: LocalSystem, request: declared.ChangePlan) -> documents.PlanState:
    """Ask the owner to cancel the plan; if no process runs it, a server does."""
    head, _ = await read_head(system.fleet.store, request.plan)
    edit_handlers.check_cancel_plan(system.editor, head)
    await plan_actor.cancel_plan(system.fleet, request.plan, request.reason)
    await _run_somewhere(system, request.plan)
    return await _state(system, request.plan)


async def watch_cancel(system: LocalSystem, request: declared.WatchCancel) -> documents.Cancellation:
    """Waits for the end, or until no device can execute the teardowns that are left."""
    fleet, name = system.fleet, request.plan
    async for last in Looks(fleet.clock, interval=CANCEL_INTERVAL, timeout=request.timeout):
        stored = await read_plan(fleet, name)
        stuck = [] if stored.record.head.ended else await stored_plans.stuck_teardowns(fleet, name)
        if stored.record.head.ended or stuck or last:
            break
    return plan_documents.cancellation(stored, stuck)


async def remove_plan(system: LocalSystem, request: declared.ChangePlan) -> documents.RemovedPlan:
    fleet, name = system.fleet, request.plan
    head, _ = await read_head(fleet.store, name)
    if not head.ended:
        action = f"cancel it first with: asterism plan cancel {name}"
        stored = await read_plan(fleet, name)
        if stored.listed.cancelling and (teardowns := plan_documents.cancellation(stored).teardowns):
            left = f"its teardowns run first ({', '.join(teardowns)})"
            action = (
                f"{left}; join a device that can execute them, or execute them here: asterism resume {name} --local"
            )
        raise PlanError(f"plan {name!r} has not ended ({stored.state_name}), and is not removed; {action}")
    message = f"plan {name!r} was removed by {fleet.by_whom(request.reason)}"
    runs = await retention.remove_plan(fleet.store, name, Notice(fleet.store.clock(), "removed", message))
    if runs is None:
        raise PlanError(f"plan {name!r} has ended, but not all of its runs, and is not removed; try again later")
    return documents.RemovedPlan(name=name, runs=runs)


async def retry_plan(system: LocalSystem, request: declared.RetryPlan) -> documents.PlanState:
    await edit_handlers.check_retry_plan(system, request)
    batch = await checked_batch(system, request.plan, request.edits, request.reason) if request.edits else None
    reopened = await plan_actor.retry_plan(
        system.fleet,
        request.plan,
        from_tasks=request.from_tasks,
        batch=batch,
        reason=request.reason,
        editor=system.editor,
        groups=system.groups,
        submit=True,
        dry_run=request.dry_run,
    )
    if not request.dry_run:
        system.submitted()
    return await _state(system, request.plan, tasks=list(reopened.tasks), version=reopened.version)


async def _run_somewhere(system: LocalSystem, name: str) -> None:
    """Let a plan runner run a plan that no process runs."""
    head, _ = await read_head(system.fleet.store, name)
    if not head.ended and await live_owner(system.fleet.store, head) is None:
        await submit_again(system.fleet, name)
        system.submitted()


async def _state(system: LocalSystem, name: str, **more: Any) -> documents.PlanState:
    stored = await read_plan(system.fleet, name)
    owner = stored.owner.device if stored.owner is not None else None
    fields = {"name": name, "state": stored.state, "paused": stored.paused, "owner": owner, **more}
    return documents.PlanState(**fields)


# -- logs --------------------------------------------------------------------------------------------------------------


SETTLED_AFTER = 5.0
"""Executions are read in the order of their ids, which begin with the time. After so many seconds none comes before."""

LOOK_INTERVAL = 0.5
"""How often the store is asked for new lines, in seconds."""


class LogPosition(Struct):
    """``read`` is the execution up to which all were read. ``places`` are the epoch and the line up to which others
    were read, by execution."""

    read: str = ""
    places: dict[str, LogPlace] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str | None) -> LogPosition:
        """Raises RequestRefused."""
        if text is None:
            return cls()
        if not re.fullmatch(r"[\w-]{0,100}( [\w-]{1,100}:\d{1,9}\.\d{1,12})*", text, re.ASCII):
            raise RequestRefused(422, f"after={text[:50]!r} is not the `next` of an earlier answer")
        read, *others = text.split(" ")
        places = {}
        for part in others:
            run, _, place = part.partition(":")
            epoch, _, line = place.partition(".")
            places[run] = int(epoch), int(line)
        return cls(read, places)

    def __str__(self) -> str:
        return " ".join([self.read, *(f"{run}:{epoch}.{line}" for run, (epoch, line) in self.places.items())])

    def is_new(self, run: str) -> bool:
        """Whether an execution may have lines that were not read."""
        return run > self.read or run in self.places


async def plan_log(
    fleet: Fleet, plan: str, task: str | None, after: str | None, attempt: int | None, timeout: float
) -> PlanLog:
    """The lines after a position; of a group those of its elements. Waits up to ``timeout`` seconds for some, unless
    the plan has ended. Raises UnknownConstellation and UnknownTask."""
    stored = (await read_plan(fleet, plan)).record.plan
    if task is not None and task not in stored and not await task_executions(fleet.store, plan, task, elements=True):
        raise unknown_task(stored, task)
    async for last in Looks(fleet.clock, interval=LOOK_INTERVAL, timeout=timeout):
        ended = (await read_head(fleet.store, plan))[0].ended  # before the lines: the last ones come with the end
        executions = await task_executions(fleet.store, plan, task, elements=True)
        position = LogPosition.parse(after)
        items, more = await _plan_lines(fleet, plan, executions, position, attempt)
        if items or ended or last:
            break
    return PlanLog(
        items=sorted(items, key=lambda line: line.at),
        next=str(position),
        now=fleet.store.clock(),
        more=more,
        ended=ended,
        executed=bool(executions) or any(node.attempts for node in stored.nodes.values() if task in (None, node.id)),
    )


async def _plan_lines(
    fleet: Fleet,
    plan: str,
    executions: Sequence[TaskRun | StoredLog],
    position: LogPosition,
    attempt: int | None,
) -> tuple[list[TaskLogEntry], bool]:
    """The lines after a position, which moves on, and whether there are more."""
    items: list[TaskLogEntry] = []
    settled = f"{int((fleet.store.clock() - SETTLED_AFTER) * 1000) & 0xFFFFFFFFFFFF:012x}"
    running = await _running_logs(fleet, plan) if any(isinstance(some, StoredLog) for some in executions) else ()
    all_read = True
    for execution in executions:
        if len(items) >= MOST_LINES:
            return items, True
        if position.is_new(execution.id):
            begin = position.places.get(execution.id, LOG_BEGIN)
            lines, position.places[execution.id] = await _lines_of(fleet, plan, execution, begin, attempt)
            about = {"run": execution.id, "task": execution.task}
            items += [document_of(TaskLogEntry, line, **about) for line in lines]
        ended = (execution.task, execution.epoch) not in running
        if isinstance(execution, TaskRun):
            ended = execution.run.ended
        all_read = all_read and ended and execution.id < settled
        if all_read:
            position.read = max(position.read, execution.id)
            position.places.pop(execution.id, None)
    return items, False


async def _running_logs(fleet: Fleet, plan: str) -> Collection[tuple[str, int]]:
    """The executions (task, epoch) of running tasks."""
    nodes = (await read_plan(fleet, plan)).record.plan.nodes.values()
    return {(node.id, node.epoch) for node in nodes if node.status is RUNNING}


async def _lines_of(
    fleet: Fleet, plan: str, execution: TaskRun | StoredLog, begin: LogPlace, attempt: int | None
) -> tuple[list[LogEntry], LogPlace]:
    """The new lines of an execution, or of one attempt of it, and the place where they end."""
    if isinstance(execution, TaskRun):
        wanted = None if attempt is None else attempt - execution.before
        lines, place = await new_lines(fleet, execution.run, begin, attempt=wanted)
        return [replace(line, attempt=execution.before + line.attempt) for line in lines], place
    if attempt not in (None, execution.attempt):
        return [], begin
    reader = LogReader(begin[1])
    read = reader.read(await log_chunks(fleet.store, plan, execution.id))
    entries = [LogEntry(attempt=execution.attempt, **line._asdict()) for line in read]
    return entries, (execution.epoch, reader.seen)
