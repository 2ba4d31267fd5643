"""Every change of a run: read the record, apply a transition, commit, retry on conflict.

Another writer may be faster: then the run is read again and the step is judged anew. The store may be unavailable, and
the answer to a commit lost: then the ledger looks whether its own entry is part of the story of the run, so that
nothing happens twice and nothing that happened is denied. A run that ends makes room in its series in the same commit.

All writers of a series write the one document of that series. The writers of this process take turns, or of a hundred
at once each would lose ninety-nine times.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from weakref import WeakValueDictionary

from asterism.base.clock import Clock
from asterism.core.errors import RunRefused
from asterism.core.run import transitions
from asterism.core.run.merge import own_story
from asterism.core.run.run import Run
from asterism.core.run.workflow import Workflow
from asterism.core.series.machine import Series, UnreadableSeries
from asterism.fleet.workflows import Workflows
from asterism.store.optimistic_update import retry_on_conflict
from asterism.store.protocol import Notice, PutCopy, PutRegister, PutRun, Query, Store, Write, feed_of, has_feed
from asterism.store.store_errors import Conflict

Step = Callable[[Run, Workflow], Run]
"""A change of a run: from the record in the store to the next one. It raises RunRefused, or returns the run itself if
there is nothing to change."""

CHANGE_TIMEOUT = 10.0
"""How long a change is tried while the store is unavailable, in seconds."""

WRITES_REMEMBERED = 20
"""How many of its own writes a change recognises in the story of a run."""


_NO_TURN = nullcontext()


class UnknownRun(RunRefused):
    """No run has this id, or none any more."""

    def __init__(self, run_id: str) -> None:
        super().__init__(run_id, "there is no such run")


class Ledger:
    """``chance`` spreads retries; ``on_end`` is called with every run that ended here."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        workflows: Workflows,
        chance: random.Random,
        on_end: Callable[[Run], None] = lambda run: None,
    ) -> None:
        self.store, self.clock, self.workflows = store, clock, workflows
        self._chance, self._on_end = chance, on_end
        self._series_locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def read(self, run_id: str) -> Run:
        run = await self.store.run(run_id)
        if run is None:
            raise UnknownRun(run_id)
        return run

    # -- changes -----------------------------------------------------------------------------------------------------

    async def change(
        self,
        run: str | Run,
        step: Step,
        *,
        patience: float = CHANGE_TIMEOUT,
        tried: Run | None = None,
        put: Callable[[Run, Run], Awaitable[Write]] | None = None,
    ) -> Run:
        """Apply a step to a run and return the run as it is then.

        :param run: its id, or a record that is believed to be current, which saves a read if it is.
        :param patience: for how many seconds to try while the store is unavailable.
        :param tried: the result of the same step elsewhere, if nothing is known about whether it was written.
        :param put: makes the write from the run after the step and before it; by default a PutRun.

        Raises what ``step`` raises, and StoreUnavailable."""
        run_id, known = (run.id, run) if isinstance(run, Run) else (run, None)
        written = [] if tried is None else [tried]  # any of these may still be under way

        async def attempt() -> Run:
            nonlocal known
            before = known if known is not None else await self.read(run_id)
            known = None
            if written and any(happened(one, before) for one in written):
                return before
            flow = self.workflows.remembered(before.workflow, before.version)
            after = step(before, flow or await self.workflows.get(before.workflow, before.version))
            if after is before:
                return before
            writes: list[Write] = [PutRun(after, before.revision) if put is None else await put(after, before)]
            async with self._series_turn(after.series) if after.series is not None and after.ended else _NO_TURN:
                if after.series is not None or after.error is not None:
                    writes += await self.consequences(after)
                written[:] = [*written[-WRITES_REMEMBERED:], after]
                await self.store.commit(writes)
            return after

        after = await retry_on_conflict(attempt, patience=patience, clock=self.clock, chance=self._chance)
        if after.ended:
            self._on_end(after)
        return after

    async def request(self, run_id: str, step: Step) -> Run:
        """Apply a step that a person asks for. A run that is left to a peer stays with it."""
        return await self.change(run_id, step, put=self._put_in_place)

    async def _put_in_place(self, after: Run, before: Run) -> Write:
        judge = (await feed_of(self.store).left_to([after.id])).get(after.id) if has_feed(self.store) else None
        return PutRun(after, before.revision) if judge is None else PutCopy(after, before.revision, judge, same=False)

    async def add(self, run: Run, assign: Callable[[Run], Run]) -> Run:
        """Write a new run; ``assign`` assigns it in the same write, if its series lets it start. Returns the existing
        run if the key is taken."""
        attempted = False

        async def attempt() -> Run:
            nonlocal attempted
            if attempted and (found := await self.store.run(run.id)) is not None:
                return found
            async with _NO_TURN if run.series is None else self._series_turn(run.series):
                admitted, writes = (run, []) if run.series is None else await self._admit(run, run.series)
                added = assign(admitted) if admitted.offered else admitted
                attempted = True
                try:
                    await self.store.commit([PutRun(added, None), *writes])
                except Conflict as conflict:
                    found = await self._existing(run, conflict)
                    if found is None:
                        raise
                    return found
            return added

        return await retry_on_conflict(attempt, patience=CHANGE_TIMEOUT, clock=self.clock, chance=self._chance)

    async def _existing(self, run: Run, conflict: Conflict) -> Run | None:
        """The run that is in the way of a new one: that with its key, or itself, written by a commit whose answer was
        lost. None if there is none (any more)."""
        if run.key is not None and conflict.concerns("key", run.key):
            found = await self.store.find(Query(key=run.key))
            return found[0] if found else None
        return await self.read(run.id) if conflict.concerns("run", run.id) else None

    # -- series ------------------------------------------------------------------------------------------------------

    def _series_turn(self, series: str) -> asyncio.Lock:
        return self._series_locks.setdefault(series, asyncio.Lock())

    async def _admit(self, run: Run, series: str) -> tuple[Run, list[Write]]:
        """A new run with its place in its series."""
        revision, before = await self._read_series(series)
        claimed = before.claim(run.id, run.created_at)
        admitted = transitions.release_hold(run, run.created_at) if claimed.active == run.id else run
        return admitted, [PutRegister(_series_key(series), claimed.to_json(), revision)]

    async def consequences(self, run: Run) -> list[Write]:
        """The writes that belong to the end of a run."""
        if not run.ended:
            return []
        writes: list[Write] = failure_notice(run, run.ended_at or 0.0)
        return writes if run.series is None else [*writes, *await self.leave_series(run, run.series)]

    async def leave_series(self, run: Run, name: str) -> list[Write]:
        """The writes that take a run out of its series and promote the next one."""
        now = self.store.clock()
        found = await self.store.register(_series_key(name))
        try:
            series = Series(name) if found is None else Series.from_json(found.value)
        except UnreadableSeries as error:  # the end of this run counts all the same, and its series stays taken
            assert found is not None
            message = f"series {name} cannot be read, so nothing more of it begins until it is mended: {error}"
            # another writer that mends it at this moment must see that this run has ended
            same = PutRegister(found.key, found.value, found.revision)
            return [same, Notice(now, "series", message, run.id, run.device)]
        writes: list[Write] = []
        after = series.leave(run.id, now)
        promoted = None
        while after is not series and after.active is not None and after.active != series.active:
            promoted = await self.store.run(str(after.active))
            if promoted is not None and not promoted.ended:
                break
            after, promoted = after.leave(after.active, now), None  # it is gone, and the next one is up
        if after is not series:
            writes.append(PutRegister(_series_key(name), after.to_json(), found and found.revision))
        if promoted is not None and promoted.held:
            writes.append(PutRun(transitions.release_hold(promoted, now), promoted.revision))
        return writes

    async def readmit(self, run: Run, now: float) -> tuple[Run, list[Write]]:
        """A run that a peer judged and that this store judges from now on, with its place in our own series: it is held
        unless it is the active one. Raises UnreadableSeries."""
        if run.series is None or run.ended:
            return run, []
        revision, series = await self._read_series(run.series)
        claimed = series.claim(run.id, now)
        writes: list[Write] = []
        if claimed is not series:
            writes.append(PutRegister(_series_key(run.series), claimed.to_json(), revision))
        if claimed.active == run.id:
            return (transitions.release_hold(run, now) if run.held else run), writes
        return run.changed(held=True), writes

    async def _read_series(self, name: str) -> tuple[int | None, Series]:
        found = await self.store.register(_series_key(name))
        return (None, Series(name)) if found is None else (found.revision, Series.from_json(found.value))

    async def series(self, name: str) -> Series:
        """Raises UnreadableSeries."""
        return (await self._read_series(name))[1]


def failure_notice(run: Run, at: float) -> list[Write]:
    """The notice that a run failed; none if it did not, or if a person cancelled it."""
    if run.error is None or run.cancelled:
        return []
    message = f"run {run.id} ({run.workflow}) failed: {_without_control(run.error)}"
    return [Notice(at, "failed", message, run.id, run.device)]


def happened(written: Run, found: Run) -> bool:
    """Whether a write of ours is part of the history of the stored run. Stories only grow, so ours is the beginning of
    the one we find; or it is beside it, if a peer's record was kept since. The grant is compared too, since two writers
    may write the same words at the same moment."""
    return (
        found.revision >= written.revision
        and (found.story[: len(written.story)] == written.story or set(own_story(written)) <= set(found.story))
        and (found.epoch != written.epoch or found.session in (written.session, None))
    )


def _without_control(text: str) -> str:
    """The words of a program or a peer without control characters, which a terminal would act upon."""
    return "".join(letter if letter.isprintable() or letter in "\n\t" else "?" for letter in text)


def _series_key(name: str) -> str:
    return f"series/{name}"
