"""Several processes at one store, some of them killed: what was acknowledged is there, and nothing is half there."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from asterism.core.run.run import COMPLETED
from asterism.store.protocol import PutRegister, Query, Store
from asterism.store.row_codec import run_of
from asterism.testing.store_conformance.engine_tests import EngineTests, with_store
from asterism.testing.store_conformance.sample_records import a_run, a_session, added, ids, joined, offer, taking

_PROGRAM = Path(__file__).with_name("store_process.py")


async def _line(process: Process) -> str:
    """What it says next, without the end of the line; nothing if it has ended, or was killed in mid-word."""
    assert process.stdout is not None
    line = (await process.stdout.readline()).decode()
    return line[:-1] if line.endswith("\n") else ""


@asynccontextmanager
async def _process(tests: EngineTests, store: Store, job: str, name: str) -> AsyncIterator[Process]:
    """One that has the store open and waits to be told to begin."""
    place = await tests.elsewhere(store)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    arguments = (sys.executable, "-P", str(_PROGRAM), place.opener, place.address, job, name)
    process = await asyncio.create_subprocess_exec(*arguments, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=environment)
    try:
        said = await _line(process)
        if said != "ready":
            raise AssertionError(f"the other process could not open the store: {await _ended(process)}")
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def _ended(process: Process) -> str:
    """What it complained about."""
    assert process.stderr is not None
    complaint = (await process.stderr.read()).decode()
    await process.wait()
    return complaint


async def _begin(*processes: Process) -> None:
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(b"go\n")
    for process in processes:
        assert process.stdin is not None
        await process.stdin.drain()


async def _all_it_says(process: Process) -> list[str]:
    said = []
    while line := await _line(process):
        said.append(line)
    complaint = await _ended(process)
    assert process.returncode == 0, complaint
    return said


class Processes(EngineTests):
    """Of processes."""

    @with_store
    async def test_two_processes_that_count_together_lose_nothing(self, store: Store) -> None:
        async with _process(self, store, "count", "a") as one, _process(self, store, "count", "b") as two:
            await _begin(one, two)
            said = await asyncio.gather(_all_it_says(one), _all_it_says(two))
        assert [len(lines) for lines in said] == [50, 50]
        assert await store.register("counted") == ("counted", 100, 100)

    @with_store
    async def test_two_processes_share_the_work_and_do_nothing_twice(self, store: Store) -> None:
        await added(store, *(a_run(number) for number in range(40)))
        async with _process(self, store, "work", "kitchen") as one, _process(self, store, "work", "garage") as two:
            await _begin(one, two)
            mine, theirs = await asyncio.gather(_all_it_says(one), _all_it_says(two))
        assert max(Counter([*mine, *theirs]).values()) == 1
        runs = await store.find(Query())
        assert ids(runs) == sorted([*mine, *theirs])
        assert {run.status for run in runs} == {COMPLETED}
        assert [run.output["by"] for run in runs] == ["kitchen" if run.id in mine else "garage" for run in runs]
        assert {run.epoch for run in runs} == {1}
        assert await store.register("completed") == ("completed", 40, 40)

    @with_store
    async def test_what_was_acknowledged_survives_kill_9_and_nothing_is_half_there(self, store: Store) -> None:
        for life, enough in enumerate((5, 60)):
            name = "abc"[life]
            async with _process(self, store, "write", name) as process:
                await _begin(process)
                said = [await _line(process) for _ in range(enough)]
                process.kill()
                while line := await _line(process):  # what it said before it died, and was on the way
                    said.append(line)
                assert (await _ended(process)) == ""
            assert all(said)
            await self._written_whole(store, name, said)
            # nothing it held stands in the way of others
            await store.commit([PutRegister(f"after {name}", 1, None)])
        session = a_session()
        await joined(store, session)
        [taken] = await store.take(offer(limit=1), taking(session))
        assert taken.session == session.id
        again = await self.open_another(store)
        if again is not None:
            assert await again.run(taken.id) == taken
            assert await again.check() == []
            await again.close()

    async def _written_whole(self, store: Store, name: str, acknowledged: list[str]) -> None:
        # all at one instant: a server may still be at a commit whose client is dead, and finish it while we look
        lines = [line async for line in store.dump()]
        registers = {line["register"]["key"]: line["register"]["value"] for line in lines if "register" in line}
        expected = sorted(
            f"{key.removeprefix('count/')}.{number}"
            for key, value in registers.items()
            if key.startswith(f"count/{name}")
            for number in range(value)
        )
        assert set(acknowledged) <= set(expected)
        runs = [run_of(line["run"]) for line in lines if "run" in line]
        assert sorted(run.id for run in runs if run.created_by == name) == expected
        for half in ("first/", "last/"):
            assert sorted(key.removeprefix(half) for key in registers if key.startswith(half + name)) == expected
        told = [line["notice"] for line in lines if "notice" in line]
        assert sorted(notice["message"] for notice in told if notice["device"] == name) == expected
        for run in runs:
            assert await store.blob(run.input["$blob"]) == run.id.encode()
