"""The server for peers: authentication, size and time limits, and refusals with a message."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from asterism.base.http_limits import Limits
from asterism.core.errors import AsterismError
from asterism.peers import peer_server
from asterism.peers.exchange import PeerUnreachable
from asterism.peers.registry import PeerRefused
from asterism.store.store_errors import StoreUnavailable
from tests.cli.peer_server_fixtures import MOST, Said, connected, sentence, serving_peer, trusting

# -- authentication ----------------------------------------------------------------------------------------------------


async def test_the_token_identifies_the_peer(tmp_path: Path) -> None:
    async with serving_peer(tmp_path) as scene:
        for name in ("laptop", "attic"):
            async with scene.caller(await scene.token(name)) as caller:
                message = {"peer": "someone else", "n": [1, "ü"]}
                assert await caller.send(message) == {"peer": name, "message": message}


async def test_a_wrong_token_is_refused_before_anything_is_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving_peer(tmp_path) as scene:
        right = await scene.token()
        for token in (right[:-1], right + "x", "nonsense"):
            async with scene.caller(token) as caller:
                with pytest.raises(PeerRefused, match="answered 401: unknown token"):
                    await caller.send({})
        assert scene.hearer.heard == 0
        assert [record.message for record in caplog.records if record.name == "asterism.peers"] == [
            "received a wrong token from 127.0.0.1"
        ]
        assert right not in caplog.text


@pytest.mark.parametrize("header", [None, "", "Bearer", "Basic YTpi", "bearer\tx"])
async def test_a_request_without_a_token_is_refused(tmp_path: Path, header: str | None) -> None:
    async with serving_peer(tmp_path) as scene:
        await scene.token()
        async with scene.client() as client:
            headers = {"authorization": header} if header is not None else {}
            for method, path in (("POST", "/v1/meet"), ("GET", "/v1/blobs/x"), ("PUT", "/v1/blobs/x")):
                answer = await client.request(method, path, headers=headers, content=b"{}")
                assert answer.status_code == 401
                assert "unknown token" in sentence(answer)
        assert scene.hearer.heard == 0


async def test_the_bearer_scheme_is_case_insensitive(tmp_path: Path) -> None:
    async with serving_peer(tmp_path) as scene:
        headers = {"authorization": f"bearer  {await scene.token()}"}
        async with scene.client() as client:
            assert (await client.post("/v1/meet", headers=headers, content=b"{}")).status_code == 200


async def test_wrong_tokens_do_not_lock_out_a_good_one_from_the_same_address(tmp_path: Path) -> None:
    async with serving_peer(tmp_path) as scene:
        async with scene.caller("wrong") as wrong, scene.caller(await scene.token()) as good:
            for _ in range(peer_server.MAX_FAILURES + 5):
                with pytest.raises((PeerRefused, PeerUnreachable)):
                    await wrong.send({})
            await good.send({})
        assert scene.hearer.heard == 1


async def test_too_many_wrong_tokens_have_to_wait(tmp_path: Path) -> None:
    async with serving_peer(tmp_path) as scene:
        right = await scene.token()
        async with scene.caller("wrong") as wrong, scene.caller(right) as good:
            for _ in range(peer_server.MAX_FAILURES):
                with pytest.raises(PeerRefused, match="401"):
                    await wrong.send({})
            with pytest.raises(PeerUnreachable, match=r"429: too many wrong tokens from \S+: wait 60 s"):
                await wrong.send({})
            async with scene.client("nonsense") as client:
                assert (await client.post("/v1/meet")).headers["retry-after"] == "60"
            scene.clock[0] += peer_server.FAILURE_WINDOW + 1
            await good.send({})
            with pytest.raises(PeerRefused, match="401"):
                await wrong.send({})
            await good.send({})


# -- invitations -------------------------------------------------------------------------------------------------------


async def test_an_invitation_can_be_exchanged_once(tmp_path: Path) -> None:
    async with serving_peer(tmp_path) as scene:
        invitation = await scene.invitation()
        async with scene.caller(invitation) as caller:
            with pytest.raises(PeerRefused, match="401: unknown token"):
                await caller.send({})
        async with scene.caller("secret", invitation) as guest:
            await guest.send({})
            await guest.send({})
        async with scene.caller(
            "secret", invitation
        ) as again:  # the answer was lost, or the guest was killed before it wrote
            await again.send({})
        async with scene.caller("another secret", invitation) as thief:
            with pytest.raises(PeerRefused, match="403: the invitation of laptop was already used"):
                await thief.send({})
        async with scene.caller(invitation) as thief:
            with pytest.raises(PeerRefused, match="401"):
                await thief.send({})
        assert scene.hearer.heard == 3


async def test_an_unused_invitation_expires(tmp_path: Path) -> None:
    async with serving_peer(tmp_path) as scene:
        used, unused = await scene.invitation("used", valid_for=60), await scene.invitation("unused", valid_for=60)
        async with scene.caller("a", used) as caller, scene.caller("b", unused) as other:
            await caller.send({})
            scene.clock[0] += 61
            await caller.send({})
            with pytest.raises(PeerRefused, match="403: the invitation of unused has expired: ask for a new one"):
                await other.send({})


async def test_a_new_invitation_replaces_an_unused_one(tmp_path: Path) -> None:
    async with serving_peer(tmp_path) as scene:
        first = await scene.invitation(valid_for=60)
        scene.clock[0] += 61
        second = await scene.invitation(valid_for=60)
        async with scene.caller("a", first) as early, scene.caller("b", second) as late:
            await late.send({})
            with pytest.raises(PeerRefused, match="401: unknown invitation"):
                await early.send({})


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"secret_sha256": 5}', b'{"secret_sha256": "xy"}', b'{"secret_sha256": NaN}']
)
async def test_an_invalid_secret_hash_is_refused(tmp_path: Path, body: bytes) -> None:
    async with serving_peer(tmp_path) as scene:
        invitation = await scene.invitation()
        async with scene.client(invitation) as client:
            assert (await client.post("/v1/accept", content=body)).status_code == 400
        assert (await scene.hearer.peers.get("laptop")).token_sha256 is None


async def test_a_removed_peer_is_refused(tmp_path: Path) -> None:
    async with serving_peer(tmp_path) as scene, scene.caller(await scene.token()) as caller:
        await caller.send({})
        await scene.hearer.peers.remove("laptop")
        with pytest.raises(PeerRefused, match="401"):
            await caller.send({})


# -- messages and blobs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[]", "a message has to be a JSON object"),
        (b"5", "a message has to be a JSON object"),
        (b'{"n": NaN}', "not JSON: invalid character"),
        (b'{"n": 1e999}', "not JSON: Number out of range"),
        (b'{"n": 1, "n": 2}', "a key occurs twice"),
        (b'{"n": "\\ud800"}', "not JSON"),
        (b'{"n": ' + b"[" * 200_000, "nested too deeply"),
        (b'{"n": ' + b"9" * 10_000 + b"}", "not JSON"),
    ],
)
async def test_an_invalid_body_is_refused_with_a_message(tmp_path: Path, body: bytes, why: str) -> None:
    async with serving_peer(tmp_path) as scene, scene.client(await scene.token()) as client:
        answer = await client.post("/v1/meet", content=body)
        assert answer.status_code == 400
        assert why in sentence(answer)


async def test_a_body_that_is_too_large_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_server, "MAX_MESSAGE_BYTES", 1000)
    async with serving_peer(tmp_path) as scene:
        async with scene.client(await scene.token()) as client:
            large = b'{"text": "' + b"x" * 1000 + b'"}'
            answer = await client.post("/v1/meet", content=large)
            assert (answer.status_code, sentence(answer)) == (413, "the body is too large: the limit is 1,000 bytes")
        async with scene.client(await scene.token("attic")) as client:
            sent = 0

            async def endless() -> AsyncIterator[bytes]:
                nonlocal sent
                while sent < 1_000_000_000:
                    sent += 100_000
                    yield b"x" * 100_000

            try:
                answer = await client.post("/v1/meet", content=endless())
                assert answer.status_code == 411
            except httpx.TransportError:  # it hung up, which is just as good
                pass
            assert sent < 100_000_000
        assert scene.hearer.heard == 0


async def test_a_client_that_hangs_up_is_not_an_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with serving_peer(tmp_path) as scene:
        token = await scene.token()
        _, writer = await connected(scene.url, trusting())
        head = f"POST /v1/meet HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\ncontent-length: 100\r\n\r\n{{"
        writer.write(head.encode())
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        async with scene.caller(token) as caller:  # the other request was answered before
            await caller.send({})
        assert scene.hearer.heard == 1
    assert not [record for record in caplog.records if record.name.startswith("asterism")]


@pytest.mark.parametrize("limits", [Limits(gap=0.05), Limits(head=1.0, rate=10_000_000)], ids=["pause", "pace"])
async def test_a_missing_body_times_out(tmp_path: Path, limits: Limits) -> None:
    async with serving_peer(tmp_path, limits) as scene:
        token = await scene.token()
        reader, writer = await connected(scene.url, trusting())
        head = f"POST /v1/meet HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n"
        writer.write(f"{head}content-length: 100\r\n\r\n{{".encode())
        status = await reader.readline()
        assert b" 408 " in status
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize(
    ("error", "status", "why"),
    [
        (PeerRefused("you are a copy of me"), 409, "you are a copy of me"),
        (AsterismError("there is no peer 'laptop'"), 409, "there is no peer 'laptop'"),
        (StoreUnavailable("/home/ann/kitchen.db is locked"), 503, "the store of this peer is unavailable"),
        (Said("a secret of the house"), 500, "internal error; see the log of this peer"),
    ],
)
async def test_errors_are_answered_without_internal_details(
    tmp_path: Path, error: Exception, status: int, why: str, caplog: pytest.LogCaptureFixture
) -> None:

    caplog.set_level(logging.WARNING)
    async with serving_peer(tmp_path) as scene:
        scene.hearer.error = error
        async with scene.client(await scene.token()) as client:
            answer = await client.post("/v1/meet", content=b"{}")
            assert (answer.status_code, sentence(answer)) == (status, why)
        assert str(error) in caplog.text


async def test_unknown_paths_and_methods_are_refused(tmp_path: Path) -> None:
    async with serving_peer(tmp_path) as scene, scene.client(await scene.token()) as client:
        for method, path, status in (("GET", "/", 404), ("GET", "/v1/meet", 405), ("DELETE", "/v1/blobs/x", 405)):
            answer = await client.request(method, path)
            assert (answer.status_code, sentence(answer)) == (
                status,
                f"{method} {path} is not part of the peer protocol",
            )
        assert "server" not in answer.headers


async def test_answers_are_json(tmp_path: Path) -> None:
    async with serving_peer(tmp_path) as scene, scene.client(await scene.token()) as client:
        answer = await client.post("/v1/meet", content=b'{"a": 1}')
        assert answer.headers["content-type"] == "application/x-ndjson"
        assert json.loads(answer.content) == {"peer": "laptop", "message": {"a": 1}}


# -- blobs -------------------------------------------------------------------------------------------------------------


async def test_blobs_are_sent_in_both_directions(tmp_path: Path) -> None:
    async with serving_peer(tmp_path) as scene:
        data = bytes(range(256)) * 10
        name = hashlib.sha256(data).hexdigest()
        scene.hearer.wanted = {name: len(data)}
        async with scene.caller(await scene.token()) as caller:
            await caller.send({"store": "store of laptop"})
            with pytest.raises(PeerRefused, match="404: this run has no blob"):
                await caller.fetch_blob(name, "r1")
            await caller.send_blob(name, data)
            assert await caller.fetch_blob(name, "r1") == data
            with pytest.raises(PeerRefused, match="409: the name is not that of the bytes"):
                await caller.send_blob(name, b"x" * len(data))
            with pytest.raises(PeerRefused, match="409: the blob has to have 2,560 bytes, not 3"):
                await caller.send_blob(name, b"xyz")
            with pytest.raises(PeerRefused, match="413: the body is too large: the limit is 40,000 bytes"):
                await caller.send_blob(name, b"x" * (8 * MOST + 1))


@pytest.mark.parametrize("store", ["", "store of attic"])
async def test_blobs_are_exchanged_only_with_the_bound_store(tmp_path: Path, store: str) -> None:
    async with serving_peer(tmp_path) as scene:
        scene.hearer.blobs, scene.hearer.wanted = {"ab" * 32: b"secret"}, {"ab" * 32: 6}
        await scene.token("attic")
        async with scene.client(await scene.token()) as client:
            headers = {"asterism-store": store} if store else {}
            for method in ("GET", "PUT"):
                answer = await client.request(method, f"/v1/blobs/{'ab' * 32}?run=r1", content=b"", headers=headers)
                assert (answer.status_code, b"secret" in answer.content) == (403, False)


async def test_an_unrequested_blob_is_refused_before_it_is_read(tmp_path: Path) -> None:
    """By its headers: otherwise a client could make it read 59 MB again and again."""
    async with serving_peer(tmp_path, most=60_000_000) as scene:
        token = await scene.token()
        scene.hearer.wanted = {"cd" * 32: 7}
        for blob, length, why in (("ab", 59_000_000, b"409"), ("cd", 59_000_000, b"409"), ("cd", 500_000_000, b"413")):
            reader, writer = await connected(scene.url, trusting())
            head = f"PUT /v1/blobs/{blob * 32} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n"
            writer.write(f"{head}asterism-store: store of laptop\r\ncontent-length: {length}\r\n\r\n".encode())
            assert why in await reader.readline()
            writer.close()
            await writer.wait_closed()
