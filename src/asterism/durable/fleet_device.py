"""The fleet as the only device of a durable orchestrator: each task becomes a run.

The run is written in the same commit as the step that starts the task, under a key that names the plan, the task and
the epoch. So a started task always has its run, and one execution never has two: after a crash the next owner finds the
run by its key, and waits for it. A function that the process of the plan executes itself is the exception: the step
names its run, and the run is written with its end, or when it lasts (``unwritten_runs.py``).

The run retries failed work (the ``retries`` of the task) and work whose device was lost (a limit of its own). The end
of a run is final.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from asterism.base.expressions import holds
from asterism.base.trace_context import current_traceparent
from asterism.core.errors import DeviceUnavailable, RecordedError, RunRefused
from asterism.core.json_values import NOTHING, JsonObject, is_short, plain_json
from asterism.core.limits import check_uses, uses_text
from asterism.core.plan.edit_rules import KnownDevices
from asterism.core.plan.journal import BegunRun, EndedRun, RecordedConstellation
from asterism.core.plan.node import AttemptTimes, Node
from asterism.core.plan.status import RUNNING, ConstellationState
from asterism.core.plan.task import Lane, Task, import_path, kind_of
from asterism.core.plan.task_files import handles_files
from asterism.core.run import transitions
from asterism.core.run import work as run_work
from asterism.core.run.placement import mismatch_reason
from asterism.core.run.run import COMPLETED, Grant, Owner, Run
from asterism.core.run.transitions import attempts_of, was_executed
from asterism.core.schedule.tick_values import TICK_INPUT
from asterism.durable.journal_store import OwnershipLost
from asterism.durable.journal_writer import JournalWriter, UnwrittenEnd
from asterism.durable.unwritten_runs import UnwrittenRun, UnwrittenRuns, before_end, complete
from asterism.execution import task_inputs
from asterism.execution.task_inputs import MissingInput, call_apart, is_secret
from asterism.fleet.device.functions import OF_TASKS, RESULT_OF
from asterism.fleet.device.run_inputs import CONSTANTS, MANIFESTS, literal
from asterism.fleet.fleet import Fleet, orchestrator_device
from asterism.fleet.joinable_devices import enrolment_of, known_devices
from asterism.fleet.ledger import UnknownRun, blob_of
from asterism.fleet.retention import PREFIX
from asterism.fleet.stored_limits import read_limits
from asterism.orchestrator.devices import Work, input_files
from asterism.orchestrator.execution import timed
from asterism.orchestrator.plan_mask import PlanMask
from asterism.orchestrator.roster import DEVICE, PROCESS, Member, Roster
from asterism.orchestrator.unchanged_tasks import UNKNOWN
from asterism.store.optimistic_update import until_available
from asterism.store.protocol import PutRun, Query, Write
from asterism.store.store_errors import StoreUnavailable

STOPPED = "the store was not reached in time"
"""Why work in the process of a plan was lost although the process lives."""


class RunFailed(RecordedError):
    """A run failed, after all its attempts."""

    final = True


class FleetRoster(Roster):
    """A roster with the fleet as its only member. The fleet itself chooses the device of a task."""

    def __init__(self, device: FleetDevice) -> None:
        super().__init__([device], "score")
        self._fleet = device.fleet
        self._known: KnownDevices | None = None

    def known_devices(self) -> KnownDevices | None:
        return self._known

    async def learn_devices(self) -> None:
        """Read the devices of the store. While it is unavailable, an edit may name any."""
        try:
            self._known = await known_devices(self._fleet.store)
        except StoreUnavailable:
            self._known = None

    def serves(self, member: Member, lane: Lane) -> bool:
        return True

    def find(self, device_id: str) -> Member | None:
        return next(iter(self), None)

    async def could_run(self, maker: Sequence[str], plan_id: str, task: Task) -> bool:
        member = next(iter(self), None)
        assert member is not None
        assert isinstance(member.device, FleetDevice)
        name = f"{plan_id}@{maker[1]}" if maker[0] == PROCESS else maker[1]
        return maker == await self.maker(plan_id, name) and await member.device.could_run(name, plan_id, task)

    async def maker(self, plan_id: str, device: str, began_at: float = math.inf) -> Sequence[str]:
        """The process that runs a plan is a device with the name of the plan: its machine counts. Of a device behind a
        gateway its enrolment counts: after a revocation, its name may be that of another machine."""
        own = f"{plan_id}@"
        if device.startswith(own):
            return [PROCESS, device.removeprefix(own)]
        enrolment = await enrolment_of(self._fleet.store, device, began_at)
        return UNKNOWN if enrolment is None else [DEVICE, device, enrolment]


def work_for(task: Task, run_terms: Mapping[str, Any]) -> run_work.Work:
    """The work of the run that executes a task of a plan."""
    if (timeout := task.heartbeat_timeout) is not None:
        run_terms = {**run_terms, "heartbeat_timeout": timeout, "heartbeat": min(HEARTBEAT, timeout / 3)}
    return run_work.Work(
        call=NO_ACTION if kind_of(task) is None else None if task.call is None else import_path(task.call, task.id),
        argv=task.argv,
        shell=task.shell,
        http=None if task.http is None else _referring_to_inputs(dict(task.http), task.inputs),
        env={name: _referring_to_inputs(value, task.inputs) for name, value in task.env.items()},
        cwd=task.cwd,
        description=task.description,
        needs=task.needs,
        priority=int(task.priority),
        timeout=task.timeout,
        retries=task.retries,
        backoff=task.backoff,
        agent=task.agent,
        plugin=task.plugin,
        outputs=dict(task.outputs) if handles_files(task) else None,
        **run_terms,
    )


HEARTBEAT = 30.0
"""Seconds between two heartbeats of the device of a task; a third of a shorter ``heartbeat_timeout``."""

NO_ACTION = "asterism.durable.fleet_device:no_action"


async def no_action() -> None:
    """The function of a task without an action, which only joins others."""


class PlanRuns:
    """What the fleet device knows of one plan. ``resumed`` are the executions (task, epoch) that were running when this
    process took the plan over, each with its run if the journal names it. ``run_terms`` are the terms of its runs.
    ``leaving``: another process continues the plan, so runs that stop are not cancelled."""

    def __init__(
        self,
        journal: JournalWriter,
        run_terms: Mapping[str, Any],
        resumed: Mapping[tuple[str, int], BegunRun | None],
    ) -> None:
        self.journal, self.run_terms, self.resumed = journal, run_terms, resumed
        self.leaving = False


class FleetDevice:
    """At most ``slots`` runs are open at any time, wherever they are: a task that cannot start yet needs no run in the
    store yet. ``run_terms`` are the terms of the runs of a plan that was stored without its own."""

    id = "fleet"
    can: frozenset[str] = frozenset()
    keeps_time = True
    """The timeout of a task counts from the moment at which a device begins it."""

    holds_limits = True

    def __init__(self, fleet: Fleet, slots: int, run_terms: Mapping[str, Any]) -> None:
        self.fleet, self.slots, self._terms = fleet, slots, run_terms
        self._plans: dict[str, PlanRuns] = {}
        self._unwritten = UnwrittenRuns()

    async def attach(self, journal: JournalWriter) -> PlanRuns:
        """Get ready for the tasks of a plan. The terms that are stored with it outrank those of this process."""
        name, stored = journal.head.name, journal.head.terms
        run_terms = {term: stored.get(term, own) for term, own in self._terms.items()}
        resumed = {
            (node.id, node.epoch): journal.plan.begun_run(node.id)
            for node in journal.plan.nodes.values()
            if node.status is RUNNING and node.tentative is None and node.device is not None
        }
        self._unwritten.attach(journal, resumed)
        plan = self._plans[name] = PlanRuns(journal, run_terms, resumed)
        runs = await self._unlisted_runs(journal.plan.ended_runs or (), plan)
        journal.plan.ended_runs = None
        journal.list_runs(runs)
        return plan

    def write_all(self, name: str) -> None:
        """Write the runs that execute here, in the next commit of the journal."""
        self._unwritten.write_all(name)

    def detach(self, name: str, ends: Sequence[UnwrittenEnd]) -> None:
        """The plan is left, or read again. ``ends`` were in a commit that did not happen."""
        self._plans.pop(name, None)
        self._unwritten.keep_ends(ends)

    async def forget(self, name: str) -> None:
        """The plan is left for good. An end that was refused is written if the next owner has written its run."""
        for end in self._unwritten.abandon(name):
            if await self.fleet.store.run(end.run.id) is not None:
                await complete(self.fleet, end)

    async def could_run(self, device: str, name: str, task: Task) -> bool:
        """Whether a device of the fleet could run a task of a plan now, by all that the store knows of it."""
        terms = work_for(task, self._terms)
        run = transitions.create("", terms, {}, by=name, now=0.0, device=task.device, origin=(f"{PREFIX}{name}", 0))
        now, sessions = self.fleet.store.clock(), await self.fleet.store.sessions(device=device)
        return any(
            session.reachable(now) and mismatch_reason(session, run, session.expression_names(), holds) is None
            for session in sessions
        )

    async def execute(self, work: Work) -> Any:
        plan = self._plans[work.constellation]
        try:
            if (work.task.id, work.epoch) in plan.resumed:
                ended = await self._end_of(await self._resumed_run(work, plan), plan.journal)
            else:
                ended = await self._executed(work, plan)
        except asyncio.CancelledError:
            await self._cancel(work, plan)
            raise
        except OwnershipLost:
            # the next owner says how it ended; the execution that waits for this one is about to be abandoned
            await asyncio.get_running_loop().create_future()
            raise
        if ended.given_up and _must_run(plan.journal.plan, work):
            raise DeviceUnavailable(ended.error or "")
        _record_end(plan.journal.plan, work, ended, self.fleet.store.clock())
        work.files = ended.files
        if ended.status is COMPLETED:
            if blob_of(ended.output) is None:
                return ended.output
            return await until_available(self.fleet.clock, lambda: self.fleet.output(ended))
        kind, _, message = (ended.error or "").partition(": ")
        raise RunFailed(kind, message) if message else RunFailed("RunFailed", kind)

    async def _executed(self, work: Work, plan: PlanRuns) -> Run:
        """The run of a new execution, once it has ended. What this process can do itself, it begins without a run in
        the store."""
        run = await self._new_run(work, plan)
        # what uses limits or has files needs a run in the store: only its grant holds them
        at_once = work.task.call is not None and run.uses is None and run.work.outputs is None
        unwritten = await self._begin_here(run, work, plan) if at_once else None
        if unwritten is None:
            run = await self._place(run, work, plan)
        else:
            run, ended = unwritten.run, await unwritten.end
            if ended is not None:
                return ended
            if unwritten.given_up and (unwritten.writing is None or not await unwritten.write()):
                lost = transitions.lose(run, self.fleet.store.clock(), STOPPED, counted=False)
                run = await self._place(lost, work, plan)
        return await self._end_of(run, plan.journal)

    async def _begin_here(self, run: Run, work: Work, plan: PlanRuns) -> UnwrittenRun | None:
        """Begin a run on the device of this process, as soon as the journal says so. None if that cannot take it."""
        local = self.fleet.local
        if local is None or not local.reserve(run):
            return None
        asked = self.fleet.clock.time()
        try:
            begun = local.accept(run, run.created_at)
            _record_device(plan.journal.plan, work, begun, unwritten=True)
            await plan.journal.commit()
            unwritten = self._unwritten.add(begun, work, plan.journal, self.fleet)
            local.begin(begun, asked, unwritten)
        finally:
            local.unreserve(run)
        if unwritten.held is None:
            await unwritten.write()  # the next heartbeat says whether this device may begin it after all
        return unwritten

    async def _end_of(self, run: Run, journal: JournalWriter) -> Run:
        """The run once it has ended. If this process executes it, its end is committed together with the steps that
        follow from it. The plan therefore takes the end into account before it is durable: all of it is written, or
        nothing."""
        if not self.fleet.executes_here(run.id):
            return await self.fleet.wait(run.id)
        heard: asyncio.Future[Run | None] = asyncio.get_running_loop().create_future()

        async def consume(write: PutRun, *more: Write) -> bool:
            if heard.done() or journal.sealed:
                return False
            heard.set_result(write.run)  # first, so that the steps that follow are recorded before the commit
            try:
                await journal.commit(write, *more)
            except OwnershipLost:
                return False
            return True

        ended = await self.fleet.waiters.consume(run.id, consume, heard)
        if ended is None:
            raise UnknownRun(run.id)
        return ended

    async def _resumed_run(self, work: Work, plan: PlanRuns) -> Run:
        """The run of an execution that had begun when this process read the plan. This process may execute it, or know
        its end; else it is found by its key. One that another process began and did not write is written now, as the
        run of that process: the fleet finds out whether it is lost, as for every run."""
        unwritten, end = self._unwritten.get(_key(work)), self._unwritten.take_end(_key(work))
        if unwritten is not None and await unwritten.write():
            return unwritten.run
        if end is not None:
            await plan.journal.commit(PutRun(before_end(end), None))
            await until_available(self.fleet.clock, lambda: complete(self.fleet, end))
            return end.run
        stored = await self._stored_run(work, plan)
        if stored is not None:
            return stored
        if (begun := plan.resumed[work.task.id, work.epoch]) is not None:
            return await self._write_begun(begun, work, plan)
        return await self._place(await self._new_run(work, plan), work, plan)

    async def _write_begun(self, begun: BegunRun, work: Work, plan: PlanRuns) -> Run:
        """Write a run that another process began: as its run, or as a lost one if nothing is known of its session."""
        run = (await self._new_run(work, plan)).changed(id=begun.id)
        sessions = await until_available(self.fleet.clock, lambda: self.fleet.store.sessions(ended=True))
        session = next((session for session in sessions if session.id == begun.session), None)
        device = orchestrator_device(work.constellation, "") if session is None else session.device
        run = transitions.take(run, Owner(device, begun.session), run.created_at, starts=True)
        if session is None:
            run = transitions.lose(run, self.fleet.store.clock(), "its process is forgotten", counted=False)
        await plan.journal.commit(PutRun(run, None))
        return run

    async def _unlisted_runs(self, ended: Sequence[EndedRun], plan: PlanRuns) -> list[Run]:
        """The runs that the last owner executed and had no time to write, as its journal tells of them."""
        works = {_key(work): (work, end) for end in ended for work in [_EndedWork.of(plan.journal.plan, end)]}
        stored = Query(keys=frozenset(works))
        for run in await until_available(self.fleet.clock, lambda: self.fleet.store.find(stored)) if works else ():
            del works[run.key or ""]
        return [await self._unlisted_run(work, end, plan) for work, end in works.values()]

    async def _unlisted_run(self, work: Work, end: EndedRun, plan: PlanRuns) -> Run:
        times = end.times
        run = (await self._new_run(work, plan, times.created)).changed(id=end.run.id)
        owner = Owner(end.device, end.run.session)
        run = transitions.take(run, owner, times.begun or times.created, starts=True)
        return transitions.complete(
            run, Grant(run.id, owner.session, run.epoch), end.value, times.ended or times.created
        )

    async def _new_run(self, work: Work, plan: PlanRuns, now: float | None = None) -> Run:
        """A new run for an execution, with its input."""
        node, uses = plan.journal.plan.nodes.get(work.task.id), work.task.uses
        if uses:
            check_uses(await until_available(self.fleet.clock, lambda: read_limits(self.fleet.store)), uses)
        if now is None:
            now = self.fleet.store.clock() if node is None or node.started_at is None else node.started_at
        run_id = self.fleet.run_ids.new(now)  # now: of runs of one moment, the id says which task was started first
        try:
            run_input = _run_input(work)
            if not is_short(run_input):
                run_input = await self._kept_input(run_input, f"the input of task {work.task.id!r}")
        except ValueError as error:  # the message of a failed expression may contain its data
            why = PlanMask(plan.journal.plan)().about_data(str(error))
            raise MissingInput(f"the input of task {work.task.id!r}: {why}") from None
        return transitions.create(
            run_id,
            work_for(work.task, plan.run_terms),
            run_input,
            by=work.constellation,
            origin=(f"{PREFIX}{work.constellation}", 0),
            now=now,
            key=_key(work),
            priority=_urgency(plan.journal.plan, work),
            device=work.task.device,
            uses=uses_text(uses),
            traceparent=current_traceparent(),
        )

    async def _kept_input(self, run_input: JsonObject, what: str) -> JsonObject:
        """The input of a run as JSON, in a blob if it is large. Raises ValueError."""
        plain = await call_apart(plain_json, run_input, what)
        kept: JsonObject = await until_available(
            self.fleet.clock, lambda: self.fleet.blobs.keep(plain, what, results=True)
        )
        return kept

    async def _place(self, run: Run, work: Work, plan: PlanRuns) -> Run:
        """Write a run, assigned to a device if one has room."""

        async def add(run: Run, assign: Callable[[Run], Run]) -> Run:
            run = assign(run.changed(priority=_urgency(plan.journal.plan, work)))
            _record_device(plan.journal.plan, work, run)
            await plan.journal.commit(PutRun(run, None))
            return run

        return await until_available(self.fleet.clock, lambda: self.fleet.place(run, add))

    async def _stored_run(self, work: Work, plan: PlanRuns) -> Run | None:
        runs = await until_available(self.fleet.clock, lambda: self.fleet.store.find(Query(key=_key(work))))
        return runs[0] if runs and runs[0].workflow == f"{PREFIX}{work.constellation}" else None

    async def _cancel(self, work: Work, plan: PlanRuns) -> None:
        """Stop a run wherever it is, and wait until it has stopped; the caller bounds the wait. The step that stops the
        task is committed first: if this process no longer owns the plan, it must not cancel the run either.

        The plan learns whether a device had begun it: the teardown of a set-up runs only then."""
        if plan.leaving:
            return
        now = self.fleet.store.clock
        try:
            plan.journal.list_runs()  # it may have ended in this moment
            await plan.journal.commit()
            if (unwritten := self._unwritten.get(_key(work))) is not None:
                await unwritten.write()
            run = await self._stored_run(work, plan)
            if run is None and (begun := plan.resumed.get((work.task.id, work.epoch))) is not None:
                run = await self._write_begun(begun, work, plan)
            if run is None:
                times = AttemptTimes(now(), ended=now(), executed=False)
                plan.journal.plan.record_run(work.task.id, work.epoch, now(), times, f"no run was created, {times}")
                return
            with contextlib.suppress(RunRefused):  # it has ended
                await until_available(self.fleet.clock, functools.partial(self.fleet.cancel, run.id))
        except OwnershipLost:
            return
        _record_run(plan.journal.plan, work, await self.fleet.wait(run.id), now())


class _EndedWork(Work, kw_only=True, eq=False):
    """The work of a run that ended before the store had it."""

    sources: Mapping[str, Any]

    @classmethod
    def of(cls, plan: RecordedConstellation, end: EndedRun) -> _EndedWork:
        task = timed(end.task, teardown=end.teardown)
        return cls(task, plan, end.run.epoch, 1, None, sources=end.results)

    @property
    def results(self) -> Mapping[str, Any]:
        return self.sources


def _key(work: Work) -> str:
    return f"{PREFIX}{work.constellation}/{work.task.id}/{work.epoch}"


def _must_run(plan: RecordedConstellation, work: Work) -> bool:
    """Whether a task is a teardown of a plan that is being cancelled. If its run was given up, before the request to
    cancel the plan was stored, it is put back."""
    node = plan.nodes.get(work.task.id)
    return node is not None and node.setup is not None and plan.state is ConstellationState.CANCELLING


def _urgency(plan: RecordedConstellation, work: Work) -> int:
    """The priority with which a task counts now."""
    node = plan.nodes.get(work.task.id)
    return int(work.task.priority if node is None else node.urgency)


def _record_device(plan: RecordedConstellation, work: Work, run: Run, *, unwritten: bool = False) -> Node | None:
    """Record which device of the fleet has the run, as far as that is known: when it is created, and when it has ended.
    Returns the node of the execution; None if the plan has changed since."""
    node = plan.nodes.get(work.task.id)
    if node is None or node.epoch != work.epoch or node.status is not RUNNING:
        return None
    if unwritten and run.device is not None and run.session is not None:
        plan.set_device(node, run.device, run.id, run.session)
    elif run.device not in (None, node.device):
        plan.set_device(node, run.device)
    return node


def _record_end(plan: RecordedConstellation, work: Work, run: Run, now: float) -> None:
    """Record the device, and how many attempts the run took: for the plan they were one."""
    node = _record_device(plan, work, run)
    if node is not None and run.previous and (tries := attempts_of(run)) > 1:
        lost = sum(assignment.reason == "timeout" for assignment in run.previous)  # also with the plan's own process
        plan.set_attempts(node, node.attempts - 1 + tries, node.losses + lost)
    _record_run(plan, work, run, now)


def _record_run(plan: RecordedConstellation, work: Work, run: Run, now: float) -> None:
    """Record when the run was created, assigned, begun and ended. The report reads the story."""
    times = AttemptTimes(run.created_at, run.assigned_at, run.started_at, run.ended_at, was_executed(run))
    where = f"run {run.id}, epoch {run.epoch}, on {run.device or 'no device'}"
    plan.record_run(work.task.id, work.epoch, now, times, f"{where}, {times}")


def _run_input(work: Work) -> dict[str, Any]:
    """The input of the run: the inputs of the task with the results that they refer to, and the results that its
    function, variables or request name. Secrets stay references, which the device resolves. A result that looks like a
    reference to a secret is marked as a literal."""
    task, results = work.task, work.results
    filled = _filled(work) if task.inputs else NOTHING
    wanted = results if task.call is not None else {name: results[name] for name in _named(task) if name in results}
    placed: dict[str, Any] = {}
    renamed = False
    for name, value in wanted.items():
        place = _input_name(name, filled)
        placed[place] = value if type(value) in CONSTANTS else literal(value)
        renamed = renamed or place != name
    run_input = {**placed, **filled}
    if task.call is not None and (filled or renamed):
        run_input[OF_TASKS] = sorted(placed)
    if work.tick:
        run_input[TICK_INPUT] = dict(work.tick)
    return run_input


def _input_name(name: str, taken: Mapping[str, Any]) -> str:
    """The name of the input that holds the result of a task: the task's name, unless an input has that name."""
    return (
        f"{RESULT_OF}{name}" if name in taken or name in (OF_TASKS, TICK_INPUT) or name.startswith(RESULT_OF) else name
    )


def _referring_to_inputs(value: Any, taken: Mapping[str, Any]) -> Any:
    """A value of a task as a value of the work of its run: references to results become references to inputs."""
    if task_inputs.is_reference(value):
        source = value.get("from")
        return {**value, "from": _input_name(source, taken)} if isinstance(source, str) else value
    if isinstance(value, Mapping):
        return {key: _referring_to_inputs(item, taken) for key, item in value.items()}
    return [_referring_to_inputs(item, taken) for item in value] if isinstance(value, list | tuple) else value


def _filled(work: Work) -> dict[str, Any]:
    """The inputs of a task with the results and the files that they refer to."""
    references = task_inputs.References(work.results, task_inputs.NO_SECRETS, work.plan.nodes)
    files, filled = input_files(work), {}
    for name, value in work.task.inputs.items():
        if name in files:
            value = {**value, MANIFESTS: list(files[name].manifests)}
        elif type(value) not in CONSTANTS and not is_secret(value):
            value = literal(references.fill(value, name))
        filled[name] = value
    return filled


def _named(task: Task) -> set[str]:
    """The tasks whose results the variables or the request of a task refer to."""
    names: set[str] = set()
    if not task.env and task.http is None:
        return names

    def collect(value: Any) -> None:
        if task_inputs.is_reference(value):
            if "from" in value:
                names.add(value["from"])
        elif isinstance(value, Mapping):
            for item in value.values():
                collect(item)
        elif isinstance(value, list | tuple):
            for item in value:
                collect(item)

    collect(list(task.env.values()))
    collect(dict(task.http or {}))
    return names
