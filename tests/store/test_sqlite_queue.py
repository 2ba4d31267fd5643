"""The queue in SQLite: runs are taken in short pages, and each offer is judged once."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from asterism.core.run import transitions
from asterism.core.run.run import Run
from asterism.store.protocol import PutRun, PutSession, TakeRequest
from asterism.store.sqlite import SqliteStore, queue, reads
from asterism.store.store_errors import StoreBusy, StoreUnavailable
from tests.store.sqlite_fixtures import KIND, KITCHEN, ME, held_up, opened, run

ANY: frozenset[str] = frozenset()


def take(offered: Run) -> Run:
    return transitions.take(offered, ME, 10_000.0)


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> list[queue.Page]:
    """Every page that is read."""
    made: list[queue.Page] = []
    perform = queue.TakeJob.perform

    def noted(self: queue.TakeJob, cursor: Any, alone: bool) -> None:
        made.append(self.page)
        perform(self, cursor, alone)

    monkeypatch.setattr(queue.TakeJob, "perform", noted)
    return made


async def offering(store: SqliteStore, *runs: Run) -> None:
    await store.commit([PutSession(KITCHEN, None), *(PutRun(new, None) for new in runs)])


async def test_a_run_at_the_head_is_taken_with_the_first_page(tmp_path: Path, pages: list[queue.Page]) -> None:
    async with opened(tmp_path / "fleet.db") as store:
        await offering(store, *(run(number) for number in range(3000)))
        taken = await store.take(TakeRequest("kitchen", ANY, 10_000.0, 500), take)
        assert [taken_run.id for taken_run in taken] == [f"run-{number:05}" for number in range(500)]
        assert len(pages) == 1


@pytest.mark.long
async def test_a_picky_device_finds_a_run_behind_thousands(tmp_path: Path, pages: list[queue.Page]) -> None:
    async with opened(tmp_path / "fleet.db") as store:
        rare = {3000: -1, 6000: -1, 8999: 1}
        flows = {number: "rare" if number in rare else "transcode" for number in range(9000)}
        await offering(
            store,
            *(
                run(number).changed(workflow=flow, priority=rare.get(number, number % 3))
                for number, flow in flows.items()
            ),
        )
        taken = await store.take(TakeRequest("kitchen", frozenset({KIND}), 10_000.0, 5), take)
        assert [taken_run.id for taken_run in taken] == ["run-08999", "run-03000", "run-06000"]
        assert 3 <= len(pages) <= 9
        assert max(page.size for page in pages) == queue.LARGEST_PAGE.size


async def test_each_offer_is_judged_once(tmp_path: Path, pages: list[queue.Page]) -> None:
    async with opened(tmp_path / "fleet.db") as store:
        await offering(store, *(run(number).changed(created_at=100.0 + number // 50) for number in range(2500)))
        judged: list[str] = []

        def refuse(offered: Run) -> Run | None:
            judged.append(offered.id)
            return None

        assert await store.take(TakeRequest("kitchen", ANY, 10_000.0, 3), refuse) == []
        assert judged == [f"run-{number:05}" for number in range(2500)]
        assert len(pages) > 2


async def test_only_more_urgent_runs_are_read(tmp_path: Path, pages: list[queue.Page]) -> None:
    async with opened(tmp_path / "fleet.db") as store:
        await offering(store, *(run(number).changed(priority=number // 300) for number in range(900)))
        judged: list[int] = []
        assert (
            await store.take(
                TakeRequest("kitchen", ANY, 10_000.0, 1, above=0), lambda offered: judged.append(offered.priority)
            )
            == []
        )
        assert sorted(judged) == [1] * 300 + [2] * 300
        pages.clear()
        assert await store.take(TakeRequest("kitchen", ANY, 10_000.0, 1, above=2), take) == []
        assert len(pages) == 1


async def test_others_write_between_two_pages(tmp_path: Path, pages: list[queue.Page]) -> None:
    async with opened(tmp_path / "fleet.db") as store:
        await offering(store, *(run(number) for number in range(2500)))
        written: list[int] = []
        loop = asyncio.get_running_loop()
        commits: list[asyncio.Task[None]] = []

        def commit() -> None:
            task = asyncio.create_task(store.commit([PutRun(run(9000), None)]))
            task.add_done_callback(lambda done: written.append(len(pages)))
            commits.append(task)

        def refuse(offered: Run) -> Run | None:
            if offered.id == "run-00000":
                loop.call_soon_threadsafe(commit)
            return None

        await store.take(TakeRequest("kitchen", ANY, 10_000.0, 1), refuse)
        await asyncio.gather(*commits)
        assert written[0] < len(pages)


async def test_runs_taken_before_the_store_became_unavailable_are_returned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path / "fleet.db") as store:
        await offering(store, *(run(number) for number in range(500)))
        do = store._writer.submit
        lost: list[bool] = []

        async def lost_later(job: Any) -> Any:
            if lost or job.page.after != queue.FIRST:
                raise StoreUnavailable("gone")
            return await do(job)

        monkeypatch.setattr(store._writer, "submit", lost_later)
        taken = await store.take(
            TakeRequest("kitchen", ANY, 10_000.0, 3),
            lambda offered: take(offered) if offered.id == "run-00001" else None,
        )
        assert [offered.id for offered in taken] == ["run-00001"]
        lost.append(True)
        with pytest.raises(StoreUnavailable, match="gone"):
            await store.take(TakeRequest("kitchen", ANY, 10_000.0, 3), take)


async def test_two_concurrent_takes_share_a_transaction_and_no_run(tmp_path: Path) -> None:
    async with opened(tmp_path / "fleet.db") as store:
        await offering(store, *(run(number) for number in range(20)))
        async with held_up(store):
            tasks = [asyncio.create_task(store.take(TakeRequest("kitchen", ANY, 10_000.0, 8), take)) for _ in range(3)]
        taken = [taken_run.id for task in tasks for taken_run in await task]
        assert sorted(taken) == [f"run-{number:05}" for number in range(20)]


async def test_a_request_for_no_runs_takes_none(tmp_path: Path, pages: list[queue.Page]) -> None:
    async with opened(tmp_path / "fleet.db") as store:
        await offering(store, run(1))
        assert await store.take(TakeRequest("kitchen", ANY, 10_000.0, 0), take) == []
        assert not pages


@pytest.mark.parametrize("looks", [True, pytest.param(False, id="without looking first")])
async def test_a_device_that_is_offered_nothing_does_not_wait_for_writers(
    looks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not looks:  # the ablation
        monkeypatch.setattr(reads, "any_offered", lambda cursor: True)
    async with opened(tmp_path / "fleet.db", busy_timeout=0.01) as store:
        await offering(store)
        monkeypatch.setattr(store._writer, "_average", 0.0)
        with contextlib.closing(sqlite3.connect(store.path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with contextlib.nullcontext() if looks else pytest.raises(StoreBusy):
                assert await store.take(TakeRequest("kitchen", ANY, 10_000.0, 5), take) == []
