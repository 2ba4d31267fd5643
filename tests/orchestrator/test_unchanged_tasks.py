"""Tasks with ``skip_if_unchanged``: skipped only if files, work and inputs are as after the last execution."""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asterism import Constellation, LocalDevice, Orchestrator, Task
from asterism.base.file_hashes import hash_files
from asterism.core.plan.assignment_lock import AssignmentLock
from asterism.core.plan.status import RUNNING
from asterism.core.plan.task import ANY_DEVICE
from asterism.fleet import retention
from asterism.orchestrator import StoreRecords, unchanged_tasks
from asterism.orchestrator import execution as execution_module
from asterism.orchestrator.execution import Execution
from asterism.orchestrator.roster import Active
from asterism.store.memory import MemoryStore
from asterism.store.store_errors import StoreUnavailable


class Workshop:
    """A folder with ``in.txt``; the task ``make`` copies it to ``out.txt`` and returns how often it was executed."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.executed = folder, 0
        self.clock = 1000.0
        self.store = MemoryStore(lambda: self.clock)
        self.records: Any = StoreRecords(self.store)
        self.write(in_="1")

    def write(self, **files: str) -> None:
        for name, text in files.items():
            (self.folder / f"{name.strip('_')}.txt").write_text(text)

    def task(self, **terms: Any) -> Task:
        files = {"inputs": ["in.txt"], "outputs": ["out.txt"]}
        return Task("make", **{"argv": ("cp", "in.txt"), "cwd": str(self.folder), "skip_if_unchanged": files, **terms})

    def run(self, *tasks: Task, upstream: Any = None) -> Constellation:
        plan = Constellation("plan")
        plan.add(Task("first", data={"value": upstream}))
        for task in tasks or (self.task(),):
            plan.add(task, "first")
        orchestrator = Orchestrator([LocalDevice("bench")], records=self.records)
        orchestrator.scheduler.roster.find("bench").device.execute = self._execute  # type: ignore[union-attr]
        asyncio.run(orchestrator.run(plan))  # not in virtual time: files are hashed in threads
        return plan

    async def _execute(self, work: Any) -> Any:
        if work.task.id == "first":
            return work.task.data["value"]
        self.executed += 1
        (self.folder / "out.txt").write_text((self.folder / "in.txt").read_text())
        return self.executed


@pytest.fixture
def workshop(tmp_path: Path) -> Workshop:
    return Workshop(tmp_path)


def test_a_second_run_has_the_result_of_the_first_and_the_story_says_why(workshop: Workshop) -> None:
    assert workshop.run()["make"].value == 1
    plan = workshop.run()
    assert (plan["make"].value, plan["make"].status, workshop.executed) == (1, "completed", 1)
    [entry] = [entry for entry in plan.story("make") if entry.what == "unchanged"]
    assert entry.why == "1 input and 1 output files are as after its last execution"


@pytest.mark.parametrize(
    "change",
    [
        lambda shop: shop.write(in_="2"),
        lambda shop: shop.write(out="touched"),
        lambda shop: (shop.folder / "out.txt").unlink(),
        lambda shop: (shop.folder / "in.txt").rename(shop.folder / "other.txt") and shop.write(in_="2"),
    ],
    ids=["input", "output", "no output", "another input"],
)
def test_a_changed_file_is_noticed(workshop: Workshop, change: Callable[[Workshop], Any]) -> None:
    workshop.run()
    change(workshop)
    assert workshop.run()["make"].value == 2
    assert workshop.run()["make"].value == 2


@pytest.mark.parametrize(
    "terms",
    [
        {"argv": ("cp", "-v", "in.txt")},
        {"inputs": {"x": 1}},
        {"env": {"X": "1"}},
        {"skip_if_unchanged": {"inputs": ["in.txt", "more.txt"], "outputs": ["out.txt"]}},
    ],
)
def test_other_work_is_executed(workshop: Workshop, terms: dict[str, Any]) -> None:
    workshop.run()
    assert workshop.run(workshop.task(**terms))["make"].value == 2


def test_the_result_of_another_task_counts_if_it_is_used(workshop: Workshop) -> None:
    using = workshop.task(inputs={"x": {"from": "first", "select": "result.n"}})
    workshop.run(using, upstream={"n": 1})
    assert workshop.run(using, upstream={"n": 1})["make"].value == 1
    assert workshop.run(using, upstream={"n": 2})["make"].value == 2
    assert workshop.run(upstream=1)["make"].value == 3
    assert workshop.run(upstream=2)["make"].value == 3


def test_what_does_not_change_the_work_does_not_count(workshop: Workshop) -> None:
    workshop.run()
    assert workshop.run(workshop.task(description="other", retries=5, timeout=9, priority="high"))["make"].value == 1


def test_an_output_that_was_not_written_is_not_recorded(workshop: Workshop, caplog: pytest.LogCaptureFixture) -> None:
    files = {"outputs": ["never.txt"]}
    with caplog.at_level(logging.WARNING, "asterism.unchanged"):
        workshop.run(workshop.task(skip_if_unchanged=files))
    assert "its result is not recorded: it did not write 'never.txt'" in caplog.text
    assert workshop.run(workshop.task(skip_if_unchanged=files))["make"].value == 2


def test_without_records_it_is_always_executed(workshop: Workshop) -> None:
    workshop.records = None
    workshop.run()
    assert workshop.run()["make"].value == 2


def test_a_store_that_is_away_costs_an_execution_and_not_the_task(workshop: Workshop) -> None:
    workshop.run()

    class Away:
        async def get(self, key: str) -> Any:
            raise StoreUnavailable("away")

        put = get

    workshop.records = Away()
    assert workshop.run()["make"].value == 2


def test_a_result_that_is_too_large_is_not_recorded(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unchanged_tasks, "LONGEST_RECORD", 10)
    workshop.run()
    assert workshop.run()["make"].value == 2


def test_a_file_that_changes_during_the_execution_counts_as_changed(workshop: Workshop) -> None:
    execute = workshop._execute

    async def disturbed(work: Any) -> Any:
        value = await execute(work)
        if work.task.id == "make":
            workshop.write(in_="meanwhile")
        return value

    workshop._execute = disturbed  # type: ignore[method-assign]
    workshop.run()
    workshop._execute = execute  # type: ignore[method-assign]
    assert workshop.run()["make"].value == 2


@pytest.mark.parametrize("safe", [True, False])
def test_an_execution_that_an_earlier_process_began_is_waited_for(
    workshop: Workshop, safe: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files may change at any moment, and its run exists: its result counts, not the record. Ablation: without the
    mark of a resumed execution, the record would count."""
    workshop.run()
    if not safe:
        monkeypatch.setattr(execution_module, "Active", lambda node, member, resumed: Active(node, member, False))
    plan = Constellation("plan")
    plan.add(workshop.task())

    async def resumed() -> None:
        orchestrator = Orchestrator([LocalDevice("bench")], records=workshop.records)
        orchestrator.scheduler.roster.find("bench").device.execute = workshop._execute  # type: ignore[union-attr]
        orchestrator.scheduler.attach_loop()
        orchestrator.options.prepare(plan)
        plan.begin(0.0)
        plan.start(plan.queue.pop(ANY_DEVICE), "bench", 0.0)
        assert plan.node("make").status is RUNNING
        lock = orchestrator.options.lock(plan, AssignmentLock)
        execution = Execution(
            orchestrator.scheduler, plan, lock, orchestrator.options, orchestrator.events, orchestrator._random
        )
        orchestrator.scheduler.add(execution, orchestrator)
        execution.take_over()
        await execution.done
        await orchestrator.scheduler.remove(execution)

    asyncio.run(resumed())
    assert plan["make"].value == (2 if safe else 1)


async def test_retention_removes_records_that_were_not_used_for_long(workshop: Workshop) -> None:
    await workshop.records.put("old", {"result": 1})
    workshop.clock = 2000.0
    await workshop.records.put("new", {"result": 2})
    await retention.prune(workshop.store, 1500.0, 10)
    assert (await workshop.records.get("old"), (await workshop.records.get("new"))["result"]) == (None, 2)


# -- hashes of files ---------------------------------------------------------------------------------------------------


def test_patterns_and_folders(tmp_path: Path) -> None:
    for name in ("a.c", "b.c", "src/d.c", "src/deep/e.c", "src/deep/f.h"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    folder = str(tmp_path)
    assert list(hash_files(["*.c"], folder)) == ["a.c", "b.c"]
    assert list(hash_files(["src"], folder)) == ["src/d.c", "src/deep/e.c", "src/deep/f.h"]
    assert list(hash_files(["**/*.c"], folder)) == ["a.c", "b.c", "src/d.c", "src/deep/e.c"]
    assert hash_files(["none.c", "none/*"], folder) == {"none.c": None}


FILES = st.dictionaries(st.sampled_from("abc"), st.binary(max_size=4))


@given(FILES, FILES)
def test_hashes_are_equal_exactly_if_the_files_are(first: dict[str, bytes], second: dict[str, bytes]) -> None:
    found = []
    for files in (first, second):
        with tempfile.TemporaryDirectory() as folder:
            for name, content in files.items():
                (Path(folder) / name).write_bytes(content)
            found.append(hash_files(["*"], folder))
    assert (found[0] == found[1]) == (first == second)
