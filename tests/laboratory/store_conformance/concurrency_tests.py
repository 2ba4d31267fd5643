"""Tests of concurrent writers: tasks, connections, and processes that are killed."""

from __future__ import annotations

import asyncio
import os
import random
import sys
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from asterism.core.run.run import COMPLETED
from asterism.core.run.session import REPLACED
from asterism.store.protocol import Notice, PutRegister, PutRun, PutSession, Query, Store, Write
from asterism.store.row_codec import run_of
from asterism.store.store_errors import Conflict
from tests.laboratory.store_conformance.sample_records import (
    StoreTests,
    a_run,
    a_session,
    added,
    ids,
    joined,
    offer,
    taking,
    wins,
)


async def _increment(store: Store, *keys: str) -> int:
    """Increment registers in one batch. Return how often another writer was faster."""
    tries = 0
    while True:
        registers = [await store.register(key) for key in keys]
        try:
            await store.commit(
                [
                    PutRegister(key, register.value + 1 if register else 1, register.revision if register else None)
                    for key, register in zip(keys, registers, strict=True)
                ]
            )
            return tries
        except Conflict:
            tries += 1


class RaceTests(StoreTests):
    """Tests of concurrent tasks and connections."""

    async def test_fifty_increments_of_one_register_lose_nothing(self, store: Store) -> None:
        await asyncio.gather(*(_increment(store, "a") for _ in range(50)))
        assert await store.register("a") == ("a", 50, 50)

    async def test_increments_on_two_connections_lose_nothing(self, store: Store, other: Store) -> None:
        async def several(connection: Store) -> None:
            for _ in range(3):
                await _increment(connection, "a")

        await asyncio.gather(*(several(connection) for connection in (store, other) for _ in range(5)))
        assert await store.register("a") == await other.register("a") == ("a", 30, 30)

    async def test_batches_in_opposite_orders_do_not_block_each_other(self, store: Store, other: Store) -> None:
        chance = random.Random(7)

        async def several(connection: Store) -> None:
            for _ in range(3):
                await _increment(connection, *chance.sample("abcd", 4))

        await asyncio.gather(*(several(connection) for connection in (store, other) for _ in range(4)))
        assert [register.value for register in await store.registers("")] == [24, 24, 24, 24]

    async def test_a_conflict_fails_only_its_own_commit(self, store: Store) -> None:
        """An engine that commits for several callers at once has to keep them apart."""
        await store.commit([PutRegister("there", 1, None)])
        tasks = []
        for number in range(60):
            fails = number % 3 == 0
            writes: list[Write] = [
                PutRegister(f"x{number}", number, None),
                PutRun(a_run(number), None),
                PutRegister("there" if fails else f"y{number}", number, None),
                Notice(1.0, "info", str(number)),
            ]
            tasks.append(store.commit(writes))
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert [isinstance(outcome, Conflict) for outcome in outcomes] == [number % 3 == 0 for number in range(60)]
        happened = [number for number in range(60) if number % 3]
        assert ids(await store.find(Query())) == [f"r{number:04d}" for number in happened]
        assert sorted(register.value for register in await store.registers("x")) == happened
        assert sorted(int(notice.message) for _, notice in await store.notices()) == happened

    async def test_one_key_makes_one_run(self, store: Store, other: Store) -> None:
        creating = [added((store, other)[number % 2], a_run(number, key="once")) for number in range(20)]
        created = await asyncio.gather(*(wins(creation, "key once") for creation in creating))
        assert sum(created) == 1
        assert len(await store.find(Query())) == 1

    async def test_one_of_many_replacements_of_a_session_wins(self, store: Store, other: Store) -> None:
        await joined(store, a_session())
        known = (await store.sessions())[0]

        replacing = [
            (store, other)[number % 2].commit(
                [
                    PutSession(known.changed(state=REPLACED), known.revision),
                    PutSession(a_session(f"kitchen-{number + 2}"), None),
                ]
            )
            for number in range(10)
        ]
        won = await asyncio.gather(*(wins(replacement, "session kitchen-1") for replacement in replacing))
        assert sum(won) == 1
        assert len(await store.sessions()) == 2

    async def test_a_cancelled_commit_happens_completely_or_not_at_all(self, store: Store) -> None:
        await joined(store, a_session())
        await added(store, *(a_run(number) for number in range(100, 110)))

        async def cancelled_after(steps: int, number: int) -> None:
            writes: list[Write] = [
                PutRegister(f"x{number}", 1, None),
                PutRun(a_run(number), None),
                PutRegister(f"y{number}", 1, None),
            ]
            task = asyncio.create_task(store.commit(writes))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        async def taken_and_cancelled(steps: int) -> None:
            task = asyncio.create_task(store.take(offer(limit=1), taking(a_session())))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        untouched = [store.commit([PutRegister(f"z{number}", 1, None)]) for number in range(20)]
        await asyncio.gather(
            *(cancelled_after(number % 12, number) for number in range(48)),
            *(taken_and_cancelled(steps) for steps in range(6)),
            *untouched,
        )
        await _increment(store, "after all")
        # read at one instant, since a cancelled commit may still be in progress
        lines = [line async for line in store.dump()]
        keys = [line["register"]["key"] for line in lines if "register" in line]
        runs = {line["run"][0] for line in lines if "run" in line}
        assert {key[1:] for key in keys if key[0] == "x"} == {key[1:] for key in keys if key[0] == "y"}
        created = {str(int(run_id[1:])) for run_id in runs if run_id < "r0100"}
        assert {key[1:] for key in keys if key[0] == "x"} == created
        assert len([key for key in keys if key[0] == "z"]) == 20

    async def test_reading_notices_from_the_last_one_on_misses_none(self, store: Store, other: Store) -> None:
        """Once a number was read, no lower one may appear, or readers would miss it."""
        read: list[str] = []
        last = 0

        async def read_on() -> bool:
            nonlocal last
            page = await store.notices(after=last, limit=7)
            read.extend(notice.message for _, notice in page)
            last = page[-1][0] if page else last
            return bool(page)

        async def tell(connection: Store, number: int) -> None:
            more = [PutRegister(f"{number}/{part}", 1, None) for part in range(number % 5)]
            await connection.commit([Notice(1.0, "info", str(number)), *more])

        telling = asyncio.gather(*(tell((store, other)[number % 2], number) for number in range(60)))
        while not telling.done():
            await read_on()
            await asyncio.sleep(0)
        await telling
        while await read_on():
            pass
        assert sorted(int(message) for message in read) == list(range(60))


_PROGRAM = Path(__file__).with_name("store_process.py")


async def _line(process: Process) -> str:
    """Return the next line of its output; an empty one if it has ended, or was killed within a line."""
    assert process.stdout is not None
    line = (await process.stdout.readline()).decode()
    return line[:-1] if line.endswith("\n") else ""


@asynccontextmanager
async def _process(tests: StoreTests, store: Store, job: str, name: str) -> AsyncIterator[Process]:
    """A process that has opened the store and waits for the signal to begin."""
    opener = await tests.process_opener(store)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    arguments = (sys.executable, "-P", str(_PROGRAM), opener.function, opener.address, job, name)
    process = await asyncio.create_subprocess_exec(*arguments, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=environment)
    try:
        line = await _line(process)
        if line != "ready":
            raise AssertionError(f"the other process could not open the store: {await _ended(process)}")
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def _ended(process: Process) -> str:
    """Wait for its end, and return its errors."""
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


async def _output_of(process: Process) -> list[str]:
    lines = []
    while line := await _line(process):
        lines.append(line)
    complaint = await _ended(process)
    assert process.returncode == 0, complaint
    return lines


class ProcessTests(StoreTests):
    """Tests of several processes."""

    async def test_two_processes_that_count_together_lose_nothing(self, store: Store) -> None:
        async with _process(self, store, "count", "a") as first, _process(self, store, "count", "b") as second:
            await _begin(first, second)
            outputs = await asyncio.gather(_output_of(first), _output_of(second))
        assert [len(lines) for lines in outputs] == [50, 50]
        assert await store.register("counted") == ("counted", 100, 100)

    async def test_two_processes_share_the_work_and_do_nothing_twice(self, store: Store) -> None:
        await added(store, *(a_run(number) for number in range(40)))
        async with _process(self, store, "work", "kitchen") as first, _process(self, store, "work", "garage") as second:
            await _begin(first, second)
            mine, theirs = await asyncio.gather(_output_of(first), _output_of(second))
        assert max(Counter([*mine, *theirs]).values()) == 1
        runs = await store.find(Query())
        assert ids(runs) == sorted([*mine, *theirs])
        assert {run.status for run in runs} == {COMPLETED}
        assert [run.output["by"] for run in runs] == ["kitchen" if run.id in mine else "garage" for run in runs]
        assert {run.epoch for run in runs} == {1}
        assert await store.register("completed") == ("completed", 40, 40)

    async def test_acknowledged_commits_survive_kill_9_and_none_is_half_done(self, store: Store) -> None:
        for life, enough in enumerate((5, 60)):
            name = "abc"[life]
            async with _process(self, store, "write", name) as process:
                await _begin(process)
                lines = [await _line(process) for _ in range(enough)]
                process.kill()
                while line := await _line(process):  # output from before it died
                    lines.append(line)
                assert (await _ended(process)) == ""
            assert all(lines)
            await self._written_whole(store, name, lines)
            # no lock of the dead process blocks others
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
        # at one instant: a server may still finish a commit of the dead client while we read
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
        notices = [line["notice"] for line in lines if "notice" in line]
        assert sorted(notice["message"] for notice in notices if notice["device"] == name) == expected
        for run in runs:
            assert await store.blob(run.input["$blob"]) == run.id.encode()
