"""Creation of many runs at once: whole batches, in order, with keys and labels, and resumable."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asterism.core.errors import AsterismError, TooLarge
from asterism.core.limits import Limit, uses_of
from asterism.core.record import replace
from asterism.core.run.run import Run
from asterism.core.run.run_label import InvalidTemplate
from asterism.fleet.bulk_creation import (
    InvalidInput,
)
from asterism.fleet.fleet import Fleet
from asterism.fleet.ledger import Ledger
from asterism.fleet.stored_limits import set_limit
from asterism.store.memory import MemoryStore
from asterism.store.protocol import Query
from asterism.store.store_errors import StoreUnavailable
from tests.fleet.fleet_scenes import WORK, Line, Stage

pytestmark = pytest.mark.virtual_time


def numbered(count: int) -> list[dict[str, Any]]:
    return [{"number": number} for number in range(count)]


def numbers(runs: list[Run]) -> list[int]:
    return [run.input["number"] for run in runs]


async def test_many_runs_are_written_in_few_commits_and_in_the_order_of_their_inputs(stage: Stage) -> None:
    line = Line(stage.store)
    fleet = stage.fleet("ann", line)
    flow = await fleet.workflows.add(WORK)
    line.asked.clear()
    runs = await fleet.create_many(flow, numbered(2500), label="no. {number}", priority=7)
    assert line.asked["commit"] == 3
    stored = await stage.store.find(Query())
    assert stored == runs  # by id: the ids ascend in the order of the inputs
    assert numbers(stored) == list(range(2500))
    assert {(run.status, run.priority, run.created_by) for run in stored} == {("created", 7, "ann")}
    assert stored[17].label == "no. 17"


async def test_a_device_that_waits_takes_them(stage: Stage) -> None:
    kitchen = await stage.device("kitchen", slots=50)
    runs = await stage.person.create_many(WORK, numbered(30))
    await stage.until(lambda: len(kitchen.hands.busy) == 30)
    for run in runs:
        kitchen.hands.finish(run)
    assert [(await stage.end_of(run)).status for run in runs] == ["completed"] * 30


async def test_no_input_creates_no_run(stage: Stage) -> None:
    assert await stage.person.create_many(WORK, []) == []


async def test_an_input_that_cannot_be_used_is_named_and_its_batch_is_not_written(stage: Stage) -> None:
    inputs = numbered(25)
    inputs[13] = {"number": float("nan")}
    with pytest.raises(InvalidInput, match=r"^input 14: .*nan, which JSON cannot hold") as refused:
        await stage.person.create_many(WORK, inputs, per_commit=10)
    assert refused.value.index == 13
    assert numbers(await stage.store.find(Query())) == list(range(10))


@pytest.mark.parametrize(
    ("run_input", "options", "why"),
    [
        ([1], {}, r"must be an object of named values, not \[1\]"),
        ({"number": 1}, {"label": "{file}"}, "no such field: it has number"),
        ({"number": 1}, {"key": "{file}"}, "no such field: it has number"),
        ({"file": ""}, {"key": "{file}"}, "key must be a text of 1 to 500 printable characters"),
        ({"file": "plan:x"}, {"key": "{file}"}, "are reserved for plans"),
    ],
)
async def test_what_is_wrong_with_an_input_is_said(
    stage: Stage, run_input: Any, options: dict[str, str], why: str
) -> None:
    with pytest.raises(InvalidInput, match=why):
        await stage.person.create_many(WORK, [run_input], **options)
    assert await stage.store.find(Query()) == []


async def test_a_key_that_is_the_same_for_all_is_refused(stage: Stage) -> None:
    with pytest.raises(InvalidTemplate, match="gives every run the same key"):
        await stage.person.create_many(WORK, numbered(2), key="once")
    with pytest.raises(AsterismError, match="priority must be a whole number"):
        await stage.person.create_many(WORK, numbered(2), priority=1 << 40)


async def test_large_inputs_are_blobs_and_too_large_ones_are_refused(stage: Stage) -> None:
    await stage.person.configure(large=1000, most=5000)
    [run] = await stage.person.create_many(WORK, [{"text": "x" * 2000}])
    assert set(run.input) == {"$blob", "size"}
    with pytest.raises(InvalidInput) as refused:
        await stage.person.create_many(WORK, [{"text": "x" * 9000}])
    assert isinstance(refused.value.__cause__, TooLarge)


# -- keys --------------------------------------------------------------------------------------------------------------


async def test_runs_whose_key_is_taken_are_not_created_again(stage: Stage) -> None:
    first = await stage.person.create_many(WORK, numbered(10), key="n{number}")
    again = await stage.person.create_many(WORK, numbered(15), key="n{number}")
    assert [run.id for run in again[:10]] == [run.id for run in first]
    assert sorted(numbers(await stage.store.find(Query()))) == list(range(15))


async def test_of_two_inputs_with_one_key_the_first_counts(stage: Stage) -> None:
    runs = await stage.person.create_many(WORK, [{"k": 1, "n": 1}, {"k": 2, "n": 2}, {"k": 1, "n": 3}], key="{k}")
    assert [run.input["n"] for run in runs] == [1, 2, 1]
    assert len(await stage.store.find(Query())) == 2


@given(st.lists(st.lists(st.integers(0, 12), max_size=8), max_size=5), st.integers(1, 4))
def test_whatever_is_repeated_each_key_has_one_run(calls: list[list[int]], per_commit: int) -> None:
    async def main() -> None:
        fleet = Fleet(MemoryStore())
        flow = await fleet.workflows.add(WORK)
        for wanted in calls:
            inputs = [{"number": number} for number in wanted]
            runs = await fleet.create_many(flow, inputs, key="{number}", per_commit=per_commit)
            assert numbers(runs) == wanted
        stored = await fleet.store.find(Query())
        assert sorted(numbers(stored)) == sorted({number for wanted in calls for number in wanted})

    asyncio.run(main())


# -- a store that is out of reach --------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [None, "{number}"])
@pytest.mark.parametrize("lost", ["drops", "loses"])
async def test_a_commit_that_gets_lost_is_repeated_and_nothing_is_written_twice(
    stage: Stage, key: str | None, lost: str
) -> None:
    line = Line(stage.store)
    fleet = stage.fleet("ann", line)
    flow = await fleet.workflows.add(WORK)
    getattr(line, lost)["commit"] = 1
    runs = await fleet.create_many(flow, numbered(10), key=key)
    assert await stage.store.find(Query()) == runs
    assert numbers(runs) == list(range(10))


async def test_without_the_look_at_the_store_a_lost_answer_would_write_the_batch_twice(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ablation: an attempt that makes new runs instead of looking for its own."""
    line = Line(stage.store)
    fleet = stage.fleet("ann", line)
    flow = await fleet.workflows.add(WORK)

    async def careless(self: Ledger, runs: list[Run], writes: Any = ()) -> list[Run]:
        try:
            await self.store.commit([_put(run) for run in runs])
        except StoreUnavailable:
            await self.store.commit([_put(run.changed(id=f"{run.id}b")) for run in runs])
        return runs

    monkeypatch.setattr(Ledger, "add_batch", careless)
    line.loses["commit"] = 1
    await fleet.create_many(flow, numbered(3))
    assert len(await stage.store.find(Query())) == 6


def _put(run: Run) -> Any:
    from asterism.store.protocol import PutRun

    return PutRun(run, None)


async def test_a_store_that_stays_out_of_reach_is_an_error(stage: Stage) -> None:
    line = Line(stage.store)
    fleet = stage.fleet("ann", line)
    flow = await fleet.workflows.add(WORK)
    line.down = True
    with pytest.raises(StoreUnavailable):
        await fleet.create_many(flow, numbered(3))


# -- series ------------------------------------------------------------------------------------------------------------


async def test_the_runs_of_a_series_are_queued_in_their_order(stage: Stage) -> None:
    kitchen = await stage.device("kitchen", slots=5)
    await stage.person.create(WORK, {"number": -1}, series="s")
    await stage.person.create_many(WORK, numbered(3), series="s")
    done: list[int] = []
    for _ in range(4):
        await stage.until(lambda: kitchen.hands.busy)
        [run_id] = kitchen.hands.busy
        done.append(kitchen.hands.works[run_id].run.input["number"])
        kitchen.hands.finish(run_id)
        await stage.person.wait(run_id)
    assert done == [-1, 0, 1, 2]


async def test_runs_of_a_series_that_use_limits_wait_for_both(stage: Stage) -> None:
    await set_limit(stage.store, Limit("disk", 5))
    runs = await stage.person.create_many(replace(WORK, name="disk", uses={"disk": 2}), numbered(2), series="s")
    assert [uses_of(run.uses) for run in runs] == [{"disk": 2, "series/s": 1}] * 2


# -- labels ------------------------------------------------------------------------------------------------------------


async def test_a_run_has_the_label_it_was_given_and_its_retry_has_it_too(stage: Stage) -> None:
    run = await stage.person.create(WORK, label="the first")
    ended = await stage.person.cancel(run.id)
    again = await stage.person.retry(ended.id)
    assert (run.label, again.label) == ("the first", "the first")
    assert await stage.store.find(Query(search="FIRST")) == [ended, again]


@pytest.mark.parametrize("label", ["", "a\nb", "x" * 501, 3])
async def test_a_label_is_a_short_line(stage: Stage, label: Any) -> None:
    with pytest.raises(AsterismError, match="label must be a text of 1 to 500 printable characters"):
        await stage.person.create(WORK, label=label)


async def test_the_notice_of_a_failure_names_the_label(stage: Stage) -> None:
    kitchen = await stage.device("kitchen")
    run = await stage.person.create(WORK, label="the first")
    await stage.at_work(kitchen, run)
    kitchen.hands.fail(run, ValueError("no"))
    await stage.end_of(run)
    [notice] = await stage.notices("failed")
    assert notice.message.startswith(f"run {run.id} (work: the first) failed")
