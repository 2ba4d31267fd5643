"""The fleet as a device of a durable orchestrator: a task that goes there becomes a run.

The run is written in the same commit as the step that starts the task, under a key that names the plan, the task and
the epoch. So a task that was started in the fleet always has its run, and one execution never has two: after a crash
the next owner finds the run by its key, and waits for it.

The run retries failed work (the ``retries`` of the task) and work whose device was lost (a limit of its own). The end
of a run is final.

The other device of the orchestrator is its own process (``plan_process.py``), which goes first. A task for which it has
no free slot goes to the fleet only if another device could take it now.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from asterism.base.expressions import holds
from asterism.base.trace_context import current_traceparent
from asterism.core.errors import DeviceLost, DeviceUnavailable, RecordedError, RunRefused
from asterism.core.json_values import NOTHING, JsonObject, is_short, plain_json
from asterism.core.limits import check_uses, uses_text
from asterism.core.plan.edit_rules import KnownDevices
from asterism.core.plan.journal import RecordedConstellation
from asterism.core.plan.node import AttemptTimes, Node, is_process
from asterism.core.plan.status import RUNNING, ConstellationState
from asterism.core.plan.task import Lane, Task, import_path, kind_of
from asterism.core.plan.task_files import handles_files
from asterism.core.record import defaults_of
from asterism.core.run import transitions
from asterism.core.run import work as run_work
from asterism.core.run.placement import Placer, capable, mismatch_reason
from asterism.core.run.run import COMPLETED, Run
from asterism.core.run.session import ENDED, SILENT_SHOWN
from asterism.core.run.transitions import attempts_of, was_executed
from asterism.core.schedule.tick_values import TICK_INPUT
from asterism.durable.journal_store import OwnershipLost
from asterism.durable.journal_writer import JournalWriter
from asterism.execution import task_inputs
from asterism.execution.task_inputs import MissingInput, call_apart, is_secret
from asterism.fleet.device.functions import OF_TASKS, RESULT_OF
from asterism.fleet.device.run_inputs import CONSTANTS, MANIFESTS, literal
from asterism.fleet.fleet import PLACER_AGE, Fleet
from asterism.fleet.joinable_devices import enrolment_of, known_devices
from asterism.fleet.ledger import blob_of
from asterism.fleet.retention import PREFIX
from asterism.fleet.stored_limits import read_limits
from asterism.orchestrator.devices import Work, input_files
from asterism.orchestrator.plan_mask import PlanMask
from asterism.orchestrator.roster import DEVICE, PROCESS, Active, Member, Roster
from asterism.orchestrator.unchanged_tasks import UNKNOWN
from asterism.store.optimistic_update import until_available
from asterism.store.protocol import PutRun, Query
from asterism.store.store_errors import StoreError, StoreUnavailable

if TYPE_CHECKING:
    from asterism.durable.plan_process import PlanProcess


def process_lost(why: str) -> DeviceLost:
    """The error of a task whose process, that of its plan, died or was cut off. That says nothing about the task."""
    error = DeviceLost(why)
    error.counts = False
    return error


class RunFailed(RecordedError):
    """A run failed, after all its attempts."""

    final = True


class FleetRoster(Roster):
    """A roster with the fleet as its only member. The fleet itself chooses the device of a task."""

    def __init__(self, device: FleetDevice) -> None:
        super().__init__([device], "score")
        (self.fleet,) = self
        self.device = device
        self._known: KnownDevices | None = None

    def known_devices(self) -> KnownDevices | None:
        return self._known

    async def learn_devices(self) -> None:
        """Read the devices of the store. While it is unavailable, an edit may name any."""
        try:
            self._known = await known_devices(self.device.fleet.store)
        except StoreUnavailable:
            self._known = None

    def serves(self, member: Member, lane: Lane) -> bool:
        return True

    async def could_run(self, maker: Sequence[str], plan_id: str, task: Task) -> bool:
        name = f"{plan_id}@{maker[1]}" if maker[0] == PROCESS else maker[1]
        return maker == await self.maker(plan_id, name) and await self.device.could_run(name, plan_id, task)

    async def maker(self, plan_id: str, device: str, began_at: float = math.inf) -> Sequence[str]:
        """The process that runs a plan is a device with the name of the plan: its machine counts. Of a device behind a
        gateway its enrolment counts: after a revocation, its name may be that of another machine."""
        own = f"{plan_id}@"
        if device.startswith(own):
            return [PROCESS, device.removeprefix(own)]
        enrolment = await enrolment_of(self.device.fleet.store, device, began_at)
        return UNKNOWN if enrolment is None else [DEVICE, device, enrolment]


class PlanRoster(FleetRoster):
    """The roster of one plan: the process that runs it, if that has slots, and the fleet of all plans (``shared``)."""

    def __init__(self, shared: FleetRoster, process: PlanProcess | None) -> None:
        super().__init__(shared.device)
        self._shared, self._process = shared, process
        self.fleet = self._members[shared.device.id] = shared.fleet
        self.wake: Callable[[], None] = lambda: None
        self._served: dict[Lane, bool] = {}  # by the process
        self._placer: Placer | None = None
        self._room: dict[Lane, int] = {}  # on other devices, as of that placer
        self._look: asyncio.Task[None] | None = None
        self._looked = False
        if process is not None:
            self._members[process.id] = process.member
            process.woken = self._process_woken

    def known_devices(self) -> KnownDevices | None:
        return self._shared.known_devices()

    async def learn_devices(self) -> None:
        await self._shared.learn_devices()

    def profiles(self) -> list[tuple[str, frozenset[str], int | None]]:
        return self._shared.profiles()

    def resumes(self, node: Node) -> Member | None:
        """The fleet, which also waits until an earlier process is gone."""
        return self.fleet

    def choose(self, lane: Lane) -> Member | None:
        process = self._process
        if process is not None and self._serves(process, lane):
            if process.has_room:
                return process.member
            if not self._room_elsewhere(lane):
                return None
        return self.fleet if self.fleet.free else None

    def _serves(self, process: PlanProcess, lane: Lane) -> bool:
        served = self._served.get(lane)
        if served is None:
            served = self._served[lane] = capable(process.member, lane)
        return served

    def move(self, active: Active, member: Member) -> None:
        """Give a task that one device has to another one."""
        before, active.member = active.member, member
        self.assign(member)
        self.release(before)

    def _process_woken(self) -> None:
        """The process may have room again."""
        assert self._process is not None
        lanes = self._process.member.waiting_lanes
        for queue, lane in lanes:
            queue.activate(lane)
        lanes.clear()
        self.wake()

    def _room_elsewhere(self, lane: Lane) -> bool:
        """Whether another device could take a task of a lane now, by what is known of the fleet. If not, look again."""
        placer = self.device.fleet.known_placer
        if placer is not None and placer is not self._placer:
            self._placer, self._room = placer, {}
        room = 0
        if placer is not None:
            room = self._room[lane] if lane in self._room else self._count_room(placer, lane)
            self._room[lane] = max(0, room - 1)
        if not room and self._look is None:
            self._look = asyncio.get_running_loop().create_task(self._look_again())
        return room > 0

    def _count_room(self, placer: Placer, lane: Lane) -> int:
        assert self._process is not None
        plan, _, _ = self._process.id.rpartition("@")
        wanted, needs = lane or (None, frozenset[str]())
        work = run_work.Work(call=NO_ACTION, needs=needs)
        run = Run("", f"{PREFIX}{plan}", 0, 0.0, plan, work, pinned=wanted)
        return sum(
            session.idle
            for session in placer.sessions.values()
            if session.device != self._process.id and placer.refusal_reason(session, run) is None
        )

    async def _look_again(self) -> None:
        """Read the devices of the fleet, as tasks wait for one."""
        fleet = self.device.fleet
        try:
            if self._looked:
                await fleet.clock.sleep(PLACER_AGE)
            self._looked = True
            with contextlib.suppress(StoreError):
                await fleet.placer()
        finally:
            self._look = None
        self._process_woken()

    def close(self) -> None:
        if self._look is not None:
            self._look.cancel()


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
    process took the plan over; ``lost`` are those of them that an earlier process executed itself, with its name.
    ``run_terms`` are the terms of its runs.
    ``leaving``: another process continues the plan, so runs that stop are not cancelled."""

    def __init__(
        self,
        journal: JournalWriter,
        run_terms: Mapping[str, Any],
        roster: PlanRoster,
        resumed: Collection[tuple[str, int]],
        lost: Mapping[tuple[str, int], str],
    ) -> None:
        self.journal, self.run_terms, self.roster = journal, run_terms, roster
        self.resumed, self.lost = resumed, lost
        self._plain: dict[tuple[Any, ...], run_work.Work] = {}
        self.leaving = False
        self._gone: dict[tuple[str, float], asyncio.Task[None]] = {}

    async def gone(self, fleet: Fleet, device: str, timeout: float) -> None:
        """Wait until earlier processes of this name have certainly stopped the work of a task with this timeout."""
        waiting = self._gone.get((device, timeout))
        if waiting is None:
            own = self.journal.head.owner or ""
            waiting = asyncio.create_task(sessions_over(fleet, device, own, timeout))
            self._gone[device, timeout] = waiting
        await asyncio.shield(waiting)

    def close(self) -> None:
        """The plan is left, or read again."""
        self.leaving = True
        self.roster.close()

    def detached(self) -> None:
        """Its tasks are abandoned, and nothing waits for earlier processes: for a task that did, their end would be its
        own."""
        for waiting in self._gone.values():
            waiting.cancel()

    def plain(self, task: Task) -> run_work.Work:
        """The work of a task that this process executes itself."""
        plain = task.call is not None and not task.env and not handles_files(task)
        shape = (task.call, task.cwd, task.timeout) if plain else None
        work = None if shape is None else self._plain.get(shape)
        if work is None:
            work = work_for(task, self.run_terms)
            if shape is not None:
                self._plain[shape] = work
        return work

    async def never(self) -> NoReturn:
        """The plan was lost: the next owner says how its tasks ended, and this one is about to abandon them."""
        await asyncio.get_running_loop().create_future()
        raise AssertionError


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

    async def attach(self, journal: JournalWriter, roster: PlanRoster) -> PlanRuns:
        """Get ready for the tasks of a plan. The terms that are stored with it outrank those of this process."""
        name, stored = journal.head.name, journal.head.terms
        run_terms = {term: stored.get(term, own) for term, own in self._terms.items()}
        resumed = {
            (node.id, node.epoch): node.device
            for node in journal.plan.nodes.values()
            if node.status is RUNNING and node.tentative is None and node.device is not None
        }
        local = {
            f"{PREFIX}{name}/{task}/{epoch}": (task, epoch) for (task, epoch), at in resumed.items() if is_process(at)
        }
        if local:
            runs = Query(keys=frozenset(local))
            for run in await until_available(self.fleet.clock, lambda: self.fleet.store.find(runs)):
                del local[run.key or ""]  # it was a run, which that process had claimed
        lost = {execution: resumed[execution] or "" for execution in local.values()}
        plan = self._plans[name] = PlanRuns(journal, run_terms, roster, resumed.keys(), lost)
        return plan

    def detach(self, name: str) -> None:
        """The plan is left, or read again."""
        if (plan := self._plans.pop(name, None)) is not None:
            plan.detached()

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
        if (device := plan.lost.get((work.task.id, work.epoch))) is not None:
            await plan.gone(self.fleet, device, loss_timeout(work.task))
            raise process_lost(f"{device} was gone before it ended")
        try:
            if (work.task.id, work.epoch) in plan.resumed:
                run = await self._resumed_run(work, plan)
            else:
                run = await self._created_run(work, plan)
            ended = await self.fleet.wait(run.id)
        except asyncio.CancelledError:
            await self._cancel(work, plan)
            raise
        except OwnershipLost:
            await plan.never()
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

    async def _resumed_run(self, work: Work, plan: PlanRuns) -> Run:
        """The run of an execution that had begun when this process read the plan, by its key. The process before may
        have had no time to write it."""
        stored = await self._stored_run(work, plan)
        return await self._created_run(work, plan) if stored is None else stored

    async def _created_run(self, work: Work, plan: PlanRuns) -> Run:
        return await self._place(await self._new_run(work, plan), work, plan)

    async def _new_run(self, work: Work, plan: PlanRuns) -> Run:
        """A new run for an execution, with its input."""
        node, uses = plan.journal.plan.nodes.get(work.task.id), work.task.uses
        if uses:
            check_uses(await until_available(self.fleet.clock, lambda: read_limits(self.fleet.store)), uses)
        now = self.fleet.store.clock() if node is None or node.started_at is None else node.started_at
        run_id = self.fleet.run_ids.new(now)  # now: of runs of one moment, the id says which task was started first
        with _input_problems(work, plan):
            run_input = run_input_of(work)
            if not is_short(run_input):
                run_input = await self._kept_input(run_input, f"the input of task {work.task.id!r}")
        return transitions.create(
            run_id,
            work_for(work.task, plan.run_terms),
            run_input,
            by=work.constellation,
            origin=(f"{PREFIX}{work.constellation}", 0),
            now=now,
            key=run_key(work),
            priority=_urgency(plan.journal.plan, work),
            device=work.task.device,
            uses=uses_text(uses),
            traceparent=current_traceparent(),
        )

    def run_input(self, work: Work, plan: PlanRuns) -> dict[str, Any]:
        """The input of an execution. Raises MissingInput."""
        with _input_problems(work, plan):
            return run_input_of(work)

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
        runs = await until_available(self.fleet.clock, lambda: self.fleet.store.find(Query(key=run_key(work))))
        return runs[0] if runs and runs[0].workflow == f"{PREFIX}{work.constellation}" else None

    async def _cancel(self, work: Work, plan: PlanRuns) -> None:
        """Stop a run wherever it is, and wait until it has stopped; the caller bounds the wait. The step that stops the
        task is committed first: if this process no longer owns the plan, it must not cancel the run either.

        The plan learns whether a device had begun it: the teardown of a set-up runs only then."""
        if plan.leaving:
            return
        now = self.fleet.store.clock
        try:
            await plan.journal.commit()
            run = await self._stored_run(work, plan)
            if run is None:
                times = AttemptTimes(now(), ended=now(), executed=False)
                plan.journal.plan.record_run(work.task.id, work.epoch, now(), times, f"no run was created, {times}")
                return
            with contextlib.suppress(RunRefused):  # it has ended
                await until_available(self.fleet.clock, functools.partial(self.fleet.cancel, run.id))
        except OwnershipLost:
            return
        _record_run(plan.journal.plan, work, await self.fleet.wait(run.id), now())


def loss_timeout(task: Task) -> float:
    """Seconds without a heartbeat of the process that executes a task until another one may start it again: no longer
    than the coordinator keeps the session of a process without runs."""
    return LOSS_TIMEOUT if task.heartbeat_timeout is None else min(task.heartbeat_timeout, SILENT_SHOWN)


LOSS_TIMEOUT: float = defaults_of(run_work.Work)["heartbeat_timeout"]

SESSIONS_INTERVAL = 1.0
"""Seconds between two looks at the sessions of an earlier process."""


async def sessions_over(fleet: Fleet, device: str, own: str, timeout: float) -> None:
    """Wait until the sessions of a device, but for our own, have ended, or have been silent for ``timeout``. The clock
    of the store may have been set forward: so we have to observe the silence, too, for the timeout of the session."""
    store, clock = fleet.store, fleet.clock
    seen: dict[str, tuple[float, float]] = {}  # the last heartbeat of each, and since when we know of no later one
    while True:
        sessions = await until_available(clock, lambda: store.sessions(device=device))
        now, alive = clock.time(), False
        for session in sessions:
            if session.id == own or session.state == ENDED:
                continue
            beat, since = seen.setdefault(session.id, (session.beat_at, now))
            if beat != session.beat_at:
                seen[session.id] = session.beat_at, now
            silent = store.clock() - session.beat_at > timeout and now - since > session.timeout
            alive = alive or beat != session.beat_at or not silent
        if not alive:
            return
        await clock.sleep(SESSIONS_INTERVAL)


def run_key(work: Work) -> str:
    """The key of the run of an execution; it also names an execution that is no run."""
    return f"{PREFIX}{work.constellation}/{work.task.id}/{work.epoch}"


@contextlib.contextmanager
def _input_problems(work: Work, plan: PlanRuns) -> Iterator[None]:
    """The message of a failed expression may contain its data."""
    try:
        yield
    except ValueError as error:
        why = PlanMask(plan.journal.plan)().about_data(str(error))
        raise MissingInput(f"the input of task {work.task.id!r}: {why}") from None


def _must_run(plan: RecordedConstellation, work: Work) -> bool:
    """Whether a task is a teardown of a plan that is being cancelled. If its run was given up, before the request to
    cancel the plan was stored, it is put back."""
    node = plan.nodes.get(work.task.id)
    return node is not None and node.setup is not None and plan.state is ConstellationState.CANCELLING


def _urgency(plan: RecordedConstellation, work: Work) -> int:
    """The priority with which a task counts now."""
    node = plan.nodes.get(work.task.id)
    return int(work.task.priority if node is None else node.urgency)


def _record_device(plan: RecordedConstellation, work: Work, run: Run) -> Node | None:
    """Record which device of the fleet has the run, as far as that is known: when it is created, and when it has ended.
    Returns the node of the execution; None if the plan has changed since."""
    node = plan.nodes.get(work.task.id)
    if node is None or node.epoch != work.epoch or node.status is not RUNNING:
        return None
    if run.device not in (None, node.device):
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


def run_input_of(work: Work) -> dict[str, Any]:
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
