"""A fleet: the devices, workflows and runs of one store, as a person or a program uses them."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from asterism.base.clock import BootClock, Clock
from asterism.base.expressions import holds
from asterism.base.ids import new_id
from asterism.core.errors import AsterismError, NotJson, safe_repr
from asterism.core.json_values import plain_json
from asterism.core.run import transitions
from asterism.core.run.placement import DEFAULT_WEIGHTS, Placer, Weights
from asterism.core.run.run import COMPLETED, KEEP_RULES, Owner, Progress, Run
from asterism.core.run.session import ABROAD, OPEN, REACHABLE_STATES, Session
from asterism.core.run.workflow import Workflow
from asterism.fleet import retention
from asterism.fleet import settings as fleet_settings
from asterism.fleet.ledger import Ledger, UnknownRun
from asterism.fleet.retention import LOST, PREFIX
from asterism.fleet.run_blobs import Blobs
from asterism.fleet.settings import Settings
from asterism.fleet.waiters import Ends
from asterism.fleet.workflows import Workflows
from asterism.store.protocol import PutRun, PutSession, Query, Store
from asterism.store.store_errors import Conflict
from asterism.store.url import open_store

if TYPE_CHECKING:
    from asterism.fleet.device.agent import DeviceAgent

FRESH = 1.0
"""How long a look at the devices is good for, in seconds. What is given out meanwhile is counted."""

SETTINGS_FRESH = 5.0
"""How long settings that were read are good for, in seconds."""


SPARE = 3600.0
"""How long something large is kept that no run refers to, in seconds: its run may be on its way."""


NEAR = "preferred, since it is on the machine where the run was created"
"""Why a device was chosen, for the story."""


class UnknownDevice(AsterismError):
    """No device of this name has joined."""


Add = Callable[[Run, Callable[[Run], Run]], Awaitable[Run]]
"""Writes a new run, after the function has given it to a device; see Ledger.add."""


Consumer = Callable[[PutRun], Awaitable[bool]]
"""Writes the end of a run together with what follows from it. False if nothing of that was written."""


class Fleet:
    """``by`` is who acts, for the stories. ``local`` is set by a device agent of this process while it works: runs that
    are created here go to it if it is able, willing and free. ``consumers`` are those who wait in this process for a
    run that is done in it, by its id."""

    def __init__(
        self, store: Store, *, by: str = "user", clock: Clock | None = None, chance: random.Random | None = None
    ) -> None:
        self.store, self.by = store, by
        self.clock: Clock = clock or BootClock()
        self.chance = chance or random.Random()
        self.workflows = Workflows(store)
        self.ends = Ends(store, self.clock)
        self.ledger = Ledger(store, self.clock, self.workflows, self.chance, self.ends.told)
        self.blobs = Blobs(store)
        self.local: DeviceAgent | None = None
        self.consumers: dict[str, Consumer] = {}
        self._outlook: tuple[float, Placer] | None = None
        self._settings: tuple[float, Settings] | None = None

    @classmethod
    async def open(cls, url: str | None = None, *, by: str = "user", create: bool = True) -> Fleet:
        """The fleet of a store: ``sqlite:///file``, ``postgresql://…`` or ``memory:``; None for $ASTERISM_STORE, or a
        file in the user's data directory. With ``create`` a store that is not there is made."""
        return cls(await open_store(url, create=create), by=by)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self.ends.close()
        await self.store.close()

    # -- runs --------------------------------------------------------------------------------------------------------

    async def create(
        self,
        workflow: str | Workflow,
        given: Mapping[str, Any] | None = None,
        *,
        key: str | None = None,
        series: str | None = None,
        priority: int | None = None,
        device: str | None = None,
        keep: str = "epoch",
        near: Collection[str] = (),
    ) -> Run:
        """Create a run and assign it, in one write. It is durable when this returns. With a ``key`` that was used
        before, the run of that time is returned. ``series`` lets at most one of its runs be active, in the order in
        which they were created. ``device`` fixes one. ``keep`` says which record is kept if peers that were cut off
        from each other both gave it away: ``epoch``, ``original`` or ``furthest`` (core/run/merge.py). ``near`` names
        devices that are preferred because they are where the run is created (presence.py), if they are able, willing
        and free."""
        flow = await self._workflow(workflow)
        for name, text in (("key", key), ("series", series), ("device", device)):
            _check_name(name, text)
        if key is not None and key.startswith(PREFIX):
            raise AsterismError(
                f"keys that begin with {PREFIX!r} are those of constellations: choose another than {key!r}"
            )
        if priority is not None and (type(priority) is not int or abs(priority) > 1_000_000):
            raise AsterismError(
                f"priority is a whole number between -1,000,000 and 1,000,000, not {safe_repr(priority)}"
            )
        if keep not in KEEP_RULES:
            raise AsterismError(f"keep is one of {', '.join(KEEP_RULES)}, not {safe_repr(keep)}")
        if given is not None and not isinstance(given, Mapping):
            raise NotJson(f"the input of {flow.name!r} is an object with names and values, not {safe_repr(given)}")
        what = f"the input of {flow.name!r}"
        kept = await self.blobs.keep(plain_json(dict(given or {}), what), await self.settings(), what)
        now = self.store.clock()
        run = transitions.create(
            new_id(now, self.chance),
            flow,
            kept,
            by=self.by,
            now=now,
            key=key,
            series=series,
            priority=priority,
            device=device,
            keep=keep,
        )
        return await self.place(run, flow, near=near)

    async def place(self, run: Run, flow: Workflow, add: Add | None = None, *, near: Collection[str] = ()) -> Run:
        """Put a new run into the store, given to a device in the same write if there is one for it, one that is
        ``near`` first. ``add`` does the writing; the ledger unless it is told otherwise."""
        add = add or self.ledger.add
        local = self.local
        if local is not None and local.reserve(run, flow):
            asked = self.clock.time()
            try:
                added = await add(run, lambda offered: local.accept(offered, flow))
                if added.id == run.id:
                    local.begin(added, flow, asked)
                return added
            finally:
                local.unreserve(run)
        outlook, settings = await self.outlook(), await self.settings()

        def give(offered: Run) -> Run:
            choice = outlook.choose(offered, flow, near=near)
            if choice.owner is None:
                return offered
            outlook.record_assignment(choice.owner.device)
            return transitions.assign(
                offered,
                choice.owner,
                flow,
                by=self.by,
                now=self.store.clock(),
                scores=choice.scores,
                within=time_to_answer(outlook, choice.owner, settings),
                why=NEAR if choice.owner.device in near else "",
            )

        return await add(run, give)

    async def _workflow(self, workflow: str | Workflow) -> Workflow:
        if isinstance(workflow, str):
            return await self.workflows.latest(workflow)
        known = self.workflows.remembered(workflow.name, workflow.version)
        return known if known is workflow else await self.workflows.add(workflow)

    async def run(self, run_id: str) -> Run:
        """The record of a run. Raises UnknownRun."""
        return await self.ledger.read(run_id)

    async def runs(self, query: Query | None = None) -> list[Run]:
        return await self.store.find(query or Query())

    async def wait(self, run_id: str) -> Run:
        """The run once it has ended; bound the wait with ``asyncio.timeout``."""
        here = self.local is not None and self.local.desk.get(run_id) is not None
        run = await self.ends.wait(run_id, here=here)
        if run is None:
            raise UnknownRun(run_id)
        return run

    async def output(self, run: Run) -> Any:
        """What a completed run returned, fetched if it is kept apart."""
        return await self.blobs.fetch(run.output)

    async def cancel(self, run_id: str) -> Run:
        """End a run: at once if nobody works on it, else as soon as its device has stopped."""
        return await self.ledger.wish(run_id, lambda run, _: transitions.cancel(run, self.store.clock(), self.by))

    async def pause(self, run_id: str, reason: str = "") -> Run:
        """Keep a run from going on until it is resumed; its progress is kept."""
        return await self.ledger.wish(
            run_id, lambda run, _: transitions.pause(run, self.store.clock(), self.by, reason)
        )

    async def resume(self, run_id: str) -> Run:
        return await self.ledger.wish(run_id, lambda run, _: transitions.resume(run, self.store.clock(), self.by))

    async def retry(self, run_id: str) -> Run:
        """A new run of the same work that names the old one, which stays as it is."""
        old = await self.run(run_id)
        if not old.ended:
            raise AsterismError(f"run {run_id} is {old.status}: only a run that has ended can be retried")
        # what was completed is done again from the beginning
        return await self._again(old, old.pinned, None if old.status is COMPLETED else old.progress)

    async def keep_mine(self, run_id: str) -> Run:
        """Insist on what a device of this store lost to a peer: a new run that names the old one, for that device
        alone, which goes on from where it had come. The old one stays as it is. Who insists again gets the same run."""
        old = await self.run(run_id)
        lost = await self.store.register(f"{LOST}{run_id}")
        if lost is None:
            raise AsterismError(
                f"no device of this store has lost run {run_id} to a peer: there is nothing to insist on"
            )
        device, epoch, reached = (lost.value[name] for name in ("device", "epoch", "progress"))
        key = f"kept: {run_id} of {device}, epoch {epoch}"
        return await self._again(old, device, None if reached is None else Progress(*reached), key)

    async def _again(self, old: Run, device: str | None, progress: Progress | None, key: str | None = None) -> Run:
        flow = await self.workflows.get(old.workflow, old.version)
        now = self.store.clock()
        new = transitions.create(
            new_id(now, self.chance),
            flow,
            await self.blobs.again(old.input),
            by=self.by,
            now=now,
            key=key,
            series=old.series,
            priority=old.priority,
            device=device,
            retry_of=old.id,
            keep=old.keep,
        )
        return await self.place(new.changed(progress=progress), flow)

    async def prune(self, older_than: float) -> int:
        """Forget runs that ended more than so many seconds ago."""
        before = self.store.clock() - older_than
        total = 0
        while count := await retention.prune(self.store, before, 500, spare=SPARE):
            total += count
        return total

    # -- devices -----------------------------------------------------------------------------------------------------

    async def devices(self) -> list[Session]:
        """Every device that is there, or was lately: the newest session of each."""
        newest: dict[str, Session] = {}
        found = await self.store.sessions(ended=True)
        for session in sorted(found, key=lambda one: (one.state == OPEN, one.state == ABROAD, one.joined_at)):
            newest[session.device] = session
        return sorted(newest.values(), key=lambda one: one.device)

    async def drain(self, device: str) -> Session:
        """Ask a device to finish what it does, take nothing more, and leave."""
        while True:
            known = [one for one in await self.store.sessions() if one.device == device]
            found = [one for one in known if one.state == OPEN]
            if not found and any(one.state == ABROAD for one in known):
                raise UnknownDevice(f"device {device!r} is one of a peer ({known[0].host}): drain it there")
            if not found:
                raise UnknownDevice(f"no device {device!r} is joined")
            asked = found[0].changed(draining=True)
            try:
                await self.store.commit([PutSession(asked, found[0].revision)])
            except Conflict:  # a heartbeat came in between
                continue
            return asked

    async def coordinator(self) -> str | None:
        """The device that was elected to watch over the others; None while there is none."""
        found = await self.store.register("coordinator")
        return found.value["device"] if found is not None and found.value["until"] > self.store.clock() else None

    async def outlook(self, *, fresh: bool = False) -> Placer:
        """The devices as selection sees them, at most a second old."""
        now = self.clock.time()
        if fresh or self._outlook is None or now - self._outlook[0] > FRESH:
            given = self._outlook[1].given if self._outlook is not None else None
            sessions = [one for one in await self.store.sessions() if one.state in REACHABLE_STATES]
            weights = (await self.settings()).weights
            outlook = self.look_at(sessions, coordinator=await self.coordinator(), weights=weights, given=given)
            self._outlook = (now, outlook)
        return self._outlook[1]

    def look_at(
        self,
        sessions: Sequence[Session],
        *,
        coordinator: str | None = None,
        weights: Weights = DEFAULT_WEIGHTS,
        given: Mapping[str, int] | None = None,
    ) -> Placer:
        return Placer(sessions, self.store.clock(), holds, coordinator=coordinator, weights=weights, given=given)

    # -- settings ----------------------------------------------------------------------------------------------------

    async def settings(self) -> Settings:
        """What holds for the whole fleet, at most a few seconds old."""
        now = self.clock.time()
        known = self._settings
        if known is not None and now - known[0] <= SETTINGS_FRESH:
            return known[1]
        if known is not None:
            self._settings = (now, known[1])  # good enough for everybody else while one of us reads them again
        try:
            read = await fleet_settings.read(self.store)
        except BaseException:
            self._settings = known
            raise
        self._settings = (now, read)
        return read

    async def configure(self, **changes: Any) -> Settings:
        """Change what holds for the whole fleet; see Settings."""
        self._settings = None
        return await fleet_settings.write(self.store, changes)


def time_to_answer(outlook: Placer, owner: Owner, settings: Settings) -> float | None:
    """How long a device of a peer has to answer: its answer comes when the stores meet. None for all others."""
    return settings.peer_timeout if outlook.sessions[owner.device].state == ABROAD else None


def _check_name(what: str, text: str | None) -> None:
    if text is not None and (not isinstance(text, str) or not text or not text.isprintable() or len(text) > 500):
        raise AsterismError(f"{what} is a text of 1 to 500 printable characters, not {safe_repr(text)}")
