"""The agent of a device: it joins a fleet, works until it is drained, and leaves.

::

    async with await Fleet.open("sqlite:///fleet.db") as fleet:
        await DeviceAgent(fleet, "kitchen-pc", can={"gpu"}, slots=2).run()
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from asterism.base import expressions
from asterism.base.clock import new_id
from asterism.core.errors import AsterismError
from asterism.core.json_values import JsonObject
from asterism.core.plan.task import AGENT_NEEDS
from asterism.core.record import replace as replaced
from asterism.core.run.session import DEFAULT_TIMEOUT, OWN_TASKS, Session, device_name_problem
from asterism.core.run.work import SHORTEST_HEARTBEAT
from asterism.execution.function_calls import start_capture, stop_capture
from asterism.execution.plugin_actions import plugin_capabilities
from asterism.fleet.coordinator import Coordinator
from asterism.fleet.device.agent_work import AgentRunner
from asterism.fleet.device.claimer import Claimer
from asterism.fleet.device.device_connection import DeviceAccess, DeviceConnection
from asterism.fleet.device.executor import DeviceExecutor, Executor
from asterism.fleet.device.health import DeviceHealth
from asterism.fleet.device.heartbeat import Heartbeat
from asterism.fleet.device.lease import Lease
from asterism.fleet.device.membership import DeviceHost, LocalHost, measure
from asterism.fleet.device.store_connection import StoreConnection
from asterism.fleet.device.take_order import Acceptance, OwnScore
from asterism.fleet.device.worker import Worker
from asterism.fleet.fleet import Fleet
from asterism.fleet.policy.device_policy import DevicePolicy
from asterism.store.store_errors import StoreError

log = logging.getLogger("asterism.device")


OWN_TASKS_INTERVAL = 0.1
"""Seconds between two looks of a device that is leaving at the tasks of its plan."""


class DeviceReplaced(AsterismError):
    """Another device took the name of this one; everything it did was stopped."""


class DeviceAgent:
    """A device of a fleet, as a process.

    ``fleet``          the fleet of a store, or the access to a gateway (``GatewayAccess``): such a device is never the
                       coordinator
    ``can``            its capabilities
    ``slots``          how many runs it executes at once; 0: it only coordinates others
    ``backlog``        how many more runs it claims in advance
    ``labels``         names and values for expressions
    ``accepts``        an expression over ``run`` and ``device``: only runs for which it holds are taken
    ``hands_back``     an expression over the profile: while it holds, the device hands all work back
    ``policy``         the device policy: what it executes; everything if left out
    ``notice_policy``  judges the command and the address that get notices; ``policy`` if left out
    ``agent``          does work for an agent; the device gets the capability ``agent`` and those of the agent
    ``executor``       executes the runs; a ``DeviceExecutor`` if left out
    ``heartbeat``      heartbeat interval without work, in seconds; with work those of the workflows count
    ``heartbeat_timeout``  after how long without a heartbeat it counts as gone
    ``grace``          how long work has to stop before it is killed
    ``monitor_every``  interval of its passes as coordinator; None if it never stands for election
    ``lease``          how long an election lasts; that of the fleet's settings if left out
    ``replace``        take the name from another device that is alive
    ``host``           the machine it runs on, if it is not this one
    ``measure``        returns its profile
    """

    def __init__(
        self,
        fleet: Fleet | DeviceAccess,
        name: str,
        *,
        can: Iterable[str] = (),
        slots: int = 1,
        backlog: int = 0,
        labels: Mapping[str, str] | None = None,
        accepts: str | None = None,
        hands_back: str | None = None,
        policy: DevicePolicy | None = None,
        notice_policy: DevicePolicy | None = None,
        agent: AgentRunner | None = None,
        executor: Executor | None = None,
        heartbeat: float = 30.0,
        heartbeat_timeout: float = DEFAULT_TIMEOUT,
        grace: float = 5.0,
        monitor_every: float | None = 5.0,
        lease: float | None = None,
        replace: bool = False,
        host: DeviceHost | None = None,
        measure: Callable[[], Mapping[str, Any]] = measure,
    ) -> None:
        _check(name, slots, backlog, heartbeat, heartbeat_timeout)
        _check_rules(name, accepts, hands_back)
        self.name = name
        now = fleet.store.clock() if isinstance(fleet, Fleet) else fleet.store_time()
        session = Session(
            new_id(now, fleet.chance),
            name,
            now,
            can=frozenset(can) | _own_capabilities(agent, slots),
            slots=slots,
            backlog=backlog,
            accepts=accepts,
            timeout=heartbeat_timeout,
        )
        policy = policy or DevicePolicy.open()
        judge = notice_policy or policy
        self._executor = executor or DeviceExecutor(policy, device=name, session=session.id, grace=grace, agent=agent)
        self._replace, self._host = replace, host
        self.draining = asyncio.Event()
        self.joined = asyncio.Event()
        self._hands_back_all = False  # runs that execute are handed back before it leaves
        self._coordinator: Coordinator | None = None
        if isinstance(fleet, Fleet):
            self.fleet = fleet
            self.connection: DeviceConnection = StoreConnection(fleet, session.owner)
            self._coordinator = Coordinator(fleet, name, session.id, judge, every=monitor_every or 0.0, lease=lease)
        else:
            self.connection, monitor_every = fleet.connect(session.owner), None
        self._monitor_every = monitor_every
        shown = dict(labels or {}) if agent is None else {**agent.labels, **(labels or {})}
        self.acceptance = Acceptance(
            session, self._coordinator, self.draining, labels=shown, hands_back=hands_back, measure=measure
        )
        self.health = DeviceHealth(self.connection, name, self._health_changed)
        self._wire(heartbeat, grace)
        self.session = replaced(session, profile=self._profile())

    def _wire(self, heartbeat: float, grace: float) -> None:
        """Make the lease, and the parts that share it."""
        connection, session = self.connection, self.session
        self.lease = Lease(connection.clock, session, interval=heartbeat, grace=grace)
        self.worker = Worker(
            connection,
            session,
            self._executor,
            self.lease,
            self.health,
            on_free=self._has_room,
            on_report=lambda: self.heartbeat.report_soon(),
        )
        self.own_score = OwnScore(connection, session)
        self.claimer = Claimer(connection, self.worker, self.lease, self.health, self.acceptance, self.own_score)
        self.heartbeat = Heartbeat(
            connection,
            self.lease,
            self.worker,
            self.claimer,
            measure=self._profile,
            on_draining=self.draining.set,
        )

    def on_room(self) -> None:
        """Called when a slot may be free again; the process of a plan replaces it."""

    def _has_room(self) -> None:
        self.claimer.look_if_free()
        self.on_room()

    @property
    def session(self) -> Session:
        return self.acceptance.session

    @session.setter
    def session(self, session: Session) -> None:
        self.acceptance.session = session

    # -- from joining to leaving ---------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Join, work until drained, and leave. Raises DeviceNameTaken, DeviceReplaced, and what makes work impossible,
        such as a store that is corrupt."""
        store = await self.connection.open()
        if isinstance(self._executor, DeviceExecutor):
            self._executor.set_store(store)
        host = self._host or LocalHost(store, self.name)
        self.session = replaced(self.session, host=host.host)
        began = self.connection.clock.time()
        start_capture()
        try:
            await self.connection.join(self.session, host, replace=self._replace)
            log.info("joined as %s", self.name)
            self.lease.renewed_at = began  # the store may have heard of us as long ago as that
            await self._live()
        finally:
            stop_capture()
            self.health.close()
            self._executor.close()
            if self._coordinator is not None:
                self._coordinator.close()
            self.connection.close()
            host.close()

    async def _live(self) -> None:
        jobs = [
            self.heartbeat.beat_until_ended(),
            self.heartbeat.enforce_leases(),
            self.claimer.listen(),
            self.claimer.claim_until_cancelled(),
        ]
        if self._coordinator is not None and self._monitor_every is not None:
            jobs += [self._coordinator.coordinate(), self._coordinator.deliver_notices()]
        if self.session.slots:
            jobs.insert(1, self.own_score.refresh_until_cancelled())  # before the first run is taken, if it is quick
        tasks = [asyncio.create_task(job) for job in jobs]
        beating = tasks[0]
        drained = asyncio.create_task(self._drained())
        self.connection.attach(self.claimer)
        self.joined.set()
        try:
            await asyncio.wait([*tasks, drained], return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
            if beating.done():
                raise DeviceReplaced(
                    f"another device has taken the name {self.name!r}: the work of this device was stopped"
                )
        finally:
            self.connection.attach(None)
            stopped = await self._stop(tasks[:2], [drained, *tasks[2:]])
            if stopped and not (beating.done() and not beating.cancelled()):
                await self._leave()

    async def _stop(self, heartbeat: Sequence[asyncio.Task[None]], others: Sequence[asyncio.Task[None]]) -> bool:
        """Take nothing more and stop all executions, with heartbeats until then. Returns whether all have stopped."""
        try:
            try:
                await _cancel(others)
            finally:  # also when this is cancelled
                stopped = await self.worker.abandon()
            return stopped
        finally:
            await _cancel([*heartbeat, *others])

    async def _leave(self) -> None:
        """End the session. If the store cannot be reached, the session times out."""
        with contextlib.suppress(StoreError, TimeoutError):
            async with asyncio.timeout(self.lease.timeout / 3):
                if self._coordinator is not None:
                    await self._coordinator.resign()
                await self.connection.leave()
        log.info("left")

    # -- what it takes -----------------------------------------------------------------------------------------------

    def hold_back(self, why: str) -> None:
        """Take no work yet, and show why. Call it before the device joins."""
        self.acceptance.held_back = why
        self.session = replaced(self.session, profile=self._profile())

    def take_work(self) -> None:
        """Take work from now on, and tell the store at once."""
        if self.acceptance.held_back is not None:
            self.acceptance.held_back = None
            self._profile()
            self.lease.renewal_due.set()

    # -- draining ----------------------------------------------------------------------------------------------------

    def drain(self, *, hand_back: bool = False) -> None:
        """Take nothing more and leave when all runs have ended; with ``hand_back`` they are handed back instead."""
        self._hands_back_all = self._hands_back_all or hand_back
        self.draining.set()
        self.claimer.look()
        if hand_back:
            self._hand_back()

    def _hand_back(self) -> None:
        """Hand back what has not begun, or everything."""
        for held in self.worker:
            if self._hands_back_all or not held.started:
                self.worker.stop(held, "the device is leaving")

    async def _drained(self) -> None:
        """Returns when the device is draining and holds nothing any more."""
        await self.draining.wait()
        with contextlib.suppress(StoreError):  # if the store does not hear of it, we decline what it assigns
            await self.connection.drain()
        sure = False
        while True:
            await self.claimer.settled.wait()  # an open request may bring a run that no other device would begin
            tasks = [held.task for held in self.worker if held.task is not None]
            self._hand_back()
            if not len(self.worker) and not self.worker.own_tasks():
                if sure:
                    return
                sure = True
                with contextlib.suppress(StoreError, TimeoutError):
                    async with asyncio.timeout(self.lease.timeout / 3):
                        await self.claimer.adopt_all()
            elif tasks:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            elif self.worker.own_tasks():
                await self.connection.clock.sleep(OWN_TASKS_INTERVAL)
            else:
                await asyncio.sleep(0)

    # -- changes of the device itself --------------------------------------------------------------------------------

    def _health_changed(self) -> None:
        """The device has stopped taking work, or takes it again: tell the store at once. Runs that have not begun go to
        other devices."""
        why = self.health.suspended
        for held in self.worker if why is not None else ():
            if not held.started:
                self.worker.stop(held, f"it has stopped taking work: {why}")
        self.lease.renewal_due.set()
        self.claimer.wake()

    def _profile(self) -> JsonObject:
        """Measure the profile for a heartbeat, and act on it: rest, or take work again."""
        rested = self.acceptance.resting
        profile = self.acceptance.measure(self.health.suspended, len(self.worker.held))
        if tasks := self.worker.own_tasks():
            profile = {**profile, OWN_TASKS: tasks}
        self.claimer.forget_judgements()
        resting = self.acceptance.resting
        if resting is not None:
            for held in self.worker:
                self.worker.stop(held, f"it hands work back while {self.acceptance.hands_back}")
        if rested is None and resting is not None:
            log.info("resting: %s", resting)
        elif rested is not None and resting is None:
            log.info("takes work again")
            self.claimer.wake()
        return profile


def _own_capabilities(agent: AgentRunner | None, slots: int) -> frozenset[str]:
    """What a device can do without being told: the work of its agent, and that of its plug-ins."""
    of_agent = frozenset() if agent is None else agent.can | AGENT_NEEDS
    return of_agent | plugin_capabilities() if slots else of_agent


async def _cancel(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _check(name: str, slots: int, backlog: int, heartbeat: float, timeout: float) -> None:
    # the process that runs a plan is PLAN@HOST, and a plan may have any printable name
    of_plan = "@" in name and name.isprintable() and "|" not in name and len(name) <= 1000
    if not of_plan and (problem := device_name_problem(name)) is not None:
        raise AsterismError(problem)
    if slots < 0 or backlog < 0:
        raise AsterismError(f"device {name!r}: slots and backlog must be whole numbers, 0 or more")
    if heartbeat < SHORTEST_HEARTBEAT:
        raise AsterismError(
            f"device {name!r}: heartbeat must be at least {SHORTEST_HEARTBEAT:g} s, not {heartbeat:g} s"
        )
    if not 2 * heartbeat <= timeout < float("inf"):
        raise AsterismError(
            f"device {name!r}: heartbeat_timeout ({timeout:g} s) must be at least twice the heartbeat "
            f"({heartbeat:g} s), or the device loses its work with one late heartbeat"
        )


def _check_rules(name: str, accepts: str | None, hands_back: str | None) -> None:
    for what, expression in (("accepts", accepts), ("hands_back", hands_back)):
        problem = expressions.check(expression) if expression is not None else None
        if problem is not None:
            raise AsterismError(f"device {name!r}: {what} is not valid: {problem}")
