"""Wake-ups between processes that share a SQLite file: their effect, their files, and their failures."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from asterism.core.run import transitions
from asterism.store.protocol import ENDED, OFFERED, PutRegister, PutRun, Query, Watch
from asterism.store.sqlite import group_commit, wake_fifos
from asterism.store.sqlite.store import SqliteStore
from asterism.store.sqlite.wake_fifos import WakeFifos
from tests.forked_commands import ForkedProgram
from tests.laboratory.store_conformance.sample_records import a_run

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no FIFOs")

LONG = 60.0
"""Longer than any test waits for a wake-up, which comes at once."""


class Side:
    """One process of several on a store, as far as wake-ups go."""

    def __init__(self, store: Path) -> None:
        self.woken = asyncio.Event()
        self.times = 0
        self.fifos = WakeFifos(store, self._wake)

    def _wake(self) -> None:
        self.times += 1
        self.woken.set()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.db"
    path.touch(0o600)
    return path


def folder(store: Path) -> Path:
    return store.with_name("fleet.db.wake")


def names(store: Path) -> list[str]:
    return sorted(os.listdir(folder(store))) if folder(store).exists() else []


@asynccontextmanager
async def sides(store: Path, number: int = 2) -> AsyncIterator[list[Side]]:
    opened = [Side(store) for _ in range(number)]
    try:
        yield opened
    finally:
        for side in opened:
            side.fifos.close()


async def test_a_message_wakes_all_other_processes(store: Path) -> None:
    async with sides(store, 4) as (sender, listener, other, deaf):
        for side in (sender, listener, other):
            side.fifos.listen()
        sender.fifos.announce()
        await listener.woken.wait()
        await other.woken.wait()
        assert (sender.times, listener.times, other.times, deaf.times) == (0, 1, 1, 0)


async def test_messages_that_follow_closely_are_one(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = []
    monkeypatch.setattr(wake_fifos, "_write", lambda folder, name: sent.append(name))
    async with sides(store) as (sender, other):
        other.fifos.listen()
        for _ in range(500):
            sender.fifos.announce()
        assert len(sent) == 1
        sender.fifos.close()
        assert len(sent) == 2  # what was left for the next moment


async def test_messages_of_many_processes_are_followed_together(store: Path) -> None:
    async with sides(store, 50) as (other, *senders):
        other.fifos.listen()
        for sender in senders:
            sender.fifos.announce()
        await other.woken.wait()
        assert other.times == 1


# -- files -------------------------------------------------------------------------------------------------------------


async def test_only_the_owner_can_write_and_nothing_is_left(store: Path) -> None:
    async with sides(store) as both:
        for side in both:
            side.fifos.listen()
            side.fifos.listen()
        assert len(names(store)) == 2
        assert stat.S_IMODE(folder(store).stat().st_mode) == 0o700
        assert {stat.S_IMODE((folder(store) / name).stat().st_mode) for name in names(store)} == {0o600}
    assert not folder(store).exists()


async def test_without_a_watcher_nothing_is_made(store: Path) -> None:
    async with sides(store) as (sender, _):
        sender.fifos.announce()
    assert os.listdir(store.parent) == [store.name]


async def test_the_fifo_of_a_killed_process_is_removed_and_blocks_nobody(store: Path) -> None:
    async with sides(store) as (sender, other):
        other.fifos.listen()
        [living] = names(store)
        for name, age in (("dead", 3600.0), ("new", 0.0)):
            os.mkfifo(folder(store) / name, 0o600)
            os.utime(folder(store) / name, (time.time() - age,) * 2)
        sender.fifos.announce()
        assert names(store) == sorted([living, "new"])  # the new one may be opened in a moment
        os.unlink(folder(store) / "new")


async def test_a_full_fifo_blocks_nobody(store: Path) -> None:
    async with sides(store) as (sender, other):
        other.fifos.listen()
        [name] = names(store)
        fifo = os.open(folder(store) / name, os.O_WRONLY | os.O_NONBLOCK)
        with contextlib.suppress(BlockingIOError):
            while os.write(fifo, bytes(4096)):
                pass
        os.close(fifo)
        sender.fifos.announce()
        await other.woken.wait()


@pytest.mark.parametrize("planted", ["file", "link", "shared", "fifo"])
async def test_a_directory_that_is_not_ours_alone_is_not_used(planted: str, store: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(0o700)
    if planted == "file":
        folder(store).write_text("")
    elif planted == "link":
        folder(store).symlink_to(elsewhere)
    elif planted == "fifo":
        os.mkfifo(folder(store))
    else:
        folder(store).mkdir()
        folder(store).chmod(0o777)
    async with sides(store) as both:
        for side in both:
            side.fifos.listen()
            side.fifos.announce()
    assert os.listdir(elsewhere) == []
    assert names(store) == [] if planted == "shared" else True


async def test_what_is_not_a_fifo_gets_no_message(store: Path) -> None:
    async with sides(store) as (sender, other):
        other.fifos.listen()
        (folder(store) / "file").write_text("")
        (folder(store) / "link").symlink_to(store)
        sender.fifos.announce()
        assert (folder(store) / "file").read_text() == ""
        assert store.read_text() == ""
        for name in ("file", "link"):
            (folder(store) / name).unlink()


async def test_the_store_of_another_user_is_left_to_polling(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: store.stat().st_uid + 1)
    async with sides(store, 1) as [side]:
        side.fifos.listen()
        assert not folder(store).exists()


async def test_a_system_without_fifos_is_left_to_polling(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wake_fifos, "SUPPORTED", False)
    async with sides(store, 1) as [side]:
        side.fifos.listen()
        side.fifos.announce()
        assert not folder(store).exists()


async def test_a_directory_that_vanishes_meanwhile_is_made_again(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make, tries = os.mkfifo, []

    def vanish(*arguments: object, **options: object) -> None:
        tries.append(arguments)
        if len(tries) == 1:
            folder(store).rmdir()
        make(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "mkfifo", vanish)
    async with sides(store, 1) as [side]:
        side.fifos.listen()
        assert len(tries) == 2
        assert len(names(store)) == 1


# -- in a store --------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def two_stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[SqliteStore, SqliteStore]]:
    """Two processes, as it were, that hardly poll."""
    monkeypatch.setattr(group_commit, "POLL", 3600.0)
    here, there = [await SqliteStore.open(tmp_path / "fleet.db") for _ in range(2)]
    try:
        yield here, there
    finally:
        await here.close()
        await there.close()
    assert not folder(tmp_path / "fleet.db").exists()


async def watched(store: SqliteStore, topic: str) -> Watch:
    """A watch that has found nothing yet."""
    watch = store.watch(frozenset({topic}))
    await store.commit([PutRegister("anything", 1, None)])  # after the poll with which a watch begins
    await asyncio.sleep(0)
    return watch


async def test_a_commit_wakes_another_process_without_polling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with two_stores(tmp_path, monkeypatch) as (here, there):
        offered = await watched(here, OFFERED)
        await there.commit([PutRun(a_run(1), None)])
        assert await offered.wait(LONG)
        ended = here.watch(frozenset({ENDED}))
        await there.commit([PutRun(transitions.cancel(a_run(2), 5.0, "ann"), None)])
        assert await ended.wait(LONG)
        assert await here.run(a_run(2).id) is not None


async def test_without_messages_a_watch_waits_for_the_next_poll(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ablation of the test above."""
    monkeypatch.setattr(WakeFifos, "announce", lambda self: None)
    async with two_stores(tmp_path, monkeypatch) as (here, there):
        offered = await watched(here, OFFERED)
        await there.commit([PutRun(a_run(1), None)])
        assert not await offered.wait(0)
        here._writer.poll()
        assert await offered.wait(LONG)


@pytest.mark.parametrize("quick", [True, pytest.param(False, id="on a slow disk")])
async def test_a_message_is_followed_in_the_event_loop_if_the_file_is_quick(
    quick: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The way to a thread and back takes longer than to look, above all while the event loop is busy."""
    in_thread: list[bool] = []
    async with two_stores(tmp_path, monkeypatch) as (here, there):
        offered = await watched(here, OFFERED)
        poll = here._writer.poll

        def poll_in_thread() -> None:
            in_thread.append(True)
            poll()

        monkeypatch.setattr(here._writer, "poll", poll_in_thread)
        monkeypatch.setattr(here._writer, "_average", 0.0 if quick else 1.0)
        await there.commit([PutRun(a_run(1), None)])
        assert await offered.wait(LONG)
    assert bool(in_thread) is not quick


KILLED = """
import asyncio, sys
from asterism.store.sqlite.store import SqliteStore
async def main():
    store = await SqliteStore.open(sys.argv[1])
    watch = store.watch(frozenset({"offered"}))
    print("watching", flush=True)
    await asyncio.sleep(3600)
asyncio.run(main())
"""


@contextmanager
def watching_process(store: Path) -> Iterator[None]:
    """A process that watches a store, and is killed at the end of the block."""
    with ForkedProgram(KILLED, str(store), stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "watching\n"
            yield
        finally:
            process.kill()


@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.long)])
async def test_killed_watchers_delay_nobody_and_are_forgotten(kills: int, tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "fleet.db")
    for number in range(kills):
        with watching_process(store.path):
            await store.commit([PutRun(a_run(2 * number), None)])
        [left] = names(store.path)
        os.utime(folder(store.path) / left, (time.time() - 3600.0,) * 2)
        store._writer.fifos._sender._called_at = float("-inf")  # as after a pause
        await store.commit([PutRun(a_run(2 * number + 1), None)])
        assert names(store.path) == []
    assert len(await store.find(Query())) == 2 * kills
    await store.close()
