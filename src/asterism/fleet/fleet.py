"""A fleet: the devices, workflows and runs of one store, as a program uses them.

::

    async with await Fleet.open("sqlite:///fleet.db") as fleet:
        await fleet.workflows.add(Workflow("resize", argv=["convert", "{file}", "-resize", "50%", "small.png"]))
        run = await fleet.create("resize", {"file": "big.png"})
        print(await fleet.output(await fleet.wait(run.id)))

``CurrentPlacer`` has the devices, read again after a second, and slots reserved for assignments under way. The store
counts the runs that devices own, so an assignment is in the next read once its write is done. Until then only this
process knows of it. Many runs that are created at the same time would otherwise all go to the same free slots.
"""

from __future__ import annotations

import asyncio
import logging
import random
import sys
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, TypedDict, Unpack
from weakref import WeakValueDictionary

from asterism.base.clock import AscendingIds, BootClock, Clock, Looks
from asterism.base.expressions import holds
from asterism.base.trace_context import current_traceparent
from asterism.core.attempt_log import LogChunk, TaskLog
from asterism.core.errors import AsterismError, NotJson, RunRefused, safe_repr, suggestion, truncate
from asterism.core.json_values import plain_json
from asterism.core.limits import check_uses, uses_of, uses_text
from asterism.core.run import transitions
from asterism.core.run.placement import Choice, Placer
from asterism.core.run.run import COMPLETED, PROCESSING, RETRY_KEYS, Progress, Run
from asterism.core.run.run_label import TextTemplate
from asterism.core.run.session import ABROAD, OPEN, REACHABLE_STATES, Session
from asterism.core.run.work import KEEP_RULES, Work, Workflow
from asterism.fleet import retention
from asterism.fleet import settings as fleet_settings
from asterism.fleet.ledger import Ledger, RunBlobs, UnknownRun
from asterism.fleet.retention import LOST, PREFIX
from asterism.fleet.role_lease import read_lease
from asterism.fleet.settings import COORDINATOR, Settings
from asterism.fleet.stored_limits import read_limits
from asterism.fleet.waiters import RunWaiters
from asterism.fleet.workflows import Workflows
from asterism.store.optimistic_update import retried
from asterism.store.protocol import ProgressReport, PutSession, Query, Store, StoredChunk
from asterism.store.url import open_store

if TYPE_CHECKING:
    from asterism.base.content_store import ContentStore
    from asterism.execution.artifacts import Artifacts
    from asterism.fleet.run_queries import CancelledCount
    from asterism.fleet.schedules import Schedules
log = logging.getLogger("asterism.fleet")

PLACER_AGE = 1.0
"""How long a placer is used, in seconds. Assignments of this process are counted meanwhile."""

ReadPlacer = Callable[[Placer | None], Awaitable[Placer]]
"""Reads the devices. The argument is the placer before, which knows whose turn it is."""


class CurrentPlacer:
    """``read`` reads the devices from the store. One read serves all who wait for it."""

    def __init__(self, read: ReadPlacer, clock: Clock) -> None:
        self._read, self._clock = read, clock
        self._reading: asyncio.Event | None = None  # set at the end of the read that is under way
        self._reads = 0  # how many have begun
        self._known: tuple[float, Placer] | None = None
        self.awaited: Collection[str] = ()
        """Devices for which runs may wait: they take the first of these themselves, in the order of the queue."""

        self._under_way: dict[str, str] = {}  # run -> device of an assignment whose write is not acknowledged
        self._just_written: list[str] = []  # devices of assignments that were acknowledged during a read

    async def get(self, *, fresh: bool = False) -> Placer:
        """The placer, at most ``PLACER_AGE`` old."""
        reads = self._reads
        if not fresh and (placer := self._young) is not None:
            return placer
        while self._reading is not None:
            await self._reading.wait()  # its end wakes all at once; a lock would wake them in turn, a turn for each
            # a read that began before this call is not fresh
            if (not fresh or self._reads > reads) and (placer := self._young) is not None:
                return placer
        self._reading = asyncio.Event()
        self._reads += 1
        self._just_written.clear()
        began = self._clock.time()
        try:
            placer = await self._read(None if self._known is None else self._known[1])
            # those that were written during the read may be counted in it: a slot that seems taken for a second is
            # better than two runs for one slot
            for device in (*self._under_way.values(), *self._just_written):
                placer.reserve(device)
            self._known = (began, placer)
        finally:
            self._reading.set()
            self._reading = None
        return placer

    @property
    def known(self) -> Placer | None:
        """The placer, however old; None before the first read."""
        return None if self._known is None else self._known[1]

    @property
    def _young(self) -> Placer | None:
        """The placer, if it may still be used."""
        if self._known is None or self._clock.time() - self._known[0] > PLACER_AGE:
            return None
        return self._known[1]

    def choose(self, run: Run, near: Collection[str], busy: Collection[str] = ()) -> Choice:
        """Choose a device for a run, and reserve a slot of it until ``settle``. The placer must have been read. Those
        that are ``busy`` have no free slot, whatever the store says."""
        assert self._known is not None
        placer = self._known[1]
        self._free(run.id)  # a second try to write the same run
        choice = placer.choose(run, near=near, awaited={*self.awaited, *busy})
        if choice.owner is not None:
            placer.record_assignment(choice.owner.device)
            self._under_way[run.id] = choice.owner.device
        return choice

    def settle(self, run_id: str, *, written: bool) -> None:
        """The write of a run that was given to ``choose`` has ended. If it was not ``written``, its slot is free."""
        if not written:
            self._free(run_id)
        elif (device := self._under_way.pop(run_id, None)) is not None and self._reading is not None:
            self._just_written.append(device)

    def _free(self, run_id: str) -> None:
        device = self._under_way.pop(run_id, None)
        if device is not None and self._known is not None:
            self._known[1].release(device)


SETTINGS_AGE = 5.0
"""How long settings that were read are used, in seconds."""

SCHEDULE_PREFIX = "schedule:"
"""Prefix of the keys and series of runs that belong to a schedule."""


NEAR = "preferred, since it is on the machine where the run was created"
"""Why a device was chosen, for the story."""


class RunOptions(TypedDict, total=False):
    """What ``Fleet.create`` says of a new run besides its work."""

    key: str | None
    series: str | None
    priority: int | None
    device: str | None
    keep: str | None
    label: str | None
    batch: str | None


class InvalidTerms(AsterismError):
    """A term that no run can have."""


class UnknownDevice(AsterismError):
    """No device of this name has joined."""


AddRun = Callable[[Run, Callable[[Run], Run]], Awaitable[Run]]
"""Writes a new run, after the function has assigned it to a device; see Ledger.add."""


class InProcessDevice(Protocol):
    """A device that works in the process of a fleet object. Runs that are created there start on it in the same commit,
    if it can take them."""

    @property
    def device(self) -> str:
        """The name of the device."""

    @property
    def full(self) -> bool:
        """Whether it can hold no more, also because of tasks that are no runs: the store does not count these."""

    def reserve(self, run: Run) -> bool:
        """Keep a slot for a run that is about to be created. Returns False if the device cannot take it now."""

    def unreserve(self, run: Run) -> None:
        """Give up what was reserved: the run has begun, or will not come."""

    def accept(self, run: Run) -> Run:
        """The run as it is to be written: taken by this device, and started."""

    def begin(self, run: Run, asked: float) -> None:
        """Execute a run that was written. ``asked`` is when the write was sent, by the fleet's clock. If the device has
        been silent for too long since, it begins nothing."""

    def holds(self, run_id: str) -> bool:
        """Whether the device holds a run."""

    def wake(self) -> None:
        """There may be a run that waits for a device."""


class Fleet:
    """``by`` names who acts, in the stories of runs. ``local`` is the device of this process, while it works."""

    def __init__(
        self, store: Store, *, by: str = "user", clock: Clock | None = None, chance: random.Random | None = None
    ) -> None:
        self.store, self.by = store, by
        self.clock: Clock = clock or BootClock()
        self.chance = chance or random.Random()
        self.run_ids = AscendingIds(self.chance)
        self.workflows = Workflows(store)
        self.waiters = RunWaiters(store, self.clock)
        self.ledger = Ledger(store, self.clock, self.chance, self.waiters.ended)
        self.blobs = RunBlobs(store, self.settings)
        self.local: InProcessDevice | None = None
        self.running_plans: dict[str, Any] = {}
        """The plans that this process runs, by name (``durable/ownership.py``)."""

        self.plan_locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self.kept_plans: dict[str, Any] = {}
        """Plans that this process has changed and no process runs, by name, and the locks of those who do so
        (``durable/plan_actor.py``)."""

        self.read_plans: dict[str, Any] = {}
        """Large plans that this process has read, by name (``durable/stored_plans.py``)."""

        self.plan_runners: set[Callable[[], None]] = set()
        """What wakes the plan runners of this process (``durable/plan_runner.py``)."""

        self._placer = CurrentPlacer(self._read_placer, self.clock)
        self._settings: tuple[float, Settings] | None = None
        self._place: tuple[str | None, ContentStore] | None = None
        self._files: Artifacts | None = None

    def named(self, by: str) -> Fleet:
        """The same fleet with this name in its stories."""
        fleet = Fleet(self.store, by=by, clock=self.clock, chance=self.chance)
        fleet.run_ids = self.run_ids
        fleet.running_plans, fleet.kept_plans = self.running_plans, self.kept_plans
        fleet.read_plans, fleet.plan_locks = self.read_plans, self.plan_locks
        fleet.plan_runners = self.plan_runners
        return fleet

    def plan_created(self) -> None:
        """There is a plan to run: the runners of this process look now, others at their next look."""
        for wake in self.plan_runners:
            wake()

    @cached_property
    def cancelled_count(self) -> CancelledCount:
        """Counts the cancelled runs. It remembers those that it has read."""
        from asterism.fleet.run_queries import CancelledCount

        return CancelledCount()

    @classmethod
    async def open(cls, url: str | None = None, *, by: str = "user", create: bool = True) -> Fleet:
        """Open the fleet of a store: ``sqlite:///file``, ``postgresql://…`` or ``memory:``; None for $ASTERISM_STORE,
        or a file in the user's data directory. With ``create`` a store that does not exist is created."""
        return cls(await open_store(url, create=create), by=by)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self.waiters.close()
        await self.store.close()

    @property
    def schedules(self) -> Schedules:
        """The schedules of the fleet."""
        from asterism.fleet.schedules import Schedules  # which few programs use

        return Schedules(self)

    # -- runs --------------------------------------------------------------------------------------------------------

    async def create(
        self,
        workflow: str | Workflow,
        input: Mapping[str, Any] | None = None,
        *,
        near: Collection[str] = (),
        add: AddRun | None = None,
        **options: Unpack[RunOptions],
    ) -> Run:
        """Create a run and assign it, in one write. It is durable when this returns.

        :param input: the input of the run.
        :param key: returns the existing run if the key is taken.
        :param series: at most one run of a series is active; they start in the order of their creation.
        :param device: only this device may execute it.
        :param keep: which record counts if peers that were cut off from each other both assigned it: ``epoch``
            or ``original`` (core/run/merge.py); by default that of the workflow.
        :param near: devices that are preferred because they are where the run is created, if they can take it.
        :param label: what people call the run: lists show it, and ``Query.search`` finds it.
        :param batch: the name of the runs to which it belongs: they are counted together (``Store.batches``).
        :param add: writes the run, in a commit with more; by default ``Ledger.add``, alone.
        """
        check_options(options)
        what = f"the input of {(workflow if isinstance(workflow, str) else workflow.name)!r}"
        if input is not None and not isinstance(input, Mapping):
            raise NotJson(f"{what} must be an object of named values, not {safe_repr(input)}")
        value = await self.blobs.keep(plain_json(dict(input), what), what) if input else {}
        flow = await self._flow(workflow)
        run = new_run(self, flow, value, uses=await self.uses(flow, input or {}), **options)
        return await self.place(run, add, near=near)

    async def create_many(
        self,
        workflow: str | Workflow,
        inputs: Iterable[Mapping[str, Any]],
        *,
        per_commit: int | None = None,
        **options: Unpack[RunOptions],
    ) -> list[Run]:
        """Create a run for each input, and return them in the order of the inputs. They are offered to all devices.

        So many of them as ``per_commit`` (1,000 by default) are one commit: all are written, or none. Raises
        InvalidInput with the place of an input that cannot be used; the commits before it are written.

        :param label: a template for the labels: ``{file}`` stands for the field ``file`` of the input.
        :param key: a template for the keys. In place of a run whose key is taken, the existing one is returned, so that
            a second call with the same inputs creates only what is missing.
        :param series: one series for all of them. The others are as for ``create``.
        """
        from asterism.fleet import bulk_creation  # it needs this module

        flow = await self._flow(workflow)
        size = bulk_creation.PER_COMMIT if per_commit is None else per_commit
        return await bulk_creation.create_many(self, flow, inputs, per_commit=size, **options)

    async def uses(self, flow: Workflow, run_input: Mapping[str, Any]) -> str | None:
        """What a new run of a workflow uses of limits. Raises UnknownLimit, and InvalidLimit for too much of one."""
        if not flow.uses:
            return None
        text = filled_uses(flow, run_input)
        check_uses(await read_limits(self.store), uses_of(text))
        return text

    async def _flow(self, workflow: str | Workflow) -> Workflow:
        if isinstance(workflow, str):
            return await self.workflows.latest(workflow)
        return workflow if workflow.version else await self.workflows.add(workflow)

    async def place(self, run: Run, add: AddRun | None = None, *, near: Collection[str] = ()) -> Run:
        """Write a new run, assigned in the same write to the device of this process, else to the best device of the
        fleet if one has room. ``near`` names preferred devices. ``add`` does the writing, by default the ledger."""
        add = add or self.ledger.add
        if run.uses is not None:
            return await add(run, lambda offered: offered)  # a device takes it when its limits have room
        local = self.local
        if local is not None and local.reserve(run):
            asked = self.clock.time()
            try:
                added = await add(run, lambda offered: local.accept(offered))
                if added.id == run.id:
                    local.begin(added, asked)
                return added
            finally:
                local.unreserve(run)
        await self._placer.get()
        busy = (local.device,) if local is not None and local.full else ()
        written = False

        def assign(offered: Run) -> Run:
            choice = self._placer.choose(offered, near, busy)
            if choice.owner is None:
                return offered
            return transitions.assign(
                offered,
                choice.owner,
                by=self.by,
                now=self.store.clock(),
                scores=choice.scores,
                within=choice.within,
                why=NEAR if choice.owner.device in near else "",
            )

        try:
            added = await add(run, assign)
            written = added.id == run.id
            if local is not None and added.offered:
                local.wake()  # before the store says so: the next run that is created here must not overtake it
            return added
        finally:
            self._placer.settle(run.id, written=written)

    async def run(self, run_id: str) -> Run:
        """The record of a run, with the progress that its device last reported. Raises UnknownRun."""
        [run] = await self._with_progress([await self.ledger.read(run_id)])
        return run

    async def runs(self, query: Query | None = None) -> list[Run]:
        """The records of runs, each with the progress that its device last reported."""
        return await self._with_progress(await self.store.find(query or Query()))

    async def _with_progress(self, runs: list[Run]) -> list[Run]:
        """Devices report progress with their heartbeats, beside the record of a run, until they give it back."""
        owned = [run.id for run in runs if run.session is not None]
        reports = await self.store.reports(owned) if owned else {}
        return [run.changed(progress=reported_progress(run, reports)) if run.id in reports else run for run in runs]

    async def wait(self, run_id: str) -> Run:
        """The run once it has ended; bound the wait with ``asyncio.timeout``. Raises UnknownRun."""
        run = await self.waiters.wait(run_id, here=self.executes_here(run_id))
        if run is None:
            raise UnknownRun(run_id)
        return run

    def executes_here(self, run_id: str) -> bool:
        """Whether the device of this process holds a run."""
        return self.local is not None and self.local.holds(run_id)

    async def output(self, run: Run) -> Any:
        """The output of a completed run, fetched if it is stored as a blob."""
        return await self.blobs.fetch(run.output)

    async def artifacts(self) -> ContentStore:
        """Where the files of tasks are kept. Raises ArtifactProblem if the fleet has no place for them."""
        from asterism.fleet.artifact_place import place_of
        from asterism.fleet.device.membership import store_identity

        url = (await self.settings()).artifacts
        if self._place is None or self._place[0] != url:
            identity = "" if url is None else await store_identity(self.store, self.clock)
            self._place = url, place_of(url, self.store, identity)
        return self._place[1]

    async def files(self) -> Artifacts:
        """The files of tasks, to be read. Raises ArtifactProblem if the fleet has no place for them."""
        from asterism.execution.artifacts import Artifacts

        content = await self.artifacts()
        if self._files is None or self._files.content is not content:
            self._files = Artifacts(content)
        return self._files

    async def logs(self, run_id: str) -> list[TaskLog]:
        """What each attempt at a run printed, oldest first: ``(await fleet.logs(run_id))[-1].text``. Attempts that
        printed nothing are left out. A run that executes has its log up to a second or two ago. Raises UnknownRun."""
        run = await self.run(run_id)
        attempts: dict[int, list[LogChunk]] = {}
        for chunk in await self.store.log(run_id):
            attempts.setdefault(chunk.epoch, []).append(await self.log_chunk(chunk))
        return [TaskLog(attempt_number(run, epoch), tuple(chunks)) for epoch, chunks in attempts.items()]

    async def log_chunk(self, stored: StoredChunk) -> LogChunk:
        """A chunk of a log, fetched if it is stored as a blob."""
        return LogChunk.from_json(stored.first, await self.blobs.fetch(stored.value))

    async def cancel(self, run_id: str, reason: str = "") -> Run:
        """Cancel a run: at once if no device holds it, else as soon as its device has stopped."""
        by = self.by_whom(reason)
        return await self.ledger.request(run_id, lambda run: transitions.cancel(run, self.store.clock(), by))

    async def pause(self, run_id: str, reason: str = "") -> Run:
        """Pause a run until it is resumed; its progress is kept."""
        by = self.by_whom(reason)
        return await self.ledger.request(run_id, lambda run: transitions.pause(run, self.store.clock(), by))

    async def resume(self, run_id: str, reason: str = "") -> Run:
        """Resume a paused run."""
        by = self.by_whom(reason)
        return await self.ledger.request(run_id, lambda run: transitions.resume(run, self.store.clock(), by))

    def by_whom(self, reason: str) -> str:
        """Who, and why, for the story of a run."""
        return truncate(f"{self.by}: {reason}" if reason else self.by)

    async def move(self, run_id: str, device: str, *, stop: bool = False, reason: str = "") -> Run:
        """Assign a run to another device. If it declines the run or is lost, any device may take it as before.

        :param stop: if a device works on the run, ask it to stop and hand the run back first, with its progress, and
            wait for that. Without it such a run is refused.

        Raises UnknownDevice, RunRefused, and AsterismError if the device cannot take the run now."""
        return await move_run(self, run_id, device, stop=stop, by=self.by_whom(reason))

    async def retry(self, run_id: str, reason: str = "") -> Run:
        """Create a new run of the same work that names the old one, which stays as it is. In a batch the new run takes
        the place of the old one, so a second call returns the same run until that has ended."""
        old = await self.run(run_id)
        if old.workflow.startswith(PREFIX):
            name = old.workflow.removeprefix(PREFIX)
            raise AsterismError(
                f"run {run_id} belongs to plan {name!r}, which would not notice a new run. "
                f"When the plan has ended, run what failed again with: asterism plan retry {name}"
            )
        if not old.ended:
            raise AsterismError(f"run {run_id} is {old.status}: only a run that has ended can be retried")
        # work that was completed begins anew
        progress = None if old.status is COMPLETED else old.progress
        if old.batch is None:
            return await self._repeat(old, old.pinned, progress, reason=reason)
        new = await self._repeat(old, old.pinned, progress, f"{RETRY_KEYS}{old.id}", reason, old.batch)
        if new.ended:
            advice = "" if new.status is COMPLETED else f": retry that one with: asterism runs retry {new.id}"
            raise AsterismError(f"run {run_id} was retried as run {new.id}, which is {new.reported_status}{advice}")
        return new

    async def keep_mine(self, run_id: str) -> Run:
        """Insist on a run that a device of this store lost to a peer: create a new run that names the old one, for that
        device alone, with the progress it had made. The old one stays as it is. A second call returns the same run."""
        old = await self.run(run_id)
        lost = await self.store.register(f"{LOST}{run_id}")
        if lost is None:
            raise AsterismError(
                f"no device of this store has lost run {run_id} to a peer: there is nothing to insist on"
            )
        device, epoch, reached = (lost.value[name] for name in ("device", "epoch", "progress"))
        key = f"kept: {run_id} of {device}, epoch {epoch}"
        return await self._repeat(old, device, None if reached is None else Progress(*reached), key)

    async def _repeat(
        self,
        old: Run,
        device: str | None,
        progress: Progress | None,
        key: str | None = None,
        reason: str = "",
        batch: str | None = None,
    ) -> Run:
        new = new_run(
            self,
            old.work,
            await self.blobs.copy(old.input),
            origin=(old.workflow, old.version),
            key=key,
            series=old.series,
            priority=old.priority,
            device=device,
            retry_of=old.id,
            keep=old.keep,
            label=old.label,
            batch=batch,
            uses=old.uses,
        )
        why = f"by {self.by_whom(reason)}"
        story = new.story_with(new.created_at, "retried", why) if reason else new.story
        return await self.place(new.changed(progress=progress, story=story))

    async def prune(self, older_than: float) -> int:
        """Remove runs that ended more than so many seconds ago. Returns how many."""
        removed = await retention.prune(self.store, self.store.clock() - older_than, sys.maxsize)
        await self.collect_files()
        return removed

    async def collect_files(self) -> None:
        """Remove files of tasks to which nothing refers any more. What is out of reach stays, with a warning."""
        from asterism.execution.artifacts import ArtifactProblem
        from asterism.fleet import kept_files

        try:
            await kept_files.collect(self.store, await self.artifacts())
        except ArtifactProblem:
            return  # the fleet has no place for files, and so no files
        except OSError as error:
            log.warning("old files of tasks are not removed: %s", error)

    # -- devices -----------------------------------------------------------------------------------------------------

    async def devices(self) -> list[Session]:
        """Every device that is there, or was lately: the newest session of each. The process of a plan is listed only
        while it is there, and only if it executes work."""
        newest: dict[str, Session] = {}
        sessions = await self.store.sessions(ended=True)
        for session in sorted(
            sessions, key=lambda session: (session.state == OPEN, session.state == ABROAD, session.joined_at)
        ):
            newest[session.device] = session
        present = (session for session in newest.values() if not (session.is_past_process or session.only_runs_plan))
        return sorted(present, key=lambda session: session.device)

    @retried
    async def drain(self, device: str) -> Session:
        """Ask a device to finish what it does, take nothing more, and leave. Raises UnknownDevice."""
        sessions = await self.store.sessions()
        known = [session for session in sessions if session.device == device]
        session = next((session for session in known if session.state == OPEN), None)
        if session is None:
            if any(session.state == ABROAD for session in known):
                raise UnknownDevice(f"device {device!r} is one of a peer ({known[0].host}): drain it there")
            others = [session.device for session in sessions if session.state == OPEN]
            raise UnknownDevice(f"no device {device!r} is joined{suggestion(device, others)}")
        asked = session.changed(draining=True)
        await self.store.commit([PutSession(asked, session.revision)])
        return asked

    async def coordinator(self) -> str | None:
        """The device that is the coordinator; None while there is none."""
        lease, _ = await read_lease(self.store, COORDINATOR)
        return lease.device if lease is not None and lease.until > self.store.clock() else None

    async def placer(self, *, fresh: bool = False) -> Placer:
        """The devices as placement sees them, at most ``PLACER_AGE`` old."""
        return await self._placer.get(fresh=fresh)

    @property
    def known_placer(self) -> Placer | None:
        """The devices as they were last read; None before the first time."""
        return self._placer.known

    async def _read_placer(self, before: Placer | None) -> Placer:
        sessions = [session for session in await self.store.sessions() if session.state in REACHABLE_STATES]
        settings = await self.settings()
        placer = Placer(
            sessions,
            self.store.clock(),
            holds,
            coordinator=await self.coordinator(),
            weights=settings.weights,
            peer_timeout=settings.peer_timeout,
            last_assigned=None if before is None else before.last_assigned,
        )
        self._placer.awaited = await self._awaited_devices(placer)
        return placer

    async def _awaited_devices(self, placer: Placer) -> set[str]:
        """The devices with a free slot that could take a run that waits. A run that is created now must not overtake
        it."""
        idle = [session for session in placer.sessions.values() if session.idle and session.state == OPEN]
        awaited: set[str] = set()
        for kind in await self.store.waiting() if idle else ():
            awaited |= {s.device for s in idle if placer.refusal_reason(s, kind.sample) is None}
        return awaited

    # -- settings ----------------------------------------------------------------------------------------------------

    async def settings(self) -> Settings:
        """The settings of the fleet, at most ``SETTINGS_AGE`` old."""
        now = self.clock.time()
        known = self._settings
        if known is not None and now - known[0] <= SETTINGS_AGE:
            return known[1]
        if known is not None:
            self._settings = (now, known[1])  # other callers use the old ones while this one reads
        try:
            read = await fleet_settings.read(self.store)
        except BaseException:
            self._settings = known
            raise
        self._settings = (now, read)
        return read

    @property
    def known_settings(self) -> Settings:
        """The settings as they were last read; the defaults before the first time."""
        return Settings() if self._settings is None else self._settings[1]

    async def configure(self, **changes: Any) -> Settings:
        """Change settings of the fleet; see Settings."""
        self._settings = None
        return await fleet_settings.write(self.store, changes)


def new_run(fleet: Fleet, template: Work, value: Any, *, by: str = "", **run_options: Any) -> Run:
    """A new run that is not written yet. ``value`` is its input, ``by`` its creator, by default the name of the fleet
    object; ``run_options`` are those of ``transitions.create``."""
    now, span = fleet.store.clock(), current_traceparent()
    run_id = fleet.run_ids.new(now)
    return transitions.create(run_id, template, value, by=by or fleet.by, now=now, traceparent=span, **run_options)


def filled_uses(flow: Workflow, run_input: Mapping[str, Any]) -> str | None:
    """What a run of a workflow with this input uses of limits. Raises UnknownField and InvalidLimit."""
    return uses_text({TextTemplate(name).fill(run_input): amount for name, amount in flow.uses.items()})


def reported_progress(run: Run, reports: Mapping[str, ProgressReport]) -> Progress | None:
    """The progress of a run: from the last report of its device, or from its record."""
    report = reports.get(run.id)
    reported = report.progress if report is not None and report.epoch == run.epoch else None
    return reported if reported is not None else run.progress


def orchestrator_device(plan: str, host: str) -> str:
    """The name of the process that runs a plan, as a device."""
    return f"{plan}@{host}"


def executes_own_plan(run: Run) -> bool:
    """Whether a run is a task of a plan, and its device is a process that runs this plan."""
    if run.device is None or not run.workflow.startswith(PREFIX):
        return False
    return run.device.startswith(orchestrator_device(run.workflow.removeprefix(PREFIX), ""))


def attempt_number(run: Run, epoch: int) -> int:
    """Which attempt an epoch of a run is, from 1; declined assignments do not count."""
    return 1 + sum(assignment.epoch < epoch and assignment.reason != "declined" for assignment in run.previous)


def check_options(options: RunOptions) -> None:
    """Raise InvalidTerms for an option that no run can have, and TypeError for one that there is not."""
    if unknown := options.keys() - RunOptions.__annotations__.keys():
        raise TypeError(f"a run has no option {', '.join(sorted(unknown))}")
    key, priority, keep = options.get("key"), options.get("priority"), options.get("keep")
    for name in ("key", "series", "device", "label", "batch"):
        text = options.get(name)
        if text is not None and (not isinstance(text, str) or not text or not text.isprintable() or len(text) > 500):
            raise InvalidTerms(f"{name} must be a text of 1 to 500 printable characters, not {safe_repr(text)}")
    for prefix, owners in ((PREFIX, "plans"), (SCHEDULE_PREFIX, "schedules"), (RETRY_KEYS, "retries")):
        if key is not None and key.startswith(prefix):
            raise InvalidTerms(
                f"keys that begin with {prefix!r} are reserved for {owners}: choose another key than {key!r}"
            )
    if priority is not None and (type(priority) is not int or abs(priority) > 1_000_000):
        raise InvalidTerms(
            f"priority must be a whole number between -1,000,000 and 1,000,000, not {safe_repr(priority)}"
        )
    if keep is not None and keep not in KEEP_RULES:
        raise InvalidTerms(f"keep must be one of {', '.join(KEEP_RULES)}, not {safe_repr(keep)}")


# -- moves -------------------------------------------------------------------------------------------------------------


STOP_TIMEOUT = 120.0
"""How long to wait until a device has stopped a run that is to be moved, in seconds. A device that is lost is noticed
earlier. The run stays paused then, and its record says what for."""

STOP_INTERVAL = 0.2
"""How often to look whether a device has stopped a run that is to be moved, in seconds."""


async def move_run(fleet: Fleet, run_id: str, device: str, *, stop: bool, by: str) -> Run:
    """See ``Fleet.move``."""
    run = await fleet.ledger.read(run_id)
    if run.status is not PROCESSING or run.device == device:
        return await _assign_to(fleet, run, device, by)
    if not stop:
        raise RunRefused(run_id, f"{run.device} works on it; with --stop it is stopped there first", run.story)
    await _target(fleet, run, device)  # before anything is stopped
    reason = f"to move it to {device}"
    await fleet.pause(run_id, reason)
    async for last in Looks(fleet.clock, interval=STOP_INTERVAL, timeout=STOP_TIMEOUT):
        run = await fleet.ledger.read(run_id)
        if run.stop_request != "pause":
            break
        if last:
            raise RunRefused(run_id, f"{run.device} was asked to stop it, and has not done so yet", run.story)
    paused_for = f"by {fleet.by}: {reason}"
    try:
        return await _assign_to(fleet, run, device, by, paused_for)
    except AsterismError:  # it was not moved, so it continues where it can; not if somebody else has paused it
        if (await fleet.ledger.read(run_id)).paused == paused_for:
            await fleet.resume(run_id)
        raise


async def _assign_to(fleet: Fleet, run: Run, device: str, by: str, paused_for: str | None = None) -> Run:
    placer, session = await _target(fleet, run, device)

    def step(run: Run) -> Run:
        return transitions.move(
            run,
            session.owner,
            by=by,
            now=fleet.store.clock(),
            scores={device: round(sum(placer.score_parts(session, run.work).values()), 2)},
            within=placer.time_to_answer(session),
            paused_for=paused_for,
        )

    return await fleet.ledger.change(run, step, put=fleet.ledger.put_own)


async def _target(fleet: Fleet, run: Run, device: str) -> tuple[Placer, Session]:
    """The session of a device that can take a run now, and the placer that knows it. Raises UnknownDevice, and
    AsterismError with the reason why it cannot."""
    placer = await fleet.placer(fresh=True)
    session = placer.sessions.get(device)
    if session is None:
        raise UnknownDevice(f"no device {device!r} is joined, or it is silent; list them with: asterism device list")
    refusal = placer.refusal_reason(session, run.changed(avoid=(), declined={}))
    if refusal is None and session.room <= 0 and run.device != device:
        refusal = f"it is full, with {session.used} run{'s' if session.used != 1 else ''}"
    if refusal is not None and not run.ended:
        raise AsterismError(f"run {run.id} cannot be moved to {device}: {refusal}")
    return placer, session
