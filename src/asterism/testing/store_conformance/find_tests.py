"""Tests of queries: every condition, limits, and pages."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from asterism.core.run import transitions
from asterism.core.run.run import COMPLETED, CREATED, FAILED, OWNED, PROCESSING, REASSIGNING, TERMINAL, Grant, Run
from asterism.store.protocol import Query, Store
from asterism.testing.store_conformance.sample_records import (
    FLOW,
    a_run,
    a_session,
    added,
    assigned_to,
    completed,
    held_by,
    ids,
    joined,
    released,
    series_of,
    started,
)
from asterism.testing.store_conformance.store_tests import StoreTests

_KITCHEN, _GARAGE = a_session(), a_session("garage-1", "garage")
_SECOND = a_session("kitchen-2")


def _furniture() -> list[Run]:
    """Return runs of every status and for every condition, sorted by id."""
    other = FLOW.at_version(2)
    index = replace(FLOW, name="index")
    return [
        a_run(1),
        a_run(2, other, key="once"),
        a_run(3, index).changed(not_before=100.0),
        assigned_to(a_run(4), _KITCHEN, now=40.0),
        held_by(a_run(5, key="twice"), _KITCHEN, now=50.0),
        started(held_by(a_run(6, index), _GARAGE)),
        transitions.cancel(started(held_by(a_run(7), _SECOND)), 70.0, "somebody"),
        a_run(8, series="x"),
        held_by(transitions.release_hold(a_run(9, series="y"), 9.0), _GARAGE, now=51.0),
        transitions.pause(a_run(10), 20.0, "somebody"),
        completed(held_by(a_run(11), _KITCHEN), now=80.0),
        completed(held_by(transitions.release_hold(a_run(12, index, series="x"), 12.0), _GARAGE), now=90.0),
        transitions.cancel(a_run(13), 85.0, "somebody"),
        transitions.lose(held_by(a_run(14), _KITCHEN), FLOW, 95.0, "it was not heard of"),
        released(held_by(a_run(15, index), _KITCHEN), now=96.0),
        transitions.decline(assigned_to(a_run(16), _GARAGE), Grant("r0016", _GARAGE.id, 1), "no room", 97.0),
    ]


async def _furnished(store: Store) -> list[Run]:
    runs = _furniture()
    await joined(store, _KITCHEN, _SECOND, _GARAGE)
    await added(store, *reversed(runs))
    await store.commit([series_of("x", queue=["r0008"]), series_of("y", active="r0009")])
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
    ({"key": "once"}, lambda run: run.key == "once"),
    ({"key": "twice"}, lambda run: run.key == "twice"),
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

    async def test_everything_is_found_oldest_first(self, store: Store) -> None:
        assert await store.find(Query()) == []
        runs = await _furnished(store)
        assert await store.find(Query()) == runs
        assert await store.find(Query(newest=True)) == runs[::-1]
        for run in runs:
            assert await store.run(run.id) == run

    async def test_each_condition_finds_the_runs_that_satisfy_it(self, store: Store) -> None:
        runs = await _furnished(store)
        for given, satisfies in _CRITERIA:
            expected = [run for run in runs if satisfies(run)]
            assert 0 < len(expected) < len(runs), f"{given} tells nothing apart"
            assert await store.find(Query(**given)) == expected, given

    async def test_two_conditions_find_the_runs_that_satisfy_both(self, store: Store) -> None:
        runs = await _furnished(store)
        for (one, satisfies_one), (two, satisfies_two) in itertools.combinations(_CRITERIA, 2):
            if one.keys() != two.keys():
                expected = [run.id for run in runs if satisfies_one(run) and satisfies_two(run)]
                assert ids(await store.find(Query(**one, **two))) == expected, (one, two)

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
        await _furnished(store)
        nothing: list[dict[str, Any]] = [
            {"statuses": frozenset()},
            {"workflow": "Index"},
            {"workflow": ""},
            {"device": "unknown"},
            {"session": "kitchen"},
            {"series": "X"},
            {"key": "onc"},
            {"due_before": -1.0},
            {"id_like": "R0001"},
            {"id_like": "r%"},
            {"id_like": "r____"},
            {"id_like": "r*"},
            {"after": "s"},
            {"after": "a", "newest": True},
            {"limit": 0},
        ]
        for given in nothing:
            assert await store.find(Query(**given)) == [], given

    async def test_a_part_of_an_id_is_not_a_pattern(self, store: Store) -> None:
        names = ["a%b", "a_b", "a\\b", "axb", "a*b", "a'b"]
        await added(store, *(a_run(name) for name in names))
        for name in names:
            assert ids(await store.find(Query(id_like=name[1:]))) == [name]
        assert sorted(ids(await store.find(Query(id_like="a")))) == sorted(names)

    async def test_page_by_page_everything_is_found_once(self, store: Store) -> None:
        runs = await _furnished(store)
        asked: list[dict[str, Any]] = [{}, {"offered": False}, {"workflow": "transcode"}, {"session": "garage-1"}]
        for given, newest, limit in itertools.product(asked, (False, True), (1, 3, 100)):
            expected = ids(await store.find(Query(**given, newest=newest)))
            assert expected == sorted(expected, reverse=newest)
            found: list[str] = []
            last: str | None = None
            while True:
                page = ids(await store.find(Query(**given, newest=newest, limit=limit, after=last)))
                assert len(page) <= limit
                found += page
                if len(page) < limit:
                    break
                last = page[-1]
            assert found == expected, (given, newest, limit)
        assert ids(await store.find(Query(limit=2))) == ids(runs[:2])
        assert ids(await store.find(Query(limit=2, newest=True))) == ids(runs[:-3:-1])

    async def test_a_page_continues_after_a_run_that_was_deleted(self, store: Store) -> None:
        runs = await _furnished(store)
        assert ids(await store.find(Query(after="r0007x", limit=1))) == ["r0008"]
        assert ids(await store.find(Query(after="r0007x", limit=1, newest=True))) == ["r0007"]
        assert ids(await store.find(Query(after=""))) == ids(runs)
