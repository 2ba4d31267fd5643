"""Several processes that share one SQLite file."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from asterism.store.protocol import ENDED, OFFERED, PutRun, Query
from tests.store.sqlite_fixtures import filled, ids, opened, run
from tests.store.sqlite_process import RIVALS

Process = subprocess.Popen[str]


@contextlib.contextmanager
def child(job: str, file: Path, name: str = "") -> Iterator[Process]:
    """Start a process that is ready to begin."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.store.sqlite_process", job, file, name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def begin(*processes: Process) -> None:
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()


def said_by(process: Process) -> list[str]:
    """Return all its output, up to its end."""
    said, _ = process.communicate()
    assert process.returncode == 0
    return said.split("\n")[:-1]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "fleet.db"


@pytest.mark.long
async def test_a_run_that_two_processes_take_belongs_to_one(file: Path) -> None:
    await filled(file, RIVALS)
    with child("claim_all", file, "kitchen") as kitchen, child("claim_all", file, "laptop") as laptop:
        begin(kitchen, laptop)
        won = {
            name: {int(number) for number in said_by(process)}
            for name, process in (("kitchen", kitchen), ("laptop", laptop))
        }
    assert won["kitchen"] | won["laptop"] == set(range(RIVALS))
    assert not won["kitchen"] & won["laptop"]
    async with opened(file) as store:
        for stored in await store.find(Query()):
            assert stored.revision == 2
            assert int(stored.id.removeprefix("run-")) in won[stored.device or ""]


@pytest.mark.long
async def test_hundreds_of_acknowledged_commits_survive_kill_9(file: Path) -> None:
    with child("write_for_ever", file) as process:
        begin(process)
        assert process.stdout is not None
        acknowledged = [int(process.stdout.readline()) for _ in range(1500)]
        process.kill()
        acknowledged += [int(line) for line in process.stdout.read().split("\n")[:-1]]
    async with opened(file) as store:
        stored = set(await ids(store))
        assert {f"run-{number:05}" for number in acknowledged} <= stored
        assert await store.check() == []
        await store.commit([PutRun(run(99_999), None)])


@pytest.mark.long
def test_processes_that_open_a_new_file_at_once_create_its_tables_once(file: Path) -> None:
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(child("open_it", file)) for _ in range(3)]
        begin(*processes)
        assert [said_by(process) for process in processes] == [["[]"]] * 3
    asyncio.run(filled(file, 0))  # processes that close at the same moment may each leave the log to the other
    assert os.listdir(file.parent) == ["fleet.db"]


async def test_a_commit_of_another_process_wakes_every_watch(file: Path) -> None:
    async with opened(file) as store:
        with child("commit_once", file) as process:
            watches = [store.watch(frozenset({topic})) for topic in (OFFERED, ENDED)]
            for watch in watches:
                await watch.wait(0.0)  # opening the file may wake us too
            begin(process)
            async with asyncio.timeout(300):
                while not await ids(store):
                    await watches[0].wait(60.0)
                assert await watches[1].wait(60.0)
            said_by(process)
