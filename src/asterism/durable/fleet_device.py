"""A fleet as the one device of an orchestrator: each execution of a task is a run.

The run is written in the same commit as the step that starts the task, under a key that names the constellation, the
task and the epoch. So there is never a task that was started and has no run, nor a second run of one execution: who
goes on after a crash finds the run by its key, and waits for it.

Failed work is tried again by the run (the task's ``retries``), and so is work whose device was lost (a cap of its own).
What a run says in the end is final.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from asterism.base import task_inputs
from asterism.base.expressions import Selections
from asterism.base.ids import new_id
from asterism.base.task_inputs import MissingInput
from asterism.core.errors import RecordedError, RunRefused
from asterism.core.json_values import plain_json
from asterism.core.plan.node import Node
from asterism.core.plan.ready_queue import Lane
from asterism.core.plan.status import RUNNING
from asterism.core.plan.task import Task
from asterism.core.run import transitions
from asterism.core.run.run import COMPLETED, Run
from asterism.core.run.workflow import Workflow
from asterism.durable.journal_store import NotOurs
from asterism.durable.journal_writer import Journal
from asterism.fleet.device.functions import OF_TASKS, RESULT_OF, attempts_of
from asterism.fleet.device.run_inputs import CONSTANTS, is_secret, literal
from asterism.fleet.fleet import Fleet
from asterism.fleet.ledger import UnknownRun
from asterism.fleet.retention import PREFIX
from asterism.fleet.run_blobs import blob_of
from asterism.orchestrator.devices import Work
from asterism.orchestrator.plan_mask import PlanMask
from asterism.orchestrator.roster import Place, Roster
from asterism.store.protocol import PutRegister, PutRun, Query
from asterism.store.store_errors import StoreUnavailable

Value = TypeVar("Value")

AGAIN = 1.0
"""After how many seconds the store is asked again that was out of reach."""


class RunFailed(RecordedError):
    """How a run failed, after all its attempts."""

    final = True


class FleetRoster(Roster):
    """There is one place, and which device of the fleet takes a task is for the fleet to say."""

    def capable(self, lane: Lane) -> list[Place]:
        return list(self)

    def find(self, device_id: str) -> Place | None:
        return next(iter(self), None)


class Workflows:
    """The workflows of one constellation: one for each kind of task, however many tasks there are of it. They are the
    versions of one workflow that has the constellation's name."""

    def __init__(self, fleet: Fleet, name: str, terms: Mapping[str, Any]) -> None:
        self._fleet, self._terms = fleet, terms
        self.name = f"{PREFIX}{name}"
        self._known: dict[str, Workflow] = {}
        self._shapes: dict[tuple[Any, ...], Workflow] = {}
        self._writing: dict[int, asyncio.Task[None]] = {}  # those that are not known to be in the store yet

    async def read(self) -> None:
        """Those that are in the store."""
        for one in await self._fleet.store.registers(f"workflow-version/{self.name}@"):
            flow = Workflow.from_json(one.value)
            self._known[_text(flow)] = flow
            self._fleet.workflows.remember(flow)

    def _latest(self) -> int:
        return max((flow.version for flow in self._known.values()), default=0)

    async def of(self, task: Task, journal: Journal) -> Workflow:
        """The workflow of a task. It is in the store when this returns, so that no run is there before it."""
        shape = _shape(task)
        flow = self._shapes.get(shape) if shape is not None else None
        if flow is None:
            flow = self._new(task, journal)
            if shape is not None:
                self._shapes[shape] = flow
        if flow.version in self._writing:
            await asyncio.shield(self._writing[flow.version])
            if self._writing.pop(flow.version, None) is not None:
                self._fleet.workflows.remember(flow)  # not before it is durable: others may write one of this version
        return flow

    def _new(self, task: Task, journal: Journal) -> Workflow:
        """One that was not asked for in this process before. If it is not in the store either, it is on its way."""
        plain_flow = _workflow(self.name, task, self._terms)
        text = _text(plain_flow)
        flow = self._known.get(text)
        if flow is None:
            flow = self._known[text] = plain_flow.at_version(self._latest() + 1)
            new = PutRegister(f"workflow-version/{self.name}@{flow.version}", flow.to_json(), None)
            self._writing[flow.version] = asyncio.create_task(journal.commit(new))  # for all who wait for it
        return flow


def _text(flow: Workflow) -> str:
    return json.dumps(flow.at_version(0).to_json(), sort_keys=True)


def _shape(task: Task) -> tuple[Any, ...] | None:
    """What tells the workflows of tasks apart, if it can be had cheaply."""
    if task.http is not None or task.env:
        return None
    return (
        *(task.call, task.argv, task.shell, task.cwd, task.needs, task.priority),
        *(task.timeout, task.retries, task.backoff, task.description),
    )


def _workflow(name: str, task: Task, terms: Mapping[str, Any]) -> Workflow:
    call = task.call
    if call is None and task.argv is None and task.shell is None and task.http is None:
        call = NOTHING_TO_DO
    return Workflow(
        name,
        call=call,
        argv=task.argv,
        shell=task.shell,
        http=None if task.http is None else _pointed(dict(task.http), task.inputs),
        env={name: _pointed(value, task.inputs) for name, value in task.env.items()},
        cwd=task.cwd,
        description=task.description,
        needs=task.needs,
        priority=int(task.priority),
        limit=task.timeout,
        retries=task.retries,
        backoff=task.backoff,
        **terms,
    )


NOTHING_TO_DO = f"{__name__}:nothing_to_do"


async def nothing_to_do() -> None:
    """The work of a task that has none: it only stands between others."""


class FleetDevice:
    """``journal`` gives the journal of a constellation. At most ``slots`` runs are under way at any time, wherever they
    are: what cannot be done yet need not be in the store yet. ``terms`` are for every workflow of a constellation that
    was kept without any of its own."""

    id = "fleet"
    can: frozenset[str] = frozenset()
    keeps_time = True
    """The limit of a task counts from the moment at which a device begins with it."""

    def __init__(self, fleet: Fleet, slots: int, journal: Callable[[str], Journal], terms: Mapping[str, Any]) -> None:
        self.fleet, self.slots, self._journal, self._terms = fleet, slots, journal, terms
        self._workflows: dict[str, Workflows] = {}

    async def prepare(self, name: str, said: Mapping[str, Any]) -> None:
        """Before any task of a constellation. What was ``said`` when it began holds for whoever goes on with it."""
        terms = {term: said.get(term, ours) for term, ours in self._terms.items()}
        self._workflows[name] = Workflows(self.fleet, name, terms)
        await self._workflows[name].read()

    def forget(self, name: str) -> None:
        self._workflows.pop(name, None)

    async def execute(self, work: Work) -> Any:
        journal = self._journal(work.constellation)
        run: Run | None = None
        try:
            run = await self._run_of(work, journal)
            ended = await self._end_of(run, journal)
        except asyncio.CancelledError:
            if run is not None:
                await self._call_off(run, journal)
            raise
        except NotOurs:
            # it is for others to say how it ended; whoever waits for us is about to be told the same
            await asyncio.get_running_loop().create_future()
            raise
        _locate(work, journal, ended)
        _count(work, journal, ended)
        where = f"run {ended.id}, epoch {ended.epoch}, on {ended.device or 'no device'}"
        journal.plan.note(self.fleet.store.clock(), "run ended", work.task.id, where)
        if ended.status is COMPLETED:
            if blob_of(ended.output) is None:
                return ended.output
            return await self.patiently(lambda: self.fleet.output(ended))
        kind, _, message = (ended.error or "").partition(": ")
        raise RunFailed(kind, message) if message else RunFailed("RunFailed", kind)

    async def _end_of(self, run: Run, journal: Journal) -> Run:
        """The run once it has ended. If it is done in this process, its end is written together with the steps that
        follow from it, and so taken into account here before it is durable: all of it is written, or nothing."""
        if not self.fleet.executes_here(run.id):
            return await self.fleet.wait(run.id)
        heard: asyncio.Future[Run | None] = asyncio.get_running_loop().create_future()

        async def consume(write: PutRun) -> bool:
            if heard.done() or journal.sealed:
                return False
            heard.set_result(write.run)  # first, so that what follows from it is recorded before it is written
            try:
                await journal.commit(write)
            except NotOurs:
                return False
            return True

        ended = await self.fleet.waiters.consume(run.id, consume, heard)
        if ended is None:
            raise UnknownRun(run.id)
        return ended

    async def _run_of(self, work: Work, journal: Journal) -> Run:
        key = f"{PREFIX}{work.constellation}/{work.task.id}/{work.epoch}"
        if (work.task.id, work.epoch) in journal.taken_up:
            found = await self.patiently(lambda: self.fleet.store.find(Query(key=key)))
            if found and found[0].workflow == f"{PREFIX}{work.constellation}":
                return found[0]
        flow = await self._workflows[work.constellation].of(work.task, journal)
        what = f"the input of task {work.task.id!r}"
        try:
            given = plain_json(_given(work), what)
        except ValueError as error:  # an expression that failed tells what it was given
            raise MissingInput(f"{what}: {PlanMask(journal.plan)().about_data(str(error))}") from None
        kept = await self.patiently(lambda: self._keep(given, what))
        now = self.fleet.store.clock()
        run = transitions.create(
            new_id(now, self.fleet.chance), flow, kept, by=work.constellation, now=now, key=key, device=work.task.device
        )

        async def add(run: Run, give: Callable[[Run], Run]) -> Run:
            given = give(run)
            _locate(work, journal, given)
            try:
                await journal.commit(PutRun(given, None))
            except asyncio.CancelledError:
                await self._call_off(given, journal)  # it is written all the same
                raise
            return given

        return await self.patiently(lambda: self.fleet.place(run, flow, add))

    async def _keep(self, given: Mapping[str, Any], what: str) -> Any:
        return await self.fleet.blobs.keep(given, what)

    async def _call_off(self, run: Run, journal: Journal) -> None:
        """Stop it wherever it is, and wait until it has stopped. Whoever waits for us loses patience first. The step
        for which it is stopped comes first: if that is not ours to take, neither is this."""
        if journal.leaving:
            return
        try:
            await journal.commit()
            await self.patiently(lambda: self.fleet.cancel(run.id))
        except NotOurs:
            return
        except RunRefused:
            return  # it has ended
        await self.fleet.wait(run.id)

    async def patiently(self, ask: Callable[[], Awaitable[Value]]) -> Value:
        """No task fails because the store is out of reach."""
        while True:
            try:
                return await ask()
            except StoreUnavailable:
                await self.fleet.clock.sleep(AGAIN)


def _locate(work: Work, journal: Journal, run: Run) -> None:
    """Say in the plan which device of the fleet does it, as far as that is known: when it is given away at once, and
    when it has ended."""
    node = _node(work, journal)
    if node is not None and run.device not in (None, node.device):
        journal.plan.set_device(node, run.device)


def _count(work: Work, journal: Journal, run: Run) -> None:
    """Say in the plan how often it was tried until it ended. To the plan all of that was one attempt."""
    tries = attempts_of(run)
    if tries > 1 and (node := _node(work, journal)) is not None:
        journal.plan.set_attempts(node, node.attempts - 1 + tries, node.losses + run.losses)


def _node(work: Work, journal: Journal) -> Node | None:
    """The task of this execution; None if the plan has gone on without it."""
    node = journal.plan.nodes.get(work.task.id)
    return node if node is not None and node.epoch == work.epoch and node.status is RUNNING else None


def _given(work: Work) -> dict[str, Any]:
    """The input of the run: the inputs of the task, with the results they refer to, and whatever results its function
    or its words ask for by name. Secrets of the task stay what they are: names, for the device to look up. A result
    that looks like one is none: it may come from anybody."""
    task, results = work.task, work.results
    select = Selections()
    filled = {name: _filled(name, value, results, select) for name, value in task.inputs.items()}
    wanted = results if task.call is not None else {name: results[name] for name in _named(task) if name in results}
    placed = {_place(name, filled): literal(value) for name, value in wanted.items()}
    given = {**placed, **filled}
    if task.call is not None and (filled or not placed.keys() <= wanted.keys()):
        given[OF_TASKS] = sorted(placed)
    return given


def _place(name: str, taken: Mapping[str, Any]) -> str:
    """The input that holds the result of a task: that of its name, unless an input of the task has it."""
    return f"{RESULT_OF}{name}" if name in taken or name == OF_TASKS or name.startswith(RESULT_OF) else name


def _pointed(value: Any, taken: Mapping[str, Any]) -> Any:
    """Words of a task as those of a workflow: they refer to results, wherever these are among the inputs."""
    if task_inputs.is_reference(value):
        source = value.get("from")
        return {**value, "from": _place(source, taken)} if isinstance(source, str) else value
    if isinstance(value, Mapping):
        return {key: _pointed(item, taken) for key, item in value.items()}
    return [_pointed(item, taken) for item in value] if isinstance(value, list | tuple) else value


def _filled(name: str, value: Any, results: Mapping[str, Any], select: Selections) -> Any:
    if type(value) in CONSTANTS or is_secret(value):
        return value
    if not task_inputs.is_reference(value):
        return literal(value)
    return literal(task_inputs.resolve_inputs({name: value}, {}, results, task_inputs.NO_SECRETS, select).inputs[name])


def _named(task: Task) -> set[str]:
    """The tasks whose results the variables or the request of a task refer to."""
    found: set[str] = set()
    if not task.env and task.http is None:
        return found

    def look(value: Any) -> None:
        if task_inputs.is_reference(value):
            if "from" in value:
                found.add(value["from"])
        elif isinstance(value, Mapping):
            for item in value.values():
                look(item)
        elif isinstance(value, list | tuple):
            for item in value:
                look(item)

    look(list(task.env.values()))
    look(dict(task.http or {}))
    return found
