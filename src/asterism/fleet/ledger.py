"""The ledger: every change of a run is read, stepped by the core, and committed, until it is true or refused.

Somebody else may be first: then the run is read again and the step judged anew. The store may be out of reach, and the
answer to a commit lost: then the ledger looks whether its own entry stands in the story, so that nothing happens
twice and nothing that happened is denied. A run that ends makes room in its series in the same commit.

Whoever adds to a series or leaves it writes the one document of that series. Those of this process take turns, or of
a hundred at once each would be first once and too late ninety-nine times.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any
from weakref import WeakValueDictionary

from asterism.base.clock import Clock
from asterism.core.errors import RunRefused
from asterism.core.run import transitions
from asterism.core.run.merge import own_story
from asterism.core.run.run import Run
from asterism.core.run.workflow import Workflow
from asterism.core.series.machine import Series, UnreadableSeries
from asterism.fleet.workflows import Workflows
from asterism.store.protocol import Notice, PutCopy, PutRegister, PutRun, Query, Store, Write, feed_of, has_feed
from asterism.store.store_errors import Conflict, StoreUnavailable

Step = Callable[[Run, Workflow], Run]
MOST_ATTEMPTS = 20
PATIENCE = 10.0
"""How long a change is tried while the store is out of reach, in seconds."""


class UnknownRun(RunRefused):
    """No run has this id, or none any more."""

    def __init__(self, run_id: str) -> None:
        super().__init__(run_id, "there is no such run")


class Ledger:
    """``chance`` spreads retries; ``on_end`` hears of every end that was written here."""

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
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def read(self, run_id: str) -> Run:
        run = await self.store.run(run_id)
        if run is None:
            raise UnknownRun(run_id)
        return run

    async def change(
        self,
        run: str | Run,
        step: Step,
        *,
        patience: float = PATIENCE,
        tried: Run | None = None,
    ) -> Run:
        """Step a run. A record that is given is believed to be current, which saves a read if it is. ``tried`` is what
        came of the same step elsewhere, if nobody knows whether it was written. Raises what ``step`` raises, and
        StoreUnavailable when patience has run out."""
        after = await self._changed(run, step, patience, [tried] if tried is not None else [])
        if after.ended:
            self._on_end(after)
        return after

    async def wish(self, run_id: str, step: Step) -> Run:
        """Step a run as a person wishes. It stays with the peer that judges it, if it is left to one."""
        after = await self._changed(run_id, step, PATIENCE, [], self._put_in_place)
        if after.ended:
            self._on_end(after)
        return after

    async def _put_in_place(self, after: Run, before: Run) -> Write:
        judge = (await feed_of(self.store).left_to([after.id])).get(after.id) if has_feed(self.store) else None
        return PutRun(after, before.revision) if judge is None else PutCopy(after, before.revision, judge, same=False)

    async def _changed(
        self,
        run: str | Run,
        step: Step,
        patience: float,
        attempted: list[Run],
        put: Callable[[Run, Run], Awaitable[Write]] | None = None,
    ) -> Run:
        """Any of what was ``attempted`` may still be under way. ``put`` says how it is written, if not as usual."""
        known = run if isinstance(run, Run) else None
        run_id = run.id if isinstance(run, Run) else run
        until = self.clock.time() + patience
        pause = 0.05
        while True:
            try:
                before = known if known is not None else await self.read(run_id)
                known = None
                if attempted and any(happened(one, before) for one in attempted):
                    return before
                flow = self.workflows.remembered(before.workflow, before.version)
                after = step(before, flow or await self.workflows.get(before.workflow, before.version))
                if after is before:
                    return before
                writes: list[Write] = [PutRun(after, before.revision) if put is None else await put(after, before)]
                async with self._turn(after.series if after.ended else None):
                    if after.series is not None or after.error is not None:
                        writes += await self.consequences(after)
                    attempted = [*attempted[-MOST_ATTEMPTS:], after]
                    await self.store.commit(writes)
                return after
            except Conflict:
                continue
            except StoreUnavailable:
                if self.clock.time() >= until:
                    raise
                await self.clock.sleep(pause * self._chance.uniform(0.5, 1.5))
                pause = min(2 * pause, 2.0)

    async def add(self, run: Run, give: Callable[[Run], Run]) -> Run:
        """Put a new run into the store; ``give`` assigns it in the same write, if it may be given. With a key that is
        known already, the run that has it is returned, which is then not this one."""
        attempted = False
        until = self.clock.time() + PATIENCE
        pause = 0.05
        while True:
            try:
                if attempted and (found := await self.store.run(run.id)) is not None:
                    return found
                async with self._turn(run.series):
                    admitted, writes = await self._admitted(run)
                    given = give(admitted) if admitted.offered else admitted
                    attempted = True
                    await self.store.commit([PutRun(given, None), *writes])
                return given
            except Conflict as conflict:
                if run.key is not None and conflict.what == f"key {run.key}":
                    found = await self._with_key(run.key)
                    if found is not None:
                        return found
                elif conflict.what == f"run {run.id}":  # our own, and we were not told
                    return await self.read(run.id)
            except StoreUnavailable:
                if self.clock.time() >= until:
                    raise
                await self.clock.sleep(pause * self._chance.uniform(0.5, 1.5))
                pause = min(2 * pause, 2.0)

    async def _admitted(self, run: Run) -> tuple[Run, list[Write]]:
        """A new run with its place in its series."""
        if run.series is None:
            return run, []
        before, series = await self._series(run.series)
        claimed = series.claim(run.id, run.created_at)
        admitted = transitions.release_hold(run, run.created_at) if claimed.active == run.id else run
        return admitted, [PutRegister(_series_key(run.series), claimed.to_json(), before)]

    def _turn(self, series: str | None) -> AbstractAsyncContextManager[Any]:
        return nullcontext() if series is None else self._turns.setdefault(series, asyncio.Lock())

    async def _with_key(self, key: str) -> Run | None:
        found = await self.store.find(Query(key=key))
        return found[0] if found else None

    async def consequences(self, run: Run) -> list[Write]:
        """What has to be written with the end of a run."""
        if not run.ended:
            return []
        writes: list[Write] = failure_of(run, run.ended_at or 0.0)
        return writes if run.series is None else [*writes, *await self.leaving(run, run.series)]

    async def leaving(self, run: Run, name: str) -> list[Write]:
        """What has to be written when a run leaves its series: the next one is up."""
        now = self.store.clock()
        found = await self.store.register(_series_key(name))
        try:
            series = Series(name) if found is None else Series.from_json(found.value)
        except UnreadableSeries as error:  # the end of this run counts all the same, and its series stays taken
            assert found is not None
            message = f"series {name} cannot be read, so nothing more of it begins until it is mended: {error}"
            # whoever mends it at this moment has to see that this run has ended
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

    async def readmitted(self, run: Run, now: float) -> tuple[Run, list[Write]]:
        """A run that was a peer's to judge and is ours now, with its place in our own series: it is held unless it is
        up. Raises UnreadableSeries."""
        if run.series is None or run.ended:
            return run, []
        before, series = await self._series(run.series)
        claimed = series.claim(run.id, now)
        writes: list[Write] = []
        if claimed is not series:
            writes.append(PutRegister(_series_key(run.series), claimed.to_json(), before))
        if claimed.active == run.id:
            return (transitions.release_hold(run, now) if run.held else run), writes
        return run.changed(held=True), writes

    async def _series(self, name: str) -> tuple[int | None, Series]:
        found = await self.store.register(_series_key(name))
        return (None, Series(name)) if found is None else (found.revision, Series.from_json(found.value))

    async def series(self, name: str) -> Series:
        return (await self._series(name))[1]


def failure_of(run: Run, at: float) -> list[Write]:
    """The notice that it failed, if it did and nobody wished it to end."""
    if run.error is None or run.cancelled:
        return []
    message = f"run {run.id} ({run.workflow}) failed: {_without_control(run.error)}"
    return [Notice(at, "failed", message, run.id, run.device)]


def happened(attempted: Run, found: Run) -> bool:
    """Whether a write of ours is part of the history of what is stored now: stories only grow, so ours is the beginning
    of the one we find; or it is beside it, if a peer's was kept since. The grant is compared too, since two may write
    the same words at the same moment."""
    return (
        found.revision >= attempted.revision
        and (found.story[: len(attempted.story)] == attempted.story or set(own_story(attempted)) <= set(found.story))
        and (found.epoch != attempted.epoch or found.session in (attempted.session, None))
    )


def _without_control(text: str) -> str:
    """What a program or a peer said, without what a terminal would act upon: notices are passed on as they are."""
    return "".join(letter if letter.isprintable() or letter in "\n\t" else "?" for letter in text)


def _series_key(name: str) -> str:
    return f"series/{name}"


def blob_of(value: Any) -> str | None:
    """The name of what is kept apart because it is large; None for a value that is there."""
    if isinstance(value, dict) and len(value) == 2 and "$blob" in value and "size" in value:
        return value["$blob"]  # type: ignore[no-any-return]
    return None
