"""Tasks with ``skip_if_unchanged``: skipped only if files, work and inputs are as after the last execution."""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asterism import Constellation, LocalDevice, Orchestrator, Task
from asterism.core.plan.assignment_lock import AssignmentLock
from asterism.core.plan.edit_rules import EditScope
from asterism.core.plan.edits import AddDependency, AddTask, EditBatch
from asterism.core.plan.status import RUNNING
from asterism.core.plan.task import ANY_DEVICE
from asterism.fleet import retention
from asterism.orchestrator import StoreRecords, unchanged_tasks
from asterism.orchestrator.execution import Execution
from asterism.orchestrator.roster import Active, Roster
from asterism.orchestrator.unchanged_tasks import UnsuitableFiles, hash_files
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

    def task(self, **options: Any) -> Task:
        files = {"inputs": ["in.txt"], "outputs": ["out.txt"]}
        return Task(
            "make", **{"argv": ("cp", "in.txt"), "cwd": str(self.folder), "skip_if_unchanged": files, **options}
        )

    def run(
        self, *tasks: Task, upstream: Any = None, plan: Constellation | None = None, **options: Any
    ) -> Constellation:
        plan = Constellation("plan") if plan is None else plan
        plan.add(Task("first", data={"value": upstream}))
        for task in tasks or (self.task(),):
            plan.add(task, "first")
        devices = options.pop("devices", [LocalDevice("bench")])
        for device in devices:
            device.execute = self._execute
        orchestrator = Orchestrator(devices, records=self.records, **options)
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
    "options",
    [
        {"argv": ("cp", "-v", "in.txt")},
        {"inputs": {"x": 1}},
        {"env": {"X": "1"}},
        {"skip_if_unchanged": {"inputs": ["in.txt", "more.txt"], "outputs": ["out.txt"]}},
    ],
)
def test_other_work_is_executed(workshop: Workshop, options: dict[str, Any]) -> None:
    workshop.run()
    assert workshop.run(workshop.task(**options))["make"].value == 2


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
        monkeypatch.setattr(Active, "resumed", property(lambda active: False, lambda active, resumed: None))
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
    assert await workshop.records.get("old") is not None, "a task may be about to end with its files"
    workshop.clock += retention.BLOB_AGE
    await retention.prune(workshop.store, 1500.0, 10)
    assert (await workshop.records.get("old"), (await workshop.records.get("new"))["result"]) == (None, 2)


# -- whose records count -----------------------------------------------------------------------------------------------


def devices() -> list[LocalDevice]:
    return [LocalDevice("sandbox"), LocalDevice("trusted", can=["lab"])]


def test_a_result_of_a_device_that_could_not_run_the_task_does_not_count(workshop: Workshop) -> None:
    """An editor that may use a sandbox alone would otherwise decide the result of a task of another device."""
    workshop.run(workshop.task(device="sandbox"), devices=devices())
    assert workshop.run(workshop.task(device="trusted"), devices=devices())["make"].value == 2
    workshop.run(workshop.task(device="sandbox"), devices=devices())
    assert workshop.run(workshop.task(needs=["lab"]), devices=devices())["make"].value == 4
    assert workshop.run(workshop.task(), devices=devices())["make"].value == 4  # it may run anywhere
    assert workshop.run(workshop.task(), devices=devices()[:1])["make"].value == 5  # the one that made it is gone


def test_without_the_check_of_the_device_a_forged_result_counts(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def any_device(self: Roster, maker: Any, plan_id: str, task: Task) -> bool:
        return True

    monkeypatch.setattr(Roster, "could_run", any_device)
    workshop.run(workshop.task(device="sandbox"), devices=devices())
    assert workshop.run(workshop.task(device="trusted"), devices=devices())["make"].value == 1


def started(source: str, author: str) -> Constellation:
    plan = Constellation(f"{source}-20260101")
    plan.source, plan.author = source, author
    return plan


@pytest.mark.parametrize(
    ("first", "second", "counts"),
    [
        (("nightly", "ann", None), ("nightly", "ann", None), True),
        (("nightly", "ann", None), ("nightly", "eve", None), False),
        (("nightly", "ann", None), ("other", "ann", None), False),
        (("nightly", "ann", "cache"), ("other", "eve", "cache"), True),
        (("nightly", "ann", "cache"), ("other", "eve", None), False),
        (("nightly", "ann", None), ("nightly", "ann", "cache"), False),
        (("nightly", "ann", "cache"), ("nightly", "ann", "another"), False),
    ],
)
def test_between_which_plans_a_record_counts(workshop: Workshop, first: Any, second: Any, counts: bool) -> None:
    """Starts of the same plan file by the same author share records; other plans only if both say so."""
    values = []
    for source, author, shared in (first, second):
        files = {"inputs": ["in.txt"], "outputs": ["out.txt"], **({"shared": shared} if shared else {})}
        plan = workshop.run(workshop.task(skip_if_unchanged=files), plan=started(source, author))
        values.append(plan["make"].value)
    assert values == ([1, 1] if counts else [1, 2])


WIDE = "edits=* tasks=* executors=* fields=* files=*"


def edited(workshop: Workshop, editor: str | None, scope: str = "") -> Any:
    """The result of the task if an editor, or a person, adds it while the plan runs."""
    plan, scopes = started("nightly", "ann"), (EditScope.parse(f"{WIDE} {scope}"), EditScope.parse("editors=nobody"))

    adding = EditBatch((AddTask(workshop.task()), AddDependency("first", "make")), editor="a name of its choice")
    orchestrator = Orchestrator([LocalDevice("bench")], records=workshop.records, scopes=scopes)

    async def execute(work: Any) -> Any:
        if work.task.id == "first":
            orchestrator.edit(plan.id, adding, editor=editor)
            return None
        return await workshop._execute(work)

    orchestrator.scheduler.roster.find("bench").device.execute = execute  # type: ignore[union-attr]
    plan.add(Task("first"))
    asyncio.run(orchestrator.run(plan))
    return plan["make"].value


def test_what_an_editor_wrote_counts_for_that_editor_under_the_same_scopes(workshop: Workshop) -> None:
    assert edited(workshop, "robot") == 1
    assert edited(workshop, "robot") == 1
    assert edited(workshop, "other") == 2
    assert edited(workshop, "robot", "retries=3") == 3  # it could do something else now
    assert edited(workshop, None) == 4
    assert workshop.run(plan=started("nightly", "ann"))["make"].value == 4  # a person may edit the file as well


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


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "real").write_text("x")
    (tmp_path / "link").symlink_to("real")
    for name in ("pipe", "zero", "/dev/zero", "p*", ""):
        with pytest.raises(UnsuitableFiles, match="is not a regular file"):
            hash_files([name], str(tmp_path))
    hashes = hash_files(["link", "loop", "real"], str(tmp_path))
    assert hashes["link"] == hashes["real"] is not None
    assert hashes["loop"] is None


def test_patterns_do_not_follow_links_in_a_circle(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.c").write_text("x")
    (tmp_path / "deep" / "again").symlink_to(tmp_path)
    hashes = hash_files(["**/*.c", "deep/**", f"{tmp_path}/d*"], str(tmp_path))
    assert list(hashes) == ["deep/a.c", f"{tmp_path}/deep/a.c"]


@pytest.mark.parametrize(
    ("limit", "value", "words"), [("MAX_BYTES", 3, "more than 3 bytes"), ("MAX_FILES", 1, "more than 1 files")]
)
def test_number_and_size_are_bounded(
    tmp_path: Path, limit: str, value: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "ab":
        (tmp_path / name).write_text("xx")
    monkeypatch.setattr(unchanged_tasks, limit, value)
    with pytest.raises(UnsuitableFiles, match=words):
        hash_files(["*"], str(tmp_path))


def test_the_time_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unchanged_tasks, "MAX_SECONDS", -1.0)
    with pytest.raises(UnsuitableFiles, match="takes more than"):
        hash_files(["*"], str(tmp_path))


def test_hashing_stops_with_the_plan(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sparse file of a terabyte takes no room, and hours to read."""
    monkeypatch.setattr(unchanged_tasks, "MAX_BYTES", 2**50)
    with (workshop.folder / "in.txt").open("wb") as file:
        file.truncate(2**40)

    async def cancelled() -> None:
        loop, begun = asyncio.get_running_loop(), asyncio.Event()

        def hashing(**arguments: Any) -> Any:
            threads.append(threading.current_thread())
            loop.call_soon_threadsafe(begun.set)
            return hash_files(**arguments)

        monkeypatch.setattr(unchanged_tasks, "hash_files", hashing)
        plan = Constellation("plan")
        plan.add(workshop.task())
        running = asyncio.create_task(Orchestrator([LocalDevice("bench")], records=workshop.records).run(plan))
        await begun.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert plan["make"].status == "cancelled"

    threads: list[threading.Thread] = []
    asyncio.run(cancelled())
    [thread] = threads
    thread.join(60.0)
    assert not thread.is_alive()


FILES = st.dictionaries(st.sampled_from("abc"), st.binary(max_size=4))


@given(FILES, FILES)
def test_hashes_are_equal_exactly_if_the_files_are(first: dict[str, bytes], second: dict[str, bytes]) -> None:
    hashes = []
    for files in (first, second):
        with tempfile.TemporaryDirectory() as folder:
            for name, content in files.items():
                (Path(folder) / name).write_bytes(content)
            hashes.append(hash_files(["*"], folder))
    assert (hashes[0] == hashes[1]) == (first == second)
