"""Find and read stored plans, with owner, progress and requests, and explain why a task is not running.

A plan that cannot be read is listed with the reason, and does not hide the others.

The log of a task is that of the runs that executed it, and of the executions of the plan's own process
(``task_logs``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from asterism.base.durations import format_age
from asterism.core.attempt_log import TaskLog
from asterism.core.errors import AsterismError, UnknownTask, error_text, suggestion
from asterism.core.history import PlanEntry, Reason
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.edits import WaitingEdit
from asterism.core.plan.explain import why
from asterism.core.plan.node import RUNNING as RUNNING_PHASE
from asterism.core.plan.node import AttemptTimes, Node, descendants
from asterism.core.plan.status import PENDING, RUNNING, TERMINAL, ConstellationState
from asterism.core.plan.task import lane_of
from asterism.core.plan.teardowns import is_due
from asterism.core.record import Record, field
from asterism.core.run.run import Run
from asterism.core.run.session import Session
from asterism.core.run.transitions import attempts_of, was_executed
from asterism.durable.approval_store import waiting_approvals
from asterism.durable.editor_budget import Account, read_account
from asterism.durable.journal_store import (
    StoredConstellation,
    UnknownConstellation,
    decode_head,
    keep,
    load,
    refresh,
)
from asterism.durable.plan_actor import ask_why
from asterism.durable.plan_summaries import (
    ListedPlan,
    PlanSummary,
    UnreadablePlan,
    is_with_owner,
    last_owner,
    live_owner,
    open_runs,
    phase_of,
    running_tasks,
    times_of,
)
from asterism.durable.plan_turns import awaited_plan, plan_ahead
from asterism.durable.task_logs import StoredLog, log_chunks, stored_logs
from asterism.fleet import retention, run_explanation
from asterism.fleet.fleet import Fleet
from asterism.fleet.retention import PREFIX
from asterism.orchestrator.plan_mask import PlanMask
from asterism.orchestrator.result import tasks_with_tracebacks, tracebacks_in
from asterism.store.protocol import PLANS, Query, Register, Store
from asterism.store.store_errors import StoreUnavailable


class StoredPlan(Record):
    """``owner`` is the live session that runs the plan, ``gone`` the one that ran it last, if none does. ``waiting``
    are the edits that wait for a person, ``account`` is what its editor may spend and has spent. ``runs`` are the runs
    of its running tasks, as ``open_runs`` returns them. ``ahead`` is the plan for which it waits before any process
    runs it."""

    record: StoredConstellation
    owner: Session | None
    gone: Session | None = None
    waiting: Sequence[WaitingEdit] = ()
    account: Account | None = None
    runs: Mapping[str, Run] = field(default_factory=dict)
    ahead: str | None = None

    @property
    def listed(self) -> ListedPlan:
        """The plan as lists show it."""
        record, held = self.record, self.account is not None and self.account.held_since is not None
        fields = {**record.summary(record.head).summary, "running": running_tasks(record.plan)}
        summary = PlanSummary(name=record.head.name, **fields)
        return ListedPlan(summary, self.owner, self.gone, len(self.waiting), held, self.runs)

    @property
    def paused(self) -> str | None:
        """See ``ListedPlan``."""
        return None if self.record.head.ended else self.record.head.paused

    def phase(self, node: Node) -> str | None:
        """What a task does that counts as running: queued, starting or running; None for others."""
        if node.status is not RUNNING:
            return None
        return phase_of(self.runs.get(node.id), self.owner, with_owner=is_with_owner(node))

    @property
    def orphaned(self) -> list[str]:
        """The tasks that count as running, though no process runs the plan and no device executes them."""
        nodes = self.record.plan.nodes.values() if self.owner is None else ()
        return [node.id for node in nodes if self.phase(node) not in (None, RUNNING_PHASE)]

    def times(self, node: Node) -> AttemptTimes | None:
        """The times of the last attempt at a task, as far as they are known."""
        run = self.runs.get(node.id)
        return node.attempt_times if run is None else times_of(run)

    def is_due(self, teardown: Node) -> bool:
        """Whether a device has begun the set-up of this teardown, also if the plan has not learned it yet."""
        run = None if teardown.setup is None else self.runs.get(teardown.setup.id)
        return is_due(teardown) and (run is None or was_executed(run))

    @property
    def counts(self) -> dict[str, int]:
        """See ``ListedPlan``."""
        return self.listed.counts

    @property
    def state(self) -> str:
        """See ``ListedPlan``."""
        return self.listed.state

    @property
    def state_name(self) -> str:
        """See ``ListedPlan``."""
        return self.listed.state_name


LARGE, MOST_KEPT_TASKS = 1_000, 50_000
"""From how many tasks on a plan is kept for readers, and how many these plans have together."""


async def _read_record(fleet: Fleet, name: str) -> StoredConstellation:
    """A plan as it is now. To read a large plan again costs what is new in its journal, not the whole journal."""
    kept: StoredConstellation | None = fleet.read_plans.pop(name, None)  # it is kept again if nothing fails
    current = kept is not None and await refresh(fleet.store, kept)
    record = kept if kept is not None and current else await load(fleet.store, name)
    if len(record.plan) >= LARGE:
        keep(fleet.read_plans, record, MOST_KEPT_TASKS)
    return record


async def read_plan(fleet: Fleet, name: str, *, for_thread: bool = False) -> StoredPlan:
    """A plan as it is now, for reading. The same object may be brought up to date at the next call: a caller that reads
    it in another thread asks for a copy of its own. Raises UnknownConstellation."""
    record = await load(fleet.store, name) if for_thread else await _read_record(fleet, name)
    account = await read_account(fleet.store, name)
    if record.head.ended:
        return StoredPlan(record, None, account=account)
    owner = await live_owner(fleet.store, record.head)
    gone = await last_owner(fleet.store, record.head) if owner is None else None
    waiting = await waiting_approvals(fleet.store, record.head)
    runs = (await open_runs(fleet.store, {name: running_tasks(record.plan)}))[name]
    ahead = None
    if owner is None:
        ahead = await awaited_plan(fleet.store, name) or await plan_ahead(fleet.store, name)
    return StoredPlan(record, owner, gone, waiting, account, runs, ahead)


async def unreadable_plans(fleet: Fleet) -> list[UnreadablePlan]:
    """The plans that cannot be read. Reads all of them in full. Raises StoreUnavailable."""
    unreadable: list[UnreadablePlan] = []
    for register in await fleet.store.registers(PLANS):
        try:
            decode_head(register)
            await read_plan(fleet, _name(register))
        except UnknownConstellation:
            continue  # it was pruned since the registers were read
        except StoreUnavailable:
            raise
        except AsterismError as error:
            unreadable.append(UnreadablePlan(_name(register), 0.0, str(error)))
    return unreadable


def _name(register: Register) -> str:
    return register.key.removeprefix(PLANS)


# -- why a task is not running -----------------------------------------------------------------------------------------


class TaskExplanation(Record):
    """``reasons`` are those of the task's run, if it has one; otherwise those of the plan. ``hints`` are commands that
    a person may type."""

    plan: str
    task: str
    status: str
    reasons: Sequence[Reason]
    run: str | None = None
    hints: Sequence[str] = ()
    by: str | None = None
    """The process that runs the plan, if it gave the answer."""


def unknown_task(plan: Constellation, task: str) -> UnknownTask:
    """The error for a task that a plan does not have, with the name that may be meant."""
    return UnknownTask(task, suggestion(task, list(plan.nodes)))


class PlanCause(NamedTuple):
    """``tasks`` wait for the same ``reasons``, and the tasks ``behind`` them for these. ``needs`` are capabilities."""

    tasks: list[str]
    reasons: Sequence[Any]
    behind: set[str]
    hints: Sequence[str]
    needs: list[str]


class PlanExplanation(NamedTuple):
    """``running`` are the tasks that a device executes; ``left`` tasks wait for causes that were not looked for."""

    plan: str
    state: str
    running: list[str]
    causes: list[PlanCause]
    left: int


Hints = Callable[[Fleet, Run, run_explanation.RunExplanation], Awaitable[Sequence[str]]]


async def no_hints(fleet: Fleet, run: Run, why: run_explanation.RunExplanation) -> Sequence[str]:
    return ()


async def explain_task(fleet: Fleet, name: str, task: str, hints: Hints = no_hints) -> TaskExplanation:
    """``hints`` returns commands for a person, for the run of the task. Raises UnknownTask."""
    stored = await read_plan(fleet, name)
    plan = stored.record.plan
    node = plan.nodes.get(task)
    if node is None:
        raise unknown_task(plan, task)
    return await _explain(fleet, stored, node, PlanMask(plan), hints)


async def _explain(fleet: Fleet, stored: StoredPlan, node: Node, mask: PlanMask, hints: Hints) -> TaskExplanation:
    plan, now = stored.record.plan, fleet.store.clock()
    name, task = stored.record.head.name, node.id
    if node.status in TERMINAL:
        return TaskExplanation(name, task, str(node.status), [_ended(node, mask, now)])
    run = await _run_of(fleet, name, node)
    if run is not None:
        answer = await run_explanation.explain_run(fleet, run.id)
        return TaskExplanation(name, task, answer.status, answer.reasons, run.id, await hints(fleet, run, answer))
    waits = await awaited_plan(fleet.store, name), await plan_ahead(fleet.store, name)
    holder = _plan_holder(stored, node, *waits)
    if stored.owner is not None and holder is None and node.tentative is None:
        told = await ask_why(fleet, name, task)
        if told is not None:
            return TaskExplanation(name, task, told.status, told.holders, by=stored.owner.device)
    held = why(plan, stored.record.lock, node, holder, now, stored.waiting)
    reasons = [Reason(reason.kind, reason.name, mask.shown(reason.text)) for reason in held.holders]
    silent = [] if stored.owner is None or holder is not None else [_no_answer(stored.owner)]
    return TaskExplanation(name, task, held.status, reasons, hints=silent)


MOST_CAUSES = 10
"""How many causes an explanation of a plan looks for."""


async def explain_plan(fleet: Fleet, name: str, hints: Hints = no_hints) -> PlanExplanation:
    """What holds a plan: the tasks that hold others and do not run, each group of them with its cause. Chains of
    dependencies are followed to their beginning. Raises UnknownConstellation."""
    stored = await read_plan(fleet, name)
    plan, mask = stored.record.plan, PlanMask(stored.record.plan)
    nodes = [node for node in plan.nodes.values() if node.status not in TERMINAL]
    first = [node for node in nodes if not _comes_after_open(plan, node)]
    running = {node.id: None for node in first if node.status is RUNNING and stored.phase(node) == RUNNING_PHASE}
    alike: dict[Any, list[Node]] = {}
    for node in first:
        if node.id not in running:
            alike.setdefault((str(node.status), *_requirements(node)), []).append(node)
    causes: dict[tuple[str, ...], PlanCause] = {}
    for group in list(alike.values())[:MOST_CAUSES]:
        await asyncio.sleep(0)  # a large plan takes a while: others that wait for this process go on in between
        last = group[-1]  # the first may have begun since the plan was read
        if plan.nodes.get(last.id) is not last:
            continue  # another reader has brought the plan up to date, and the task is gone
        why = await _explain(fleet, stored, last, mask, hints)
        texts = tuple(reason.text for reason in why.reasons)
        held = {node.id for node in descendants(*group) if node.status not in TERMINAL}
        known = causes.get(texts)
        tasks = [*(() if known is None else known.tasks), *(node.id for node in group)]
        behind = held | (set() if known is None else known.behind)
        causes[texts] = PlanCause(tasks, why.reasons, behind, why.hints, sorted(group[0].task.needs))
    left = sum(map(len, list(alike.values())[MOST_CAUSES:]))
    return PlanExplanation(name, stored.state_name, list(running), list(causes.values()), left)


def _comes_after_open(plan: Constellation, node: Node) -> bool:
    """Whether a task waits for others that have not ended: they are the cause."""
    parents = [(plan.nodes[source], edge) for source, edge in node.parents.items()]
    return node.status is PENDING and any(
        parent.status not in TERMINAL and not parent.satisfies(edge, node) for parent, edge in parents
    )


def _requirements(node: Node) -> tuple[Any, ...]:
    """What tasks have in common that wait for the same; a task that waits for a person or an editor is alone."""
    alone = node.id if node.awaits or node.open or node.held or node.tentative else ""
    return alone, lane_of(node.task), tuple(sorted(node.task.uses.items()))


async def stuck_teardowns(fleet: Fleet, name: str) -> list[TaskExplanation]:
    """Why nothing of a plan that is being cancelled goes on, if only teardowns are left and no device can execute
    them; empty otherwise."""
    plan = (await load(fleet.store, name)).plan
    running = [node for node in plan.nodes.values() if node.status is RUNNING]
    if plan.state is not ConstellationState.CANCELLING or any(node.setup is None for node in running):
        return []
    stuck = []
    for node in running:
        run = await _run_of(fleet, name, node)
        if run is None:
            return []
        answer = await run_explanation.explain_run(fleet, run.id)
        kinds = {reason.kind for reason in answer.reasons}
        if "no_device" not in kinds and not ("backoff" in kinds and run.rounds):  # every device has declined it
            return []
        stuck.append(TaskExplanation(name, node.id, answer.status, answer.reasons, run.id))
    return stuck


def _no_answer(owner: Session) -> str:
    return f"{owner.device}, which runs the plan, did not answer: this is what the store says."


def _ended(node: Node, mask: PlanMask, now: float) -> Reason:
    reason = error_text(node.error) or node.reason
    text = f"it ended {format_age(now - (node.ended_at or now))} ago" + (f": {mask.shown(reason)}" if reason else "")
    return Reason("ended", str(node.status), text)


async def _run_of(fleet: Fleet, plan: str, node: Node) -> Run | None:
    """The run of the fleet that executes a task now."""
    runs = await fleet.store.find(Query(key=f"{retention.PREFIX}{plan}/{node.id}/{node.epoch}"))
    return runs[0] if runs and not runs[0].ended else None


def _plan_holder(stored: StoredPlan, node: Node, awaited: str | None, ahead: str | None) -> Reason | None:
    """What keeps the plan from starting a task that is ready. ``awaited`` is the plan whose success it waits for, and
    ``ahead`` the plan of its file whose end it waits for."""
    name = stored.record.head.name
    if stored.listed.cancelling and not stored.is_due(node):
        return Reason("cancel", name, "the plan is being cancelled")
    if stored.paused is not None and not stored.listed.cancelling:
        return Reason("pause", name, f"the plan is paused {stored.paused}")
    if stored.owner is None and awaited is not None:
        return Reason("previous", awaited, f"the plan waits until that of the tick before, {awaited}, has succeeded")
    if stored.owner is None and ahead is not None:
        return Reason("turn", ahead, f"the plan waits for its turn: plan {ahead} has not ended")
    if stored.owner is None:
        return Reason("at_rest", name, f"no process runs the plan; resume it with: asterism resume {name}")
    return None


# -- logs --------------------------------------------------------------------------------------------------------------


MOST_TRACEBACKS = 100
"""Of how many tasks a story shows tracebacks."""


class TaskRun(NamedTuple):
    """A run that executed a task. ``before`` is how many attempts earlier runs of the task had."""

    task: str
    epoch: int
    run: Run
    before: int

    @property
    def id(self) -> str:
        return self.run.id


async def task_runs(store: Store, plan: str, task: str | None = None, *, elements: bool = False) -> list[TaskRun]:
    """The runs of a plan, or of one of its tasks, in the order of their creation; with ``elements`` also those of the
    elements of a group, whether or not they are in the plan still. Old runs may have been pruned."""
    begin = f"{PREFIX}{plan}/"
    if task is not None:
        begin += task if elements else f"{task}/"
    runs: list[TaskRun] = []
    attempts: dict[str, int] = {}
    # the search spares the decoding of the runs of all other tasks
    for run in await store.find(Query(workflow=f"{PREFIX}{plan}", search=None if task is None else begin)):
        key = run.key or ""
        name, _, epoch = key.removeprefix(f"{PREFIX}{plan}/").rpartition("/")
        if not key.startswith(begin) or not epoch.isdecimal() or not _concerns(name, task, elements=elements):
            continue
        runs.append(TaskRun(name, int(epoch), run, attempts.get(name, 0)))
        attempts[name] = attempts.get(name, 0) + attempts_of(run)
    return runs


async def task_executions(
    store: Store, plan: str, task: str | None = None, *, elements: bool = False
) -> list[TaskRun | StoredLog]:
    """The executions of a plan, or of one of its tasks, that may have printed something: its runs, and those logs that
    its own process has written. In the order in which they were created, or first printed."""
    logs = [log for log in await stored_logs(store, plan) if _concerns(log.task, task, elements=elements)]
    executions: list[TaskRun | StoredLog] = [*await task_runs(store, plan, task, elements=elements), *logs]
    return sorted(executions, key=lambda execution: execution.id)


def _concerns(name: str, task: str | None, *, elements: bool) -> bool:
    return task in (None, name) or (elements and name.startswith(f"{task}["))


async def task_logs(fleet: Fleet, plan: str, task: str) -> list[TaskLog]:
    """What each attempt at a task of a stored plan printed, oldest first, wherever it ran:
    ``(await task_logs(fleet, "nightly", "load"))[-1].text``. Attempts that printed nothing are left out."""
    return (await logs_of_tasks(fleet, plan, [task]))[task]


async def logs_of_tasks(fleet: Fleet, plan: str, tasks: Collection[str]) -> dict[str, list[TaskLog]]:
    """The same for several tasks, with one search for their executions."""
    logs: dict[str, list[TaskLog]] = {task: [] for task in tasks}
    for execution in await task_executions(fleet.store, plan, *tasks if len(tasks) == 1 else ()):
        if execution.task not in logs:
            continue
        if isinstance(execution, StoredLog):
            chunks = tuple(await log_chunks(fleet.store, plan, execution.id))
            logs[execution.task].append(TaskLog(execution.attempt, chunks))
        else:
            of_run = await fleet.logs(execution.id)
            logs[execution.task] += [TaskLog(execution.before + log.attempt, log.chunks) for log in of_run]
    return logs


async def story_tracebacks(fleet: Fleet, plan: Constellation, story: Sequence[PlanEntry]) -> dict[int, str]:
    """The tracebacks in the story of a stored plan, by the place of the entry. Of at most ``MOST_TRACEBACKS`` tasks:
    those that failed last."""
    tasks = tasks_with_tracebacks(plan, story)[-MOST_TRACEBACKS:]
    return tracebacks_in(story, await logs_of_tasks(fleet, plan.id, tasks)) if tasks else {}
