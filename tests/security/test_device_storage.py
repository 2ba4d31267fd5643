"""A device at a gateway cannot fill the disk: limits of logs, results and notices hold where they arrive."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator
from typing import Any

import pytest

from asterism.base.http_limits import RequestRefused
from asterism.core.attempt_log import AttemptLog
from asterism.core.run import transitions
from asterism.core.run.run import Grant
from asterism.fleet.monitor import Monitor
from asterism.fleet.retention import BLOB_AGE
from asterism.gateway import device_storage
from asterism.gateway.device_storage import HOUR, DeviceFiles, DeviceStorage
from asterism.gateway.gateway_messages import MOST_CHUNKS, GatewayRefusal
from asterism.store.memory import MemoryStore
from asterism.store.protocol import PutLog, StoredChunk
from tests.async_tests import async_fixture
from tests.fleet.fleet_scenes import Stage, staged
from tests.security.test_device_identity import access, ask, at_work, completion

pytestmark = pytest.mark.virtual_time

LIMIT = 10_000


@async_fixture
async def stage() -> AsyncIterator[Stage]:
    async with staged("gateway") as stage:
        await stage.person.configure(log_limit=LIMIT, large=1000, most=5000, device_bytes=20_000)
        yield stage


def output(token: str, first: int, text: str) -> dict[str, Any]:
    log = {"chunks": [[first, [[1.0, "stdout", text]]]], "drop": None}
    return {"reports": [{"grant": token, "progress": None, "tail": "", "log": log}]}


async def stored(stage: Stage, run: str) -> int:
    return sum(len(text) for chunk in await stage.store.log(run) for _, _, text in chunk.value)


async def flood(stage: Stage, *, forget: bool = False) -> str:
    """A device sends a thousand times the limit of the log of its attempt. Returns the run."""
    device, run, token = await at_work(stage, "lab-1")
    bearer = await access(stage, "lab-1", device.session)
    assert stage.gateway is not None
    for number in range(1, 1001):
        if forget and number % 100 == 0:  # another server, or this one after a restart
            stage.gateway._storage._attempts.clear()
        await ask(stage, "output", output(token, number, "x" * LIMIT), bearer)
        await asyncio.sleep(0.0)  # each message is a step of its own
    return run.id


@pytest.mark.parametrize("forget", [False, True])
async def test_the_log_of_an_attempt_has_a_limit_whatever_a_device_sends(
    stage: Stage, caplog: pytest.LogCaptureFixture, forget: bool
) -> None:
    run = await flood(stage, forget=forget)
    assert LIMIT < await stored(stage, run) <= 2 * (LIMIT + device_storage.LONGEST_LINE)
    assert f"device lab-1 sent more of the log of run {run} than the limit of 10,000 bytes" in caplog.text


@pytest.mark.long
async def test_without_the_limit_a_device_stores_any_log(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ablation."""

    async def whole(self: DeviceStorage, device: str, part: PutLog) -> PutLog:
        return part

    monkeypatch.setattr(DeviceStorage, "log_part", whole)
    assert await stored(stage, await flood(stage)) == 1000 * LIMIT


async def test_a_device_that_keeps_to_the_limit_loses_no_line(stage: Stage) -> None:
    """Chunks are dropped after others have come, and many may be on their way at once."""
    store, log = MemoryStore(), AttemptLog(LIMIT)
    storage = DeviceStorage(store, stage.person.clock, stage.person.settings)
    for number in range(2000):
        log.add(1.0, "stdout", "\n".join(f"{number} {'é' * (number % 97)}" for _ in range(number % 7 + 1)))
        if number % 13 == 0:
            update = log.take()
            assert update is not None
            chunks = [StoredChunk(1, chunk.first, chunk.line_count, chunk.to_json()) for chunk in update.chunks]
            part = PutLog("r1", 1, chunks, update.drop)
            assert (await storage.log_part("lab-1", part)).chunks == chunks


async def test_a_chunk_without_lines_is_not_free(stage: Stage) -> None:
    device, run, token = await at_work(stage, "lab-1")
    bearer = await access(stage, "lab-1", device.session)
    for first in range(0, 6_000, MOST_CHUNKS):
        log = {"chunks": [[first + number, []] for number in range(MOST_CHUNKS)], "drop": None}
        await ask(stage, "output", {"reports": [{"grant": token, "progress": None, "tail": "", "log": log}]}, bearer)
        await asyncio.sleep(0)
    assert MOST_CHUNKS < len(await stage.store.log(run.id)) < 4 * MOST_CHUNKS


async def test_a_part_of_a_log_has_so_many_chunks(stage: Stage) -> None:
    """They are counted before they are read: a message of megabytes would keep the server busy for seconds."""
    device, run, token = await at_work(stage, "lab-1")
    bearer = await access(stage, "lab-1", device.session)
    log = {"chunks": [[number, []] for number in range(MOST_CHUNKS + 1)], "drop": None}
    await ask(stage, "output", {"reports": [{"grant": token, "progress": None, "tail": "", "log": log}]}, bearer)
    assert await stage.store.log(run.id) == []


# -- results -----------------------------------------------------------------------------------------------------------


async def put(stage: Stage, bearer: str, number: int) -> str:
    assert stage.gateway is not None
    answer = await stage.gateway.answer("blob", bearer, f'"{number:04}{"x" * 4000}"'.encode())
    return str(answer["blob"]).partition(".")[0]


async def test_results_that_no_run_refers_to_are_bounded_and_go(stage: Stage) -> None:
    device, run, token = await at_work(stage, "lab-1")
    bearer = await access(stage, "lab-1", device.session)
    names = [await put(stage, bearer, number) for number in range(5)]
    with pytest.raises(RequestRefused, match="device lab-1 has stored 20,000 bytes of results within an hour"):
        await put(stage, bearer, 5)
    [answer] = (await ask(stage, "steps", completion(token, "y" * 4000), bearer))["steps"]
    assert answer["error"] == "unavailable", "the device keeps the result, and sends it again"
    other, _, _ = await at_work(stage, "lab-2")
    await put(stage, await access(stage, "lab-2", other.session), 99)  # its limit is its own
    await asyncio.sleep(HOUR / 4)
    bearer = await access(stage, "lab-1", device.session)
    assert (await ask(stage, "steps", completion(token, "y" * 4000), bearer))["steps"] == [{}]
    await Monitor(stage.person, "monitor")._prune(stage.store.clock())
    assert all([await stage.store.blob(name) for name in names]), "a run may still come that refers to them"
    await asyncio.sleep(BLOB_AGE)
    await Monitor(stage.person, "monitor")._prune(stage.store.clock())
    assert not any([await stage.store.blob(name) for name in names])
    assert await stage.person.output(await stage.read(run)) == "y" * 4000


async def test_one_result_is_accepted_however_small_the_limit_is(stage: Stage) -> None:
    await stage.person.configure(device_bytes=1)
    await asyncio.sleep(60.0)  # settings are read again
    device, _, token = await at_work(stage, "lab-1")
    bearer = await access(stage, "lab-1", device.session)
    assert (await ask(stage, "steps", completion(token, "y" * 4000), bearer))["steps"] == [{}]


# -- notices -----------------------------------------------------------------------------------------------------------


async def repeat_health(stage: Stage, *reasons: str | None) -> list[str]:
    """A device reports its health a hundred times over. Returns the kinds of the notices."""
    device = await stage.device("lab-1")
    bearer = await access(stage, "lab-1", device.session)
    for _ in range(100):
        for why in reasons:
            with contextlib.suppress(RequestRefused):
                await ask(stage, "health", {"why": why}, bearer)
    return [
        notice.kind for _, notice in await stage.store.notices(limit=1000) if notice.kind in ("suspended", "resumed")
    ]


async def test_health_that_does_not_change_is_one_notice(stage: Stage) -> None:
    assert await repeat_health(stage, "w" * 1000) == ["suspended"]


async def test_a_device_that_changes_its_health_all_the_time_fills_no_disk(stage: Stage) -> None:
    assert len(await repeat_health(stage, "w" * 1000, None)) == device_storage.NOTICES_PER_HOUR
    device = await stage.device("lab-2")
    await ask(stage, "health", {"why": "its limit is its own"}, await access(stage, "lab-2", device.session))


async def test_without_the_limit_each_change_of_health_is_a_notice(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ablation."""
    monkeypatch.setattr(DeviceStorage, "admit_notice", lambda self, device: None)
    assert len(await repeat_health(stage, "w" * 1000, None)) == 200


@pytest.mark.parametrize("guarded", [True, False], ids=["guarded", "ablation"])
async def test_a_late_result_that_is_sent_again_is_one_notice(
    stage: Stage, guarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not guarded:
        monkeypatch.setattr(DeviceStorage, "add_late_notice", lambda self, device, grant: True)
    device, run, token = await at_work(stage, "lab-1")
    await stage.person.ledger.change(run.id, lambda r: transitions.lose(r, stage.store.clock(), "silent"))
    bearer = await access(stage, "lab-1", device.session)
    for _ in range(20):
        [answer] = (await ask(stage, "steps", completion(token), bearer))["steps"]
        assert answer["error"] == "fenced"
    assert len(await stage.notices("late")) == (1 if guarded else 20)


async def test_a_device_that_is_gone_leaves_no_lock(stage: Stage) -> None:
    files = DeviceFiles(stage.person, DeviceStorage(stage.store, stage.person.clock, stage.person.settings))

    async def ask_for(name: str) -> None:
        with pytest.raises(GatewayRefusal):
            await files.check_kept(name, Grant("no such run", "session", 1), "ab" * 32)

    def locks() -> int:
        return sum(isinstance(known, asyncio.Lock) for known in gc.get_objects())

    await ask_for("box")
    before = locks()
    for number in range(50):
        await ask_for(f"box-{number}")
    assert locks() < before + 50
