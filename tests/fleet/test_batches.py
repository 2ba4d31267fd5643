"""Batches: whatever happens to the runs of a batch, each element is counted once, as its newest run."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from asterism.api import documents
from asterism.api.local import run_handlers
from asterism.api.system import LocalSystem
from asterism.core.errors import AsterismError
from asterism.core.run import transitions
from asterism.core.run.run import RETRY_KEYS, Owner, Run
from asterism.core.run.work import Workflow
from asterism.fleet.fleet import Fleet, InvalidTerms
from asterism.fleet.run_queries import UnknownBatch
from asterism.store.memory import MemoryStore
from asterism.store.protocol import PutLog, PutRun, Query, StoredChunk
from asterism.store.sqlite import group_commit
from asterism.store.sqlite.group_commit import Writer
from asterism.store.store_errors import StoreUnavailable

WORK = Workflow("work", argv=("true",))
Act = Literal["create", "start", "complete", "fail", "cancel", "retry", "cancel all", "retry failed", "retry all"]
ACTS: tuple[Act, ...] = Act.__args__  # type: ignore[attr-defined]
Steps = list[tuple[Act, int]]


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Films:
    """A batch in a store in memory, and a model of it: the status of each element. A second batch beside it never
    changes."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.fleet = Fleet(MemoryStore(self.clock), by="ann")
        self.system = LocalSystem(self.fleet)
        self.model: list[str] = []
        self.newest: list[str] = []  # the newest run of each element

    async def create(self, number: int) -> None:
        runs = await self.fleet.create_many("work", [{}] * (1 + number % 3), batch="films")
        self.newest += [run.id for run in runs]
        self.model += ["waiting"] * len(runs)

    async def step(self, element: int, *steps: Callable[[Run], Run]) -> None:
        for step in steps:
            run = await self.fleet.run(self.newest[element])
            await self.fleet.store.commit([PutRun(step(run), run.revision)])

    async def end(self, element: int, status: str) -> None:
        if self.model[element] == "waiting":
            await self.step(element, _taken, _started)
        if self.model[element] in ("waiting", "running"):
            await self.step(element, _completed if status == "completed" else _failed)
            self.model[element] = status

    async def act(self, act: Act, number: int) -> None:
        self.clock.now += 1.0
        if act == "create" or not self.model:
            return await self.create(number)
        element = number % len(self.model)
        status = self.model[element]
        if act == "start" and status == "waiting":
            await self.step(element, _taken, _started)
            self.model[element] = "running"
        elif act in ("complete", "fail"):
            await self.end(element, "completed" if act == "complete" else "failed")
        elif act == "cancel" and status == "waiting":
            await self.system.cancel_run(self.newest[element])
            self.model[element] = "cancelled"
        elif act == "retry" and status in ("completed", "failed", "cancelled"):
            old = self.newest[element]
            again = [await self.fleet.retry(old), await self.fleet.retry(old)]
            assert again[0].id == again[1].id
            self.newest[element], self.model[element] = again[0].id, "waiting"
        elif act == "cancel all":
            await self.cancel_all()
        elif act.startswith("retry "):
            await self.retry_all(failed=act == "retry failed")
        return None

    async def cancel_all(self) -> None:
        outcome = await self.system.cancel_batch("films", reason="enough")
        stopping = [element for element, status in enumerate(self.model) if status == "running"]
        assert len(outcome.changed) == len([status for status in self.model if status in ("waiting", "running")])
        for element in stopping:
            await self.step(element, _stopped)
        self.model = ["cancelled" if status in ("waiting", "running") else status for status in self.model]

    async def retry_all(self, *, failed: bool) -> None:
        outcome = await self.system.retry_batch("films", failed)
        assert outcome.refused == {}
        retried = {(await self.fleet.run(run)).retry_of: run for run in outcome.changed}
        chosen = ("failed",) if failed else ("failed", "cancelled")
        for element, status in enumerate(self.model):
            if status in chosen:
                self.newest[element], self.model[element] = retried.pop(self.newest[element]), "waiting"
        assert retried == {}

    async def check(self) -> None:
        """The counts, the list and the results are those of the model."""
        batch = await self.system.show_batch("films")
        counts = Counter(self.model)
        words = ("waiting", "running", "completed", "failed", "cancelled")
        assert {word: getattr(batch, word) for word in words} == {word: counts[word] for word in words}
        assert batch.runs == len(self.model)
        assert batch.ended is (counts["waiting"] + counts["running"] == 0)
        assert [run.id for run in await self.fleet.store.find(Query(batch="films"))] == sorted(self.newest)
        results = (await self.system.read_batch_results("films", limit=500)).items
        ends = {
            run: status
            for run, status in zip(self.newest, self.model, strict=True)
            if status not in ("waiting", "running")
        }
        assert {result.id: result.status for result in results} == ends
        assert (
            sorted(failure.id for failure in batch.failures)
            == sorted(run for run, status in ends.items() if status == "failed")[-10:]
        )
        assert (await self.system.show_batch("beside")).waiting == 2


def _taken(run: Run) -> Run:
    return transitions.take(run, Owner("laptop", "session-laptop"), run.created_at)


def _started(run: Run) -> Run:
    assert run.grant is not None
    return transitions.start(run, run.grant, run.created_at)


def _completed(run: Run) -> Run:
    assert run.grant is not None
    return transitions.complete(run, run.grant, {"cancelled": True}, run.created_at + 60.0)


def _failed(run: Run) -> Run:
    assert run.grant is not None
    return transitions.fail(run, run.grant, "no luck", run.created_at + 60.0, final=True)


def _stopped(run: Run) -> Run:
    assert run.grant is not None
    assert run.stop_request == "cancel"
    return transitions.fail(run, run.grant, "stopped", run.created_at + 60.0)


async def films() -> Films:
    scene = Films()
    await scene.fleet.workflows.add(WORK)
    await scene.fleet.create_many("work", [{}, {}], batch="beside")
    await scene.create(2)
    return scene


@given(st.lists(st.tuples(st.sampled_from(ACTS), st.integers(0, 50)), max_size=25))
@example([("fail", 0), ("retry failed", 0), ("fail", 0), ("retry failed", 0), ("complete", 0), ("retry", 0)])
@example([("cancel", 0), ("fail", 1), ("retry failed", 0), ("retry all", 0), ("cancel all", 0), ("retry all", 0)])
def test_each_element_of_a_batch_is_counted_once_as_its_newest_run(steps: Steps) -> None:
    async def main() -> None:
        scene = await films()
        async with scene.fleet:
            await scene.check()
            for act, number in steps:
                await scene.act(act, number)
                await scene.check()

    asyncio.run(main())


async def test_without_the_key_of_a_retry_a_run_would_be_retried_and_counted_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An ablation: two people retry one run at the same moment."""
    for ablated in (False, True):
        scene = await films()
        await scene.end(0, "failed")
        if ablated:
            repeat = scene.fleet._repeat

            async def keyless(old: Run, device: Any, progress: Any, key: Any, *rest: Any, repeat: Any = repeat) -> Run:
                run: Run = await repeat(old, device, progress, None, *rest)
                return run

            monkeypatch.setattr(scene.fleet, "_repeat", keyless)
        await asyncio.gather(scene.fleet.retry(scene.newest[0]), scene.fleet.retry(scene.newest[0]))
        assert (await scene.system.show_batch("films")).runs == (5 if ablated else 3)


async def test_a_run_whose_retry_has_ended_is_retried_as_that() -> None:
    scene = await films()
    first = scene.newest[0]
    await scene.end(0, "failed")
    await scene.act("retry", 0)
    assert scene.newest[0] != first
    await scene.end(0, "failed")
    second = scene.newest[0]
    with pytest.raises(AsterismError, match=f"{first} was retried as run {second}, which is failed: retry that one"):
        await scene.fleet.retry(first)
    await scene.act("retry", 0)
    await scene.end(0, "completed")
    with pytest.raises(AsterismError, match=f"{second} was retried as run {scene.newest[0]}, which is completed$"):
        await scene.fleet.retry(second)


async def test_the_rate_is_that_of_the_last_hundred_ends() -> None:
    scene = await films()
    assert (await details(scene)).rate is None
    scene.clock.now += 50.0
    await scene.step(0, _taken, _started, _failed)  # a minute after its creation
    scene.clock.now = 1100.0
    shown = await details(scene)
    assert (shown.rate, shown.time_left) == (1 / 100.0, 200.0)
    runs = await scene.fleet.create_many("work", [{}] * 150, batch="films")
    scene.newest, scene.clock.now = [run.id for run in runs], 1210.0
    for element in range(100):
        await scene.step(element, _taken, _started, _completed)
    shown = await details(scene)
    assert (shown.rate, shown.time_left) == (100 / 50.0, 26.0)  # all of them ended at 1160
    await scene.system.cancel_batch("films")
    shown = await details(scene)
    assert (shown.ended, shown.rate, shown.time_left) == (True, None, None)


async def details(scene: Films) -> documents.BatchDetails:
    return await scene.system.show_batch("films")


async def test_what_failed_is_shown_with_its_last_lines() -> None:
    scene = await films()
    await scene.end(1, "failed")
    lines = [[1.0, "stdout", f"line {number}"] for number in range(1, 6)]
    await scene.fleet.store.commit([PutLog(scene.newest[1], 1, [StoredChunk(1, 1, 5, lines)])])
    [failure] = (await details(scene)).failures
    assert (failure.id, failure.error, failure.device) == (scene.newest[1], "no luck", "laptop")
    assert failure.tail == "line 3\nline 4\nline 5\n"


async def test_results_come_page_by_page_with_large_ones_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = await films()
    large = await scene.fleet.blobs.keep({"text": "x" * 2_000_000}, "the output")
    assert "$blob" in large
    await scene.step(0, _taken, _started, lambda run: _completed(run).changed(output=large))
    await scene.end(1, "completed")
    monkeypatch.setattr("asterism.api.local.run_handlers.LARGEST_PAGE", 1_000_000)
    first = await scene.system.read_batch_results("films")
    [result] = first.items
    assert (len(result.output["text"]), first.next) == (2_000_000, scene.newest[0])
    second = await scene.system.read_batch_results("films", first.next)
    assert ([result.id for result in second.items], second.next) == ([scene.newest[1]], None)
    first = await scene.system.read_batch_results("films", limit=1)
    assert first.next == scene.newest[0]


async def test_mistakes_are_named() -> None:
    scene = await films()
    for ask in (scene.system.show_batch, scene.system.cancel_batch, scene.system.read_batch_results):
        with pytest.raises(UnknownBatch, match="no run belongs to batch 'flims'; list the batches with: asterism"):
            await ask("flims")
    with pytest.raises(InvalidTerms, match="batch must be a text of 1 to 500 printable characters"):
        await scene.fleet.create("work", batch="a\nb")
    with pytest.raises(InvalidTerms, match="batch must be a text of 1 to 500 printable characters"):
        await scene.fleet.create_many("work", [{}], batch="")
    with pytest.raises(InvalidTerms, match="reserved for retries: choose another key"):
        await scene.fleet.create("work", key=f"{RETRY_KEYS}x")


async def test_batches_are_listed_with_the_newest_first_and_end_with_their_last_run() -> None:
    scene = await films()
    scene.clock.now += 10.0
    await scene.fleet.create("work", batch="new")
    assert (await scene.system.list_batches()).items[0].name == "new"
    await scene.system.cancel_batch("new")
    await scene.fleet.prune(0.0)
    scene.clock.now += 10.0
    await scene.fleet.prune(0.0)
    assert {batch.name for batch in (await scene.system.list_batches()).items} == {"films", "beside"}


async def test_to_act_on_a_batch_is_few_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commits: list[int] = []
    perform = Writer._perform

    def counted(self: Writer, jobs: Any, *arguments: Any) -> None:
        commits.append(len(jobs))
        perform(self, jobs, *arguments)

    monkeypatch.setattr(Writer, "_perform", counted)
    for quick in ("QUICK", "QUICK_READS"):  # all is done in the event loop, as on a quick disk: nothing joins by chance
        monkeypatch.setattr(group_commit, quick, float("inf"))
    async with await Fleet.open(f"sqlite:///{tmp_path}/fleet.db") as fleet:
        await fleet.workflows.add(WORK)
        await fleet.create_many("work", [{}] * 150, batch="films")
        system = LocalSystem(fleet)
        for act in (system.cancel_batch, system.retry_batch):
            commits.clear()
            assert len((await act("films")).changed) == 150
            assert sum(commits) >= 150
            assert len(commits) <= 4, "the runs of one time are committed together"


async def test_a_retry_of_a_batch_that_was_broken_off_is_completed_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_handlers, "AT_ONE_TIME", 2)
    scene = await films()
    for element in range(len(scene.model)):
        await scene.end(element, "failed")
    retry, number = scene.fleet.retry, itertools.count()

    async def broken(run: str, reason: str = "") -> Run:
        if next(number) == 1:
            raise StoreUnavailable("the power failed")
        return await retry(run, reason)

    with monkeypatch.context() as patch:
        patch.setattr(scene.fleet, "retry", broken)
        with pytest.raises(StoreUnavailable):
            await scene.system.retry_batch("films", True)
    await scene.system.retry_batch("films", True)
    batch = await scene.system.show_batch("films")
    assert (batch.waiting, batch.runs) == (len(scene.model), len(scene.model)), "none is retried twice"
