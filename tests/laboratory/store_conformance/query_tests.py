"""Tests of queries and takes: which runs a store finds and counts, and which run a device gets, none twice.

Runs that use limits: what waits and what holds is counted, no device finds them in the queue, and waiters wake.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from asterism.core.limits import LimitedRuns, uses_text
from asterism.core.record import replace
from asterism.core.run import transitions
from asterism.core.run.run import (
    CLAIMED,
    COMPLETED,
    CREATED,
    FAILED,
    OWNED,
    PROCESSING,
    REASSIGNING,
    TERMINAL,
    Grant,
    Run,
    RunStatus,
)
from asterism.core.run.session import ENDED, REPLACED, Session
from asterism.store.optimistic_update import try_commit
from asterism.store.protocol import (
    LIMITED,
    LIMITS,
    BatchPart,
    PlanQuery,
    PutLog,
    PutPlan,
    PutPriority,
    PutRegister,
    PutRun,
    PutSession,
    Query,
    Store,
    StoredChunk,
    WaitingRuns,
    Write,
)
from asterism.store.store_errors import Conflict
from tests.laboratory.store_conformance.sample_records import (
    FAR,
    FLOW,
    KIND,
    LATER,
    TIMEOUT,
    StoreTests,
    a_run,
    a_session,
    added,
    after,
    assigned_to,
    completed,
    contents,
    grant_of,
    held_by,
    ids,
    joined,
    offer,
    raising,
    released,
    session_in,
    started,
    taking,
    wins,
)

# -- queries -----------------------------------------------------------------------------------------------------------


_KITCHEN, _GARAGE = a_session(), a_session("garage-1", "garage")
_SECOND = a_session("kitchen-2")


def _sample_runs() -> list[Run]:
    """Return runs of every status and for every condition, sorted by id."""
    other = replace(FLOW, version=2, retries=9)
    index = replace(FLOW, name="index")
    return [
        a_run(1, label="Straße 7.mp4"),
        a_run(2, other, key="once"),
        a_run(3, index, input={"file": "Éa.mp4"}).changed(not_before=100.0),
        assigned_to(a_run(4), _KITCHEN, now=40.0),
        held_by(a_run(5, key="twice"), _KITCHEN, now=50.0),
        started(held_by(a_run(6, index), _GARAGE)),
        transitions.cancel(started(held_by(a_run(7), _SECOND)), 70.0, "ann"),
        a_run(8, series="x", batch="films"),
        held_by(a_run(9, series="y").changed(admitted=True), _GARAGE, now=51.0),
        transitions.pause(a_run(10), 20.0, "ann"),
        completed(held_by(a_run(11, batch="films"), _KITCHEN), now=80.0),
        completed(held_by(a_run(12, index, series="x").changed(admitted=True), _GARAGE), now=90.0),
        transitions.cancel(a_run(13, batch="films"), 85.0, "ann"),
        transitions.lose(held_by(a_run(14, batch="films", key="retry/r0013"), _KITCHEN), 95.0, "no heartbeat arrived"),
        released(held_by(a_run(15, index), _KITCHEN), now=96.0),
        transitions.decline(assigned_to(a_run(16), _GARAGE), Grant("r0016", _GARAGE.id, 1), "no room", 97.0),
    ]


async def _filled(store: Store) -> list[Run]:
    runs = _sample_runs()
    await joined(store, _KITCHEN, _SECOND, _GARAGE)
    await added(store, *reversed(runs))
    return runs


Criterion = tuple[dict[str, Any], Callable[[Run], bool]]

_CRITERIA: list[Criterion] = [
    ({"statuses": frozenset({CREATED})}, lambda run: run.status is CREATED),
    ({"statuses": OWNED}, lambda run: run.status in OWNED),
    ({"statuses": TERMINAL}, lambda run: run.status in (COMPLETED, FAILED)),
    ({"statuses": frozenset({PROCESSING, REASSIGNING})}, lambda run: run.status in (PROCESSING, REASSIGNING)),
    ({"workflow": "index"}, lambda run: run.workflow == "index"),
    ({"workflow": "transcode"}, lambda run: run.workflow == "transcode"),
    ({"device": "kitchen"}, lambda run: run.device == "kitchen"),
    ({"device": "garage"}, lambda run: run.device == "garage"),
    ({"session": "kitchen-1"}, lambda run: run.session == "kitchen-1"),
    ({"session": "garage-1"}, lambda run: run.session == "garage-1"),
    ({"series": "x"}, lambda run: run.series == "x"),
    ({"batch": "films"}, lambda run: run.batch == "films" and run.id != "r0013"),
    ({"key": "once"}, lambda run: run.key == "once"),
    ({"keys": frozenset({"once", "twice", "never"})}, lambda run: run.key in ("once", "twice")),
    ({"search": "straße 7.MP4"}, lambda run: run.label is not None),
    ({"search": "TWICE"}, lambda run: run.key == "twice"),
    ({"search": "ÉA.mp4"}, lambda run: run.id == "r0003"),
    ({"offered": True}, lambda run: run.offered),
    ({"offered": False}, lambda run: not run.offered),
    ({"avoiding": True}, lambda run: run.avoid != ()),
    ({"avoiding": False}, lambda run: run.avoid == ()),
    ({"due_before": 100.0}, lambda run: run.due_at is not None and run.due_at < 100.0),
    ({"due_before": 111.0}, lambda run: run.due_at is not None and run.due_at < 111.0),
    ({"ended_before": 85.0}, lambda run: run.ended_at is not None and run.ended_at < 85.0),
    ({"ended_before": 1e9}, lambda run: run.ended_at is not None),
    ({"waiting_before": 3.0}, lambda run: run.waiting_since is not None and run.waiting_since < 3.0),
    ({"waiting_before": 96.5}, lambda run: run.waiting_since is not None and run.waiting_since < 96.5),
    ({"id_like": "1"}, lambda run: "1" in run.id),
    ({"id_like": "r001"}, lambda run: "r001" in run.id),
    ({"after": "r0007"}, lambda run: run.id > "r0007"),
]


class FindTests(StoreTests):
    """Tests of ``run`` and ``find``."""

    async def test_plans_are_listed_by_their_heads(self, store: Store) -> None:
        heads: dict[str, dict[str, Any]] = {
            "old": {"created_at": 1.0, "state": "failed", "file": "a.yaml", "tags": ["x", "y"]},
            "Mid_1": {"created_at": 2.0, "state": "executing", "owner": "s1"},
            "mid%2": {"created_at": 2.0, "state": "executing", "owner": "gone", "cancelling": True},
            "new": {"created_at": 3.0, "state": "executing", "owner": None},
        }
        await store.commit([PutRegister(f"plan/{name}", head, None) for name, head in heads.items()])
        budget: dict[str, Any] = {"account": {}}
        await store.commit([PutPlan("old", "failed", {"tasks": 3}), PutRegister("budget/new", budget, None)])

        async def names(**conditions: Any) -> list[str]:
            return [row.name for row in await store.plans(PlanQuery(**conditions))]

        assert await names() == ["new", "mid%2", "Mid_1", "old"]
        assert await names(limit=2) == ["new", "mid%2"]
        assert await names(after=(2.0, "mid%2")) == ["Mid_1", "old"]
        assert (await names(since=2.0, until=3.0), await names(until=2.0)) == (["mid%2", "Mid_1"], ["old"])
        assert (await names(name="*MID?1"), await names(name="*_*"), await names(name="*%*")) == (
            ["Mid_1"],
            ["Mid_1"],
            ["mid%2"],
        )
        assert (await names(file="a.yaml"), await names(tag="y"), await names(tag="z")) == (["old"], ["old"], [])
        assert await names(between=("a", "new")) == ["mid%2", "new"]
        assert (await names(between=("A", "new"), limit=2), await names(between=("o", "z"), until=1.0)) == (
            ["Mid_1", "mid%2"],
            [],
        )
        live = {"live": frozenset({"s1"})}
        for state, expected in {"executing": ["Mid_1"], "at_rest": ["new"], "cancelling": ["mid%2"]}.items():
            assert await names(states=frozenset({state}), **live) == expected
        [new, *_, old] = await store.plans(PlanQuery())
        assert (old.summary, old.budget, new.summary, new.budget) == ({"tasks": 3}, None, None, budget)
        await store.commit([PutRegister("plan/old", heads["old"], 1), PutRegister("plan/new", None, 1)])
        assert [(row.name, row.summary) for row in await store.plans(PlanQuery())][-1] == ("old", None)
        assert "new" not in await names()
        with raising(Conflict):
            await store.commit([PutPlan("new", "failed", {})])

    async def test_everything_is_found_oldest_first(self, store: Store) -> None:
        assert await store.find(Query()) == []
        runs = await _filled(store)
        assert await store.find(Query()) == runs
        assert await store.find(Query(newest=True)) == runs[::-1]
        for run in runs:
            assert await store.run(run.id) == run

    async def test_each_condition_finds_the_runs_that_satisfy_it(self, store: Store) -> None:
        runs = await _filled(store)
        for criteria, satisfies in _CRITERIA:
            expected = [run for run in runs if satisfies(run)]
            assert 0 < len(expected) < len(runs), f"{criteria} tells nothing apart"
            assert await store.find(Query(**criteria)) == expected, criteria

    async def test_two_conditions_find_the_runs_that_satisfy_both(self, store: Store) -> None:
        runs = await _filled(store)
        for (first, satisfies_first), (second, satisfies_second) in itertools.combinations(_CRITERIA, 2):
            if first.keys() != second.keys():
                expected = [run.id for run in runs if satisfies_first(run) and satisfies_second(run)]
                assert ids(await store.find(Query(**first, **second))) == expected, (first, second)

    async def test_limits_are_exact(self, store: Store) -> None:
        await joined(store, _KITCHEN)
        run = held_by(a_run(1), _KITCHEN, now=40.0)
        ended = completed(held_by(a_run(2), _KITCHEN), now=80.0)
        await added(store, a_run(0, at=0.0), run, ended)
        assert run.due_at == 100.0
        assert ids(await store.find(Query(due_before=100.0))) == []
        assert ids(await store.find(Query(due_before=100.00001))) == ["r0001"]
        assert ids(await store.find(Query(ended_before=80.0))) == []
        assert ids(await store.find(Query(ended_before=80.00001))) == ["r0002"]
        # a run that waits since time 0 is waiting too
        assert ids(await store.find(Query(waiting_before=0.0))) == []
        assert ids(await store.find(Query(waiting_before=0.00001))) == ["r0000"]

    async def test_conditions_that_no_run_satisfies_find_none(self, store: Store) -> None:
        await _filled(store)
        nothing: list[dict[str, Any]] = [
            {"statuses": frozenset()},
            {"workflow": "Index"},
            {"workflow": ""},
            {"device": "unknown"},
            {"session": "kitchen"},
            {"series": "X"},
            {"batch": "Films"},
            {"key": "onc"},
            {"keys": frozenset()},
            *({"search": text} for text in ("STRASSE", "s%7", "éa.mp4")),
            {"due_before": -1.0},
            {"id_like": "R0001"},
            {"id_like": "r%"},
            {"id_like": "r____"},
            {"id_like": "r*"},
            {"after": "s"},
            {"after": "a", "newest": True},
            {"limit": 0},
        ]
        for criteria in nothing:
            assert await store.find(Query(**criteria)) == [], criteria

    async def test_a_part_of_an_id_is_not_a_pattern(self, store: Store) -> None:
        names = ["a%b", "a_b", "a\\b", "axb", "a*b", "a'b"]
        await added(store, *(a_run(name) for name in names))
        for name in names:
            assert ids(await store.find(Query(id_like=name[1:]))) == [name]
        assert sorted(ids(await store.find(Query(id_like="a")))) == sorted(names)

    async def test_page_by_page_everything_is_found_once(self, store: Store) -> None:
        runs = await _filled(store)
        asked: list[dict[str, Any]] = [{}, {"offered": False}, {"workflow": "transcode"}, {"session": "garage-1"}]
        for criteria, newest, limit in itertools.product(asked, (False, True), (1, 3, 100)):
            expected = ids(await store.find(Query(**criteria, newest=newest)))
            assert expected == sorted(expected, reverse=newest)
            seen: list[str] = []
            last: str | None = None
            while True:
                page = ids(await store.find(Query(**criteria, newest=newest, limit=limit, after=last)))
                assert len(page) <= limit
                seen += page
                if len(page) < limit:
                    break
                last = page[-1]
            assert seen == expected, (criteria, newest, limit)
        assert ids(await store.find(Query(limit=2))) == ids(runs[:2])
        assert ids(await store.find(Query(limit=2, newest=True))) == ids(runs[:-3:-1])

    async def test_a_search_in_bounded_parts_finds_everything_once(self, store: Store) -> None:
        runs = await _filled(store)
        asked: list[dict[str, Any]] = [
            criteria for criteria, _ in _CRITERIA if not criteria.keys() & {"after", "limit"}
        ]
        asked += [{}, {"workflow": "transcode", "device": "kitchen"}, {"search": "nothing has this"}]
        for criteria, newest, number in itertools.product(asked, (False, True), (1, 3, 100)):
            expected, seen = await store.find(Query(**criteria, newest=newest)), []
            query, parts = Query(**criteria, newest=newest), 0
            while (end := await store.scan_end(query, number)) is not None:
                parts += 1
                part = await store.find(replace(query, until=end))
                assert len(part) <= number
                seen += part
                query = replace(query, after=end)
            assert seen + await store.find(query) == expected, (criteria, newest, number)
            assert parts * number < len(runs)

    async def test_a_search_that_looks_at_all_runs_ends_after_as_many_as_it_may(self, store: Store) -> None:
        await added(store, *(a_run(number) for number in range(7)))
        query = Query(search="nothing has this")
        assert await store.scan_end(query, 3) == "r0002"
        assert await store.scan_end(replace(query, newest=True), 3) == "r0004"
        assert await store.scan_end(replace(query, after="r0002"), 3) == "r0005"
        assert await store.scan_end(replace(query, after="r0003"), 3) is None
        assert await store.scan_end(replace(query, workflow="\0"), 7) is None

    async def test_a_page_continues_after_a_run_that_was_deleted(self, store: Store) -> None:
        runs = await _filled(store)
        assert ids(await store.find(Query(after="r0007x", limit=1))) == ["r0008"]
        assert ids(await store.find(Query(after="r0007x", limit=1, newest=True))) == ["r0007"]
        assert ids(await store.find(Query(after=""))) == ids(runs)


# -- takes -------------------------------------------------------------------------------------------------------------


class TakeTests(StoreTests):
    """Tests of ``take``."""

    async def test_taken_runs_are_stored_and_returned(self, store: Store, session: Session) -> None:
        run = a_run(1, input={"file": "a.mp4"})
        await added(store, run)
        [taken] = await store.take(offer(), taking(session))
        assert taken == held_by(run, session, now=LATER)
        assert await store.run(run.id) == taken
        assert taken.status is CLAIMED
        assert await store.take(offer(), taking(session)) == []

    async def test_an_empty_store_has_nothing_to_take(self, store: Store) -> None:
        assert await store.take(offer(), taking(a_session())) == []

    async def test_the_most_urgent_comes_first_and_the_oldest_of_those(self, store: Store, session: Session) -> None:
        runs = [a_run(number, priority=number % 3 - 1) for number in range(9)]
        await added(store, *runs)
        expected = ids(sorted(runs, key=lambda run: (-run.priority, run.created_at)))
        assert ids(await store.take(offer(limit=2), taking(session))) == expected[:2]
        assert ids(await store.take(offer(limit=4), taking(session))) == expected[2:6]
        assert ids(await store.take(offer(limit=0), taking(session))) == []
        assert ids(await store.take(offer(limit=100), taking(session))) == expected[6:]

    async def test_a_changed_priority_changes_the_place_in_the_queue(self, store: Store, session: Session) -> None:
        runs = [a_run(number, priority=number) for number in range(4)]
        await added(store, *runs)
        late = runs[1].changed(priority=7, revision=3)
        with raising(Conflict):
            await store.commit([PutRun(late, 2), PutPriority(late.id, 7)])
        changed = runs[0].changed(priority=9, revision=2)
        chunk = StoredChunk(1, 0, 1, {"lines": []})
        await store.commit([PutRun(changed, 1), PutPriority(changed.id, 9), PutLog(changed.id, 1, [chunk])])
        assert await store.run(changed.id) == changed
        assert ids(await store.take(offer(limit=9), taking(session))) == ids([changed, runs[3], runs[2], runs[1]])
        assert await store.check() == []

    async def test_a_returned_run_keeps_its_place_in_the_queue(self, store: Store, session: Session) -> None:
        await added(store, *(a_run(number) for number in range(4)))
        first, second = await store.take(offer(limit=2), taking(session))
        await store.commit([after(first, released(first))])
        assert ids(await store.take(offer(limit=2), taking(session))) == [first.id, "r0002"]
        await store.commit([after(second, released(second))])
        assert ids(await store.take(offer(limit=9), taking(session))) == [second.id, "r0003"]

    async def test_kinds_that_a_device_cannot_do_are_passed_over(self, store: Store, session: Session) -> None:
        other, newer = replace(FLOW, name="index"), replace(FLOW, version=2, retries=9)
        await added(store, a_run(1), a_run(2, other), a_run(3, newer), a_run(4))
        asked = offer(not_kinds=frozenset({KIND}))
        assert ids(await store.take(replace(asked, limit=1), taking(session))) == ["r0002"]
        asked = offer(not_kinds=frozenset({KIND, a_run(0, other).kind, "transcode", "unknown@7", "it's@1"}))
        assert ids(await store.take(asked, taking(session))) == ["r0003"]
        assert ids(await store.take(offer(), taking(session))) == ["r0001", "r0004"]

    async def test_a_pinned_run_is_for_its_device(self, store: Store, session: Session, garage: Session) -> None:
        await added(store, a_run(1, device="garage"), a_run(2), a_run(3, device="kitchen"), a_run(4, device="Garage"))
        assert ids(await store.take(offer(), taking(session))) == ["r0002", "r0003"]
        assert ids(await store.take(offer("garage"), taking(garage))) == ["r0001"]

    async def test_a_run_that_avoids_a_device_is_not_offered_to_it(self, store: Store) -> None:
        names = ("kitchen", "kit", "kitchen-pc", "chen", "kitchen%", "k_tchen")
        sessions = {name: a_session(f"{name}-1", name) for name in names}
        await joined(store, *sessions.values())
        for number, name in enumerate(names):
            await added(store, a_run(number).changed(avoid=tuple(other for other in names if other != name)))
        await added(store, a_run(100).changed(avoid=names))
        for number, name in enumerate(names):
            assert ids(await store.take(offer(name), taking(sessions[name]))) == [f"r000{number}"]

    async def test_a_run_is_not_offered_before_its_time(self, store: Store, session: Session) -> None:
        await added(store, a_run(1).changed(not_before=100.5), a_run(2).changed(not_before=100.25))
        assert await store.take(offer(now=100.0), taking(session)) == []
        assert ids(await store.take(offer(now=100.25), taking(session))) == ["r0002"]
        assert ids(await store.take(offer(now=101.0), taking(session))) == ["r0001"]

    async def test_a_request_above_a_priority_takes_only_more_urgent_runs(self, store: Store, session: Session) -> None:
        await added(store, *(a_run(number, priority=number - 2) for number in range(5)))
        assert ids(await store.take(offer(above=0), taking(session))) == ["r0004", "r0003"]
        assert ids(await store.take(offer(above=0), taking(session))) == []
        assert ids(await store.take(offer(above=-2), taking(session))) == ["r0002", "r0001"]

    async def test_paused_limited_owned_and_ended_runs_are_never_offered(self, store: Store, session: Session) -> None:
        runs = [a_run(number) for number in range(5)]
        await added(store, *runs, a_run(5, series="one at a time"))
        owned = held_by(runs[2], session)
        await store.commit(
            [
                after(runs[0], transitions.pause(runs[0], 2.0, "ann")),
                after(runs[1], transitions.cancel(runs[1], 2.0, "ann")),
                after(runs[2], owned),
                after(runs[3], completed(held_by(runs[3], session))),
            ]
        )
        assert ids(await store.take(offer(), taking(session))) == [runs[4].id]
        paused = await store.run(runs[0].id)
        assert paused is not None
        await store.commit(
            [
                after(paused, transitions.resume(paused, 3.0, "ann")),
                after(owned, released(owned)),
            ]
        )
        assert ids(await store.take(offer(), taking(session))) == ["r0000", "r0002"]

    async def test_a_run_changed_many_times_while_it_waited_is_offered_once(
        self, store: Store, session: Session
    ) -> None:
        run = a_run(1)
        await added(store, run, a_run(2))
        for _ in range(5):
            paused = transitions.pause(run, 2.0, "ann")
            await store.commit([PutRun(paused, run.revision)])
            run = transitions.resume(paused, 3.0, "ann")
            await store.commit([PutRun(run, paused.revision)])
        assert ids(await store.take(offer(), taking(session))) == ["r0001", "r0002"]
        assert await store.take(offer(), taking(session)) == []

    async def test_a_step_may_refuse_and_then_sees_the_next(self, store: Store, session: Session) -> None:
        await added(store, *(a_run(number) for number in range(40)))
        step = taking(session)
        wanted = {"r0030", "r0033", "r0037"}
        # a device that refuses the first thirty must not starve
        taken = await store.take(offer(limit=2), lambda run: step(run) if run.id in wanted else None)
        assert ids(taken) == ["r0030", "r0033"]
        assert await store.take(offer(limit=2), lambda run: None) == []
        assert ids(await store.take(offer(limit=1), step)) == ["r0000"]

    async def test_a_step_that_raises_leaves_everything_as_it_was(self, store: Store, session: Session) -> None:
        await added(store, *(a_run(number) for number in range(5)))
        before = await contents(store)
        step = taking(session)

        def tripping(run: Run) -> Run | None:
            if run.id == "r0002":
                raise ZeroDivisionError(run.id)
            return step(run)

        with raising(ZeroDivisionError):
            await store.take(offer(), tripping)
        with raising(ZeroDivisionError):  # also far down the queue
            await store.take(offer(limit=2), lambda run: tripping(run) if run.id in ("r0000", "r0002") else None)
        assert await contents(store) == before
        await store.commit([PutRegister("a", "the store still works", None)])
        assert ids(await store.take(offer(), step)) == ids(before.runs.values())

    async def test_a_step_sees_the_run_as_it_is_stored(self, store: Store) -> None:
        session = a_session()
        await joined(store, session)
        run = a_run(1, input={"x": [1]}, key="k", priority=2, device="kitchen").changed(avoid=("garage",))
        await added(store, run)
        seen: list[Run] = []
        assert await store.take(offer(), lambda offered: seen.append(offered)) == []
        assert seen
        assert all(offered == run for offered in seen)

    async def test_a_step_may_end_a_run_or_change_it_without_taking_it(self, store: Store) -> None:
        await added(store, a_run(1), a_run(2))
        ended = await store.take(offer(limit=1), lambda run: transitions.give_up(run, LATER, "nobody can"))
        assert ids(ended) == ["r0001"]
        assert (await store.find(Query(ended_before=LATER + 1))) == ended
        moved = await store.take(
            offer(limit=1), lambda run: run.changed(revision=run.revision + 1, avoid=("kitchen",), not_before=LATER)
        )
        assert await store.run("r0002") == moved[0]
        assert moved[0].offered

    async def test_takes_at_the_same_time_never_get_the_same_run(self, store: Store, other: Store) -> None:
        sessions = [a_session(f"{name}-1", name) for name in ("kitchen", "garage", "attic", "roof")]
        await joined(store, *sessions)
        await added(store, *(a_run(number) for number in range(120)))
        taken: list[Run] = []

        async def take_all(connection: Store, number: int) -> None:
            session = sessions[number % len(sessions)]
            # runs that others are taking are passed over, so an empty take does not mean an empty queue
            while await connection.waiting():
                taken.extend(await connection.take(offer(session.device, limit=1 + number), taking(session)))

        await asyncio.gather(*(take_all(connection, number) for connection in (store, other) for number in range(4)))
        twice = [run_id for run_id, times in Counter(ids(taken)).items() if times > 1]
        assert twice == []
        assert {run.id: run for run in taken} == (await contents(store)).runs

    async def test_a_take_and_a_commit_never_both_win(self, store: Store, other: Store, session: Session) -> None:
        runs = [a_run(number) for number in range(40)]
        await added(store, *runs)
        cancelled: list[str] = []
        taken: list[str] = []

        async def cancel(run: Run) -> None:
            change = after(run, transitions.cancel(run, LATER, "ann"))
            if await wins(other.commit([change]), f"run {run.id}"):
                cancelled.append(run.id)

        async def take() -> None:
            while await store.waiting():
                taken.extend(ids(await store.take(offer(limit=2), taking(session))))

        await asyncio.gather(take(), *(cancel(run) for run in reversed(runs)))
        assert sorted([*cancelled, *taken]) == ids(runs)
        for run_id in taken:
            run = await store.run(run_id)
            assert run is not None
            assert run.status is CLAIMED

    async def test_a_lost_run_is_offered_with_its_history(
        self, store: Store, session: Session, garage: Session
    ) -> None:
        run = a_run(1)
        again = transitions.lose(held_by(run, session), 60.0, "no heartbeat arrived")
        assert again.status is REASSIGNING
        await added(store, again)
        assert await store.take(offer(), taking(session)) == []  # it avoids the device that lost it
        [taken] = await store.take(offer("garage"), taking(garage))
        assert taken.epoch == 2
        assert taken.previous == again.previous


# -- orphans and counts ------------------------------------------------------------------------------------------------


def _failed(run: Run, now: float) -> Run:
    assert run.grant is not None
    return transitions.fail(run, run.grant, "broken", now, final=True)


def _present(counts: Mapping[RunStatus, int]) -> dict[RunStatus, int]:
    return {status: number for status, number in counts.items() if number}


class OrphanTests(StoreTests):
    """Tests of ``orphans``, ``waiting`` and ``counts``."""

    async def test_the_runs_of_an_ended_session_are_orphans_at_once(self, store: Store) -> None:
        session, over = a_session(), a_session("garage-1", "garage", state=ENDED)
        await joined(store, session, over)
        theirs = [assigned_to(a_run(1), over), held_by(a_run(2), over), started(held_by(a_run(3), over))]
        await added(store, *theirs, held_by(a_run(4), session), completed(held_by(a_run(5), over)), a_run(6))
        orphans = await store.orphans(0.0, 10)
        assert sorted(run.id for run, _ in orphans) == ["r0001", "r0002", "r0003"]
        assert {run.id: run for run, _ in orphans} == {run.id: run for run in theirs}
        known = await session_in(store, "garage-1")
        assert [replace(owner, used=known.used) for _, owner in orphans] == [known] * 3

    async def test_an_owner_may_be_silent_exactly_as_long_as_the_timeout_of_its_runs(self, store: Store) -> None:
        session, old = a_session(timeout=4 * TIMEOUT), a_session("garage-1", "garage", state=REPLACED)
        await joined(store, session, old)
        patient = replace(FLOW, name="patient", heartbeat_timeout=4 * TIMEOUT)
        await added(store, held_by(a_run(1), session), held_by(a_run(2, patient), session))
        await added(store, held_by(a_run(3), old), a_run(4), completed(held_by(a_run(5), session)))
        await store.heartbeat("kitchen-1", {}, [])
        silent_since = (await session_in(store, "garage-1")).beat_at
        beat_at = (await session_in(store, "kitchen-1")).beat_at
        for now, expected in [
            (0.0, []),
            (beat_at, []),
            (silent_since + TIMEOUT, []),
            (beat_at + TIMEOUT + 0.001, ["r0001", "r0003"]),
            (beat_at + 4 * TIMEOUT, ["r0001", "r0003"]),
            (beat_at + 4 * TIMEOUT + 0.001, ["r0001", "r0002", "r0003"]),
        ]:
            assert sorted(run.id for run, _ in await store.orphans(now, 10)) == expected, now - beat_at
        assert "r0001" not in [run.id for run, _ in await store.orphans(beat_at + TIMEOUT, 10)]

    async def test_the_own_timeout_of_an_owner_counts_if_it_is_shorter(self, store: Store) -> None:
        session = a_session(timeout=TIMEOUT / 4)
        await joined(store, session)
        await added(store, held_by(a_run(1), session))
        beat_at = (await session_in(store, session.id)).beat_at
        assert await store.orphans(beat_at + TIMEOUT / 4, 10) == []
        assert [run.id for run, _ in await store.orphans(beat_at + TIMEOUT / 4 + 0.001, 10)] == ["r0001"]

    async def test_an_owner_without_a_timeout_of_its_own_shortens_nothing(self, store: Store) -> None:
        session, patient = a_session(timeout=90.0), replace(FLOW, name="patient", heartbeat_timeout=300.0)
        await joined(store, session)
        await added(store, held_by(a_run(1, patient), session))
        beat_at = (await session_in(store, session.id)).beat_at
        assert await store.orphans(beat_at + 300.0, 10) == []
        assert [run.id for run, _ in await store.orphans(beat_at + 300.001, 10)] == ["r0001"]

    async def test_the_timeout_of_the_process_of_a_plan_is_not_that_of_its_work(self, store: Store) -> None:
        session = a_session("nightly-1", "nightly@kitchen", timeout=TIMEOUT / 4)
        await joined(store, session)
        await added(store, held_by(a_run(1), session))
        beat_at = (await session_in(store, session.id)).beat_at
        assert await store.orphans(beat_at + TIMEOUT, 10) == []
        assert [run.id for run, _ in await store.orphans(beat_at + TIMEOUT + 0.001, 10)] == ["r0001"]

    async def test_an_assigned_run_is_not_an_orphan_of_a_silent_session(self, store: Store, session: Session) -> None:
        asked = assigned_to(a_run(1), session)
        await added(store, asked, held_by(a_run(2), session))
        assert [run.id for run, _ in await store.orphans(FAR, 10)] == ["r0002"]
        known = await session_in(store, session.id)
        await store.commit([PutSession(known.changed(state=ENDED), known.revision)])
        assert sorted(run.id for run, _ in await store.orphans(FAR, 10)) == ["r0001", "r0002"]

    async def test_a_heartbeat_saves_the_runs_of_a_session(self, store: Store, session: Session) -> None:
        await added(store, held_by(a_run(1), session))
        first = (await session_in(store, session.id)).beat_at
        while store.clock() <= first + 0.01:  # the store's clock is real, and has to advance
            await store.heartbeat(session.id, {}, [])
        await store.heartbeat(session.id, {}, [])
        last = (await session_in(store, session.id)).beat_at
        assert last > first
        assert await store.orphans(first + TIMEOUT + (last - first) / 2, 10) == []
        assert [run.id for run, _ in await store.orphans(last + TIMEOUT + 0.001, 10)] == ["r0001"]

    async def test_orphans_come_a_few_at_a_time(self, store: Store) -> None:
        over = a_session("garage-1", "garage", state=ENDED)
        await joined(store, over)
        runs = [held_by(a_run(number), over) for number in range(7)]
        await added(store, *runs)
        left = {run.id for run in runs}
        while left:
            orphans = await store.orphans(FAR, 3)
            assert len(orphans) == min(3, len(left))
            for run, _ in orphans:
                left.remove(run.id)
            await store.commit([after(run, transitions.lose(run, 500.0, "its owner ended")) for run, _ in orphans])
        assert await store.orphans(FAR, 3) == []

    async def test_ending_a_session_orphans_its_runs(self, store: Store, session: Session) -> None:
        await added(store, held_by(a_run(1), session))
        known = await session_in(store, session.id)
        assert await store.orphans(known.beat_at, 10) == []
        await store.commit([PutSession(known.changed(state=ENDED), known.revision)])
        [(run, owner)] = await store.orphans(0.0, 10)
        assert run == held_by(a_run(1), session)
        assert (owner.id, owner.state, owner.revision) == (session.id, ENDED, known.revision + 1)

    async def test_waiting_runs_are_counted_by_kind_and_device(self, store: Store, session: Session) -> None:
        assert await store.waiting() == []
        index, other = replace(FLOW, name="index"), replace(FLOW, version=2, retries=9)
        await added(
            store,
            a_run(1),
            a_run(2),
            a_run(3, other),
            a_run(4, index, device="garage"),
            a_run(5, index, device="kitchen"),
            a_run(6, index).changed(not_before=FAR),
            released(held_by(a_run(7, index), session), now=5.5),
            a_run(8, series="held"),
            transitions.pause(a_run(9), 9.0, "ann"),
            held_by(a_run(10), session),
            completed(held_by(a_run(11), session)),
        )
        expected = [
            WaitingRuns("transcode", FLOW.work, None, 3, 1.0),
            WaitingRuns("transcode", other.work, None, 1, 3.0),
            WaitingRuns("index", FLOW.work, "garage", 1, 4.0),
            WaitingRuns("index", FLOW.work, "kitchen", 1, 5.0),
            WaitingRuns("index", FLOW.work, None, 2, 5.5),
        ]
        groups = await store.waiting()
        assert sorted(groups, key=lambda group: group.since) == expected
        assert [group.sample.kind for group in groups] == [f"{group.workflow}@{group.work.digest}" for group in groups]
        await store.take(offer("garage", limit=1, not_kinds=frozenset({a_run(4, index).kind})), taking(session))
        assert WaitingRuns("transcode", FLOW.work, None, 2, 2.0) in await store.waiting()

    async def test_the_runs_of_a_batch_are_counted_by_status_without_those_that_were_retried(
        self, store: Store, session: Session
    ) -> None:
        assert await store.batches() == []
        failed = _failed(started(held_by(a_run(1, batch="films", input={"cancelled": True}), session)), now=70.0)
        cancelled = transitions.cancel(a_run(2, batch="films"), 60.0, 'ann: "cancelled":true')
        done = completed(held_by(a_run(3, batch="films"), session), {"cancelled": True}, now=90.0)
        waiting = a_run(4, batch="films")
        await added(store, failed, cancelled, done, waiting, a_run(5, batch="Films 2"), a_run(6))
        films = [
            BatchPart("films", COMPLETED, False, 1, 3.0, 90.0),
            BatchPart("films", CREATED, False, 1, 4.0, None),
            BatchPart("films", FAILED, False, 1, 1.0, 70.0),
            BatchPart("films", FAILED, True, 1, 2.0, 60.0),
        ]
        assert await store.batches() == [BatchPart("Films 2", CREATED, False, 1, 5.0, None), *films]
        assert await store.batches("films") == films
        assert await store.batches("film") == await store.batches("\0") == []
        assert await store.last_ends("films", 2) == [90.0, 70.0]
        assert await store.last_ends("Films 2", 2) == await store.last_ends("\0", 2) == []
        again = a_run(7, batch="films", key="retry/r0001")
        await added(store, again)
        retried = [films[0], BatchPart("films", CREATED, False, 2, 4.0, None), films[3]]
        assert await store.batches("films") == retried
        assert ids(await store.find(Query(batch="films"))) == ["r0002", "r0003", "r0004", "r0007"]
        assert await store.last_ends("films", 9) == [90.0, 70.0, 60.0]
        await store.prune(FAR, 100)
        assert await store.batches("films") == [retried[1]]

    async def test_runs_are_counted_by_status(self, store: Store, session: Session) -> None:
        assert _present(await store.counts()) == {}
        runs = [
            a_run(1),
            a_run(2, series="x"),
            assigned_to(a_run(3), session),
            held_by(a_run(4), session),
            started(held_by(a_run(5), session)),
            completed(held_by(a_run(6), session)),
            transitions.cancel(a_run(7), 8.0, "ann"),
            transitions.cancel(a_run(8), 9.0, "ann"),
            released(held_by(a_run(9), session)),
        ]
        await added(store, *runs)
        counted = _present(await store.counts())
        assert counted == Counter(run.status for run in runs)
        assert all(type(status) is RunStatus for status in counted)
        await store.commit([after(runs[0], transitions.cancel(runs[0], 10.0, "ann"))])
        assert (await store.counts())[RunStatus.FAILED] == 3
        await store.prune(FAR, 100)
        assert _present(await store.counts()) == Counter(run.status for run in runs[1:] if not run.ended)


# -- limits ------------------------------------------------------------------------------------------------------------


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
        done = completed(started(granted(a_run(22, uses=ONE), session)))
        lost = transitions.lose(granted(a_run(6, uses=TWO), session), 60.0, "no heartbeat arrived")
        await added(store, *(a_run(number, uses=ONE) for number in (1, 2, 3)), paused, done, lost)
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
