"""Runs that use limits: what waits and what holds is counted, no device finds them in the queue, and waiters wake."""

from __future__ import annotations

import asyncio

from asterism.core.limits import LimitedRuns, uses_text
from asterism.core.run import transitions
from asterism.core.run.run import Run, RunStatus
from asterism.core.run.session import Session
from asterism.store.optimistic_update import try_commit
from asterism.store.protocol import LIMITED, LIMITS, PutRegister, PutRun, Query, Store, Write
from asterism.testing.store_conformance.sample_records import (
    FLOW,
    StoreTests,
    a_run,
    added,
    after,
    completed,
    grant_of,
    held_by,
    ids,
    offer,
    started,
    taking,
)

ONE, TWO = uses_text({"warehouse": 1}), uses_text({"account/7": 1, "warehouse": 2})


def granted(run: Run, session: Session) -> Run:
    return held_by(transitions.admit(run), session)


class LimitTests(StoreTests):
    """Tests of ``limited`` and ``limited_runs``, and of the places where runs that use limits differ from others."""

    async def test_what_a_run_uses_is_kept(self, store: Store, session: Session) -> None:
        run = a_run(1, uses=TWO)
        await added(store, run)
        assert await store.run(run.id) == run
        await store.commit([after(run, granted(run, session))])
        assert await store.run(run.id) == granted(run, session)

    async def test_no_device_takes_from_the_queue_what_uses_limits(self, store: Store, session: Session) -> None:
        await added(store, a_run(1, uses=ONE), a_run(2))
        assert ids(await store.take(offer(), taking(session))) == ["r0002"]

    async def test_it_counts_as_offered_and_as_waiting(self, store: Store, session: Session) -> None:
        runs = [a_run(1, uses=ONE), a_run(2), a_run(3, uses=TWO)]
        await added(store, *runs)
        assert ids(await store.find(Query(offered=True))) == ids(runs)
        assert ids(await store.find(Query(offered=True, workflow=FLOW.name, limit=2))) == ["r0001", "r0002"]
        assert [waiting.number for waiting in await store.waiting()] == [3]
        await store.commit([after(runs[0], granted(runs[0], session))])
        assert ids(await store.find(Query(offered=True))) == ["r0002", "r0003"]
        assert ids(await store.find(Query(offered=False))) == ["r0001"]

    async def test_what_waits_and_what_is_held_is_counted_by_use_workflow_batch_and_priority(
        self, store: Store, session: Session
    ) -> None:
        paused = transitions.pause(a_run(20, uses=ONE), 21.0, "ann")
        held = a_run(21, uses=ONE).changed(held=True)
        done = completed(started(granted(a_run(22, uses=ONE), session)))
        lost = transitions.lose(granted(a_run(6, uses=TWO), session), FLOW, 60.0, "no heartbeat arrived")
        await added(store, *(a_run(number, uses=ONE) for number in (1, 2, 3)), paused, held, done, lost)
        await added(store, a_run(4, uses=ONE, batch="films"), a_run(5, uses=ONE, priority=7), a_run(30))
        await added(store, *(granted(a_run(number, uses=ONE), session) for number in (10, 11)))
        assert ONE is not None
        assert TWO is not None
        assert sorted(await store.limited(), key=lambda group: group.first) == [
            LimitedRuns(ONE, FLOW.name, None, 0, True, 3, "r0001"),
            LimitedRuns(ONE, FLOW.name, "films", 0, True, 1, "r0004"),
            LimitedRuns(ONE, FLOW.name, None, 7, True, 1, "r0005"),
            LimitedRuns(TWO, FLOW.name, None, 0, True, 1, "r0006"),
            LimitedRuns(ONE, FLOW.name, None, 0, False, 2, "r0010"),
        ]

    async def test_the_runs_of_a_group_are_read_in_parts(self, store: Store, session: Session) -> None:
        waiting = [a_run(number, uses=ONE) for number in range(5)]
        await added(store, *waiting, granted(a_run(7, uses=ONE), session), a_run(8, uses=ONE, batch="films"), a_run(9))
        groups = await store.limited()
        [group] = [group for group in groups if group.waiting and group.batch is None]
        assert await store.limited_runs(group, 3) == waiting[:3]
        assert ids(await store.limited_runs(group, 3, after="r0002")) == ["r0003", "r0004"]
        assert ids(await store.limited_runs(group._replace(waiting=False), 9)) == ["r0007"]
        assert ids(await store.limited_runs(group._replace(batch="films"), 9)) == ["r0008"]
        assert await store.limited_runs(group._replace(priority=1), 9) == []
        assert await store.limited_runs(group._replace(uses="\0"), 9) == []

    async def test_a_store_without_such_runs_has_no_groups(self, store: Store) -> None:
        await added(store, a_run(1))
        assert await store.limited() == []

    async def test_many_new_runs_keep_what_they_use(self, store: Store) -> None:
        runs = [a_run(number, at=1.0, uses=ONE if number % 2 else None) for number in range(130)]
        await added(store, *runs)
        assert await store.find(Query()) == runs
        assert [group.number for group in await store.limited()] == [65]

    async def test_what_makes_room_wakes(self, store: Store, session: Session) -> None:
        run = a_run(1, uses=ONE)
        holding = granted(run, session)
        watch = store.watch(frozenset({LIMITED}))
        await store.commit([PutRun(run, None)])
        assert await watch.wait(60.0)
        await store.commit([after(run, holding)])
        steps: list[Write] = [
            after(holding, transitions.release(holding, grant_of(holding), "released", "", 70.0)),
            PutRegister(f"{LIMITS}warehouse", {"size": 1}, None),
        ]
        for write in steps:
            await watch.wait(0.0)  # an engine may wake too often
            await store.commit([write])
            assert await watch.wait(60.0)
            assert not watch.woken
        watch.close()

    async def test_a_dump_has_what_runs_use(self, store: Store, fresh: Store) -> None:
        run = a_run(1, uses=TWO)
        await added(store, run, a_run(2))
        await fresh.load(line async for line in store.dump())
        assert await fresh.run(run.id) == run
        assert [group.uses for group in await fresh.limited()] == [TWO]

    async def test_a_grant_is_void_if_another_one_came_before(self, store: Store, session: Session) -> None:
        """Of two that read the same account of a limit, one commits; what the other wanted does not happen."""
        runs = [a_run(number, uses=ONE) for number in range(8)]
        await added(store, *runs)
        account = "limit-account/warehouse"

        async def grant(run: Run) -> bool:
            writes: list[Write] = [after(run, granted(run, session)), PutRegister(account, {"by": run.id}, None)]
            return await try_commit(store, writes)

        assert sum(await asyncio.gather(*map(grant, runs))) == 1
        assert len(await store.find(Query(statuses=frozenset({RunStatus.CLAIMED})))) == 1
