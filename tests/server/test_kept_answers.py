"""Requests with an Idempotency-Key are done once, whatever happens to their answers."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from asterism.api.credentials import Credentials
from asterism.base.listen_address import ListenAddress
from asterism.core.run.work import Workflow
from asterism.fleet.fleet import Fleet
from asterism.server import kept_answers
from asterism.server.http_service import http_service
from asterism.server.kept_answers import KEPT, PREFIX, WRITE_DELAY
from asterism.store.memory import MemoryStore
from asterism.store.protocol import PutRegister
from asterism.store.store_errors import StoreUnavailable
from tests.server.server_scenes import ServerScene, server_scene

CREATE = {"workflow": "echo"}


async def scene_with_workflow(scene: ServerScene) -> None:
    await scene.fleet.workflows.add(Workflow("echo", shell="echo"))


async def number_of_runs(client: Any) -> int:
    return len((await client.get("/api/v1/runs")).json()["items"])


async def test_a_repeat_gets_the_answer_of_the_first() -> None:
    async with server_scene() as scene, scene.client(**{"idempotency-key": "k1"}) as client:
        await scene_with_workflow(scene)
        first = await client.post("/api/v1/runs", json=CREATE)
        again = await client.post("/api/v1/runs", json=CREATE)
        assert (first.status_code, again.status_code) == (201, 201)
        assert first.json() == again.json()
        assert again.headers["idempotent-replayed"] == "true"
        assert await number_of_runs(client) == 1


async def test_without_the_record_a_repeat_would_create_a_second_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ablation."""

    async def forgets(*_: object) -> None:
        return None

    monkeypatch.setattr(kept_answers.KeptAnswers, "_begin", forgets)
    async with server_scene() as scene, scene.client(**{"idempotency-key": "k1"}) as client:
        await scene_with_workflow(scene)
        for _ in range(2):
            assert (await client.post("/api/v1/runs", json=CREATE)).status_code == 201
        assert await number_of_runs(client) == 2


async def test_a_refusal_is_repeated_too() -> None:
    async with server_scene() as scene, scene.client(**{"idempotency-key": "k1"}) as client:
        first = await client.post("/api/v1/runs", json=CREATE)
        await scene_with_workflow(scene)
        again = await client.post("/api/v1/runs", json=CREATE)
        assert (first.status_code, again.status_code) == (404, 404)
        assert first.json() == again.json()


async def test_a_key_is_for_one_request_of_one_credential() -> None:
    async with server_scene() as scene, scene.client(**{"idempotency-key": "k1"}) as client:
        await scene_with_workflow(scene)
        assert (await client.post("/api/v1/runs", json=CREATE)).status_code == 201
        other = await client.post("/api/v1/runs", json={**CREATE, "label": "b"})
        assert other.status_code == 422
        assert other.json()["type"].endswith(":key-reused")
        assert "nothing was done" in other.json()["detail"]
        assert await number_of_runs(client) == 1
        async with scene.client(**{"idempotency-key": "k1"}) as another:
            assert (await another.post("/api/v1/runs", json=CREATE)).status_code == 201
            assert await number_of_runs(another) == 2


@pytest.mark.parametrize("key", ["", "a" * 201, "caf\xe9"])
async def test_a_key_that_is_not_valid_is_refused(key: str) -> None:
    async with server_scene() as scene, scene.client() as client:
        await scene_with_workflow(scene)
        headers = [(b"idempotency-key", key.encode("latin-1"))]
        answer = await client.post("/api/v1/runs", json=CREATE, headers=headers)
        assert answer.status_code == 400
        assert await number_of_runs(client) == 0


@pytest.mark.virtual_time
async def test_a_repeat_waits_for_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    async with server_scene() as scene, scene.client(**{"idempotency-key": "k1"}) as client:
        await scene_with_workflow(scene)
        create, begun = type(scene.fleet).create, asyncio.Event()

        async def slow(*arguments: Any, **named: Any) -> Any:
            begun.set()
            await asyncio.sleep(5)
            return await create(*arguments, **named)

        monkeypatch.setattr(type(scene.fleet), "create", slow)
        first = asyncio.create_task(client.post("/api/v1/runs", json=CREATE))
        await begun.wait()
        again = await client.post("/api/v1/runs", json=CREATE)
        assert (await first).json() == again.json()
        assert await number_of_runs(client) == 1


async def test_after_a_crash_in_the_middle_the_outcome_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    async with server_scene() as scene, scene.client(**{"idempotency-key": "k1"}) as client:
        await scene_with_workflow(scene)

        async def crash(*arguments: Any, **named: Any) -> Any:
            raise StoreUnavailable("gone")

        with monkeypatch.context() as patch:
            patch.setattr(type(scene.fleet), "create", crash)
            lost = await client.post("/api/v1/runs", json=CREATE)
            assert (lost.status_code, lost.json()["type"].rpartition(":")[2]) == (504, "answer-lost")
        again = await client.post("/api/v1/runs", json=CREATE)
        assert again.status_code == 504
        assert "it is unknown whether it was done" in again.json()["detail"]
        assert await number_of_runs(client) == 0


@pytest.mark.virtual_time
async def test_a_repeat_at_another_server_waits_and_then_says_that_it_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with server_scene() as scene, scene.client(**{"idempotency-key": "k1"}) as client:
        monkeypatch.setattr(scene.fleet.store, "clock", asyncio.get_running_loop().time)  # as virtual as the waits
        await scene_with_workflow(scene)
        assert (await client.post("/api/v1/runs", json=CREATE)).status_code == 201
        await asyncio.sleep(2 * WRITE_DELAY)
        [record] = await scene.fleet.store.registers(PREFIX)
        crashed = {"at": scene.fleet.store.clock(), "sha256": record.value["sha256"], "server": "another"}
        await scene.fleet.store.commit([PutRegister(record.key, crashed, record.revision)])
        again = asyncio.create_task(client.post("/api/v1/runs", json=CREATE))
        await asyncio.sleep(3)
        assert not again.done()
        answered = record.value | {"at": scene.fleet.store.clock()}
        [record] = await scene.fleet.store.registers(PREFIX)
        await scene.fleet.store.commit([PutRegister(record.key, answered, record.revision)])
        assert (await again).status_code == 201
        [record] = await scene.fleet.store.registers(PREFIX)
        await scene.fleet.store.commit([PutRegister(record.key, crashed, record.revision)])
        assert (await client.post("/api/v1/runs", json=CREATE)).status_code == 504


async def test_an_answer_that_is_large_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_answers, "LARGEST_KEPT", 10)
    async with server_scene() as scene, scene.client(**{"idempotency-key": "k1"}) as client:
        await scene_with_workflow(scene)
        assert (await client.post("/api/v1/runs", json=CREATE)).status_code == 201
        again = await client.post("/api/v1/runs", json=CREATE)
        assert (again.status_code, again.json()["type"].rpartition(":")[2]) == (409, "answer-not-kept")
        assert await number_of_runs(client) == 1


async def sent(client: Any, *keys: str) -> list[Any]:
    """The answers to the same request with these keys."""
    answers = [await client.post("/api/v1/runs", json=CREATE, headers={"idempotency-key": key}) for key in keys]
    assert {answer.status_code for answer in answers} == {201}
    return answers


class Later:
    """The clock of a store, which a test puts forward."""

    def __init__(self, store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self._clock, self._seconds = store.clock, 0.0
        monkeypatch.setattr(store, "clock", lambda: self._clock() + self._seconds)

    def by(self, seconds: float) -> None:
        self._seconds += seconds


async def test_old_answers_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_answers, "MOST_KEYS", 10)
    async with server_scene() as scene, scene.client() as client:
        await scene_with_workflow(scene)
        later = Later(scene.fleet.store, monkeypatch)
        for number in range(25):
            await sent(client, f"k{number}")
            later.by(kept_answers.FRESH)
        assert len(await scene.fleet.store.registers(PREFIX)) <= 10 + 1
        later.by(KEPT)
        await sent(client, "k24")
        assert len(await scene.fleet.store.registers(PREFIX)) == 1
        assert await number_of_runs(client) == 26


@pytest.mark.parametrize("guarded", [True, False], ids=["guarded", "ablation"])
async def test_no_answer_is_removed_that_a_client_may_ask_for(guarded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_answers, "MOST_KEYS", 10)
    if not guarded:
        monkeypatch.setattr(kept_answers, "FRESH", 0.0)
    async with server_scene() as scene, scene.client() as client:
        await scene_with_workflow(scene)
        later = Later(scene.fleet.store, monkeypatch)
        for number in range(30):
            await sent(client, f"k{number}")
            later.by(1.0)  # clients repeat for 30 seconds
        [again] = await sent(client, "k0")
        assert ("idempotent-replayed" in again.headers) == guarded
        assert await number_of_runs(client) == (30 if guarded else 31)


async def test_answers_of_a_credential_that_is_not_used_any_more_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with server_scene() as scene, scene.client() as client:
        await scene_with_workflow(scene)
        await sent(client, "k1", "k2")
        store = scene.fleet.store
        Later(store, monkeypatch).by(KEPT + 1)
        async with scene.client("operate") as other:
            await sent(other, "k3")
        assert len(await store.registers(PREFIX)) == 1


@pytest.mark.parametrize("damaged", [{}, [], {"at": "soon"}, {"at": 10**400, "sha256": 7}], ids=str)
async def test_a_damaged_record_stops_its_own_key_only(damaged: Any) -> None:
    async with server_scene() as scene, scene.client() as client:
        await scene_with_workflow(scene)
        await sent(client, "k1")
        [record] = await scene.fleet.store.registers(PREFIX)
        await scene.fleet.store.commit([PutRegister(record.key, damaged, record.revision)])
        await sent(client, "k2")
        again = await client.post("/api/v1/runs", json=CREATE, headers={"idempotency-key": "k1"})
        assert again.status_code == 422
        assert await number_of_runs(client) == 2


async def test_answers_of_one_moment_are_written_in_one_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    async with server_scene() as scene, scene.client() as client:
        await scene_with_workflow(scene)
        store, commits = scene.fleet.store, list[list[str]]()
        commit = store.commit

        async def counted(writes: Any) -> None:
            answers = [
                write.key for write in writes if isinstance(write, PutRegister) and "status" in (write.value or {})
            ]
            if answers:
                commits.append(answers)
            await commit(writes)

        monkeypatch.setattr(store, "commit", counted)
        sent = [client.post("/api/v1/runs", json=CREATE, headers={"idempotency-key": f"k{n}"}) for n in range(5)]
        first = await asyncio.gather(*sent)
        sent = [client.post("/api/v1/runs", json=CREATE, headers={"idempotency-key": f"k{n}"}) for n in range(5)]
        again = await asyncio.gather(*sent)  # they wait until the answers are in the store
        assert [answer.json() for answer in first] == [answer.json() for answer in again]
        assert [len(answers) for answers in commits] == [5]


async def test_the_answers_of_the_last_requests_are_kept_when_the_server_stops() -> None:
    async with Fleet(MemoryStore(), by="server") as fleet:
        await fleet.workflows.add(Workflow("echo", shell="echo"))
        token = (await Credentials(fleet.store).create("ann", ["admin"], by="test")).token
        headers = {"authorization": f"Bearer {token}", "idempotency-key": "k1"}
        async with (
            http_service(fleet, ListenAddress("127.0.0.1", 0)) as server,
            httpx.AsyncClient(base_url=server.url, headers=headers) as client,
        ):
            assert (await client.post("/api/v1/runs", json=CREATE)).status_code == 201
        [record] = await fleet.store.registers(PREFIX)
        assert record.value["status"] == 201
