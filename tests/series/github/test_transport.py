"""The transport: TLS, odd owners, queries with lost replies, and the files of a cache."""

from __future__ import annotations

import asyncio
import gzip
import os

import pytest
from githubkit import TokenAuthStrategy

from asterism.series.github.github_client import CachedResponse, Connection, Credentials, ResponseCache, ResponseLost
from asterism.series.github.github_register import BadRepository, parse_repository
from asterism.series.register import RegisterUnavailable
from tests.series.github.github_fixtures import SERIES, opened, sync, world_of
from tests.series.github.github_server import Faults, GitHubServer


@pytest.mark.parametrize(
    ("address", "verified"),
    [
        ("https://ghe.example/api/v3", True),
        ("HTTPS://ghe.example/api/v3", True),
        ("Https://ghe.example", True),
        ("http://127.0.0.1:8080", False),
    ],
)
def test_tls_is_verified_in_whatever_letters_it_is_written(address, verified):
    made = Connection(address, Credentials("t"), "acme", "rocket")._make(TokenAuthStrategy("t"))
    assert (made.config.ssl_verify is not False) is verified


async def test_a_response_that_is_compressed_twice_is_refused():
    """Whether the request took effect is unknown, as with any response that does not arrive whole."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = gzip.compress(gzip.compress(bytes(1 << 20)))
        head = f"HTTP/1.1 200 OK\r\ncontent-encoding: gzip, gzip\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        connection = Connection(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", Credentials("t"), "a", "r")
        with pytest.raises(ResponseLost, match="compressed 2 times"):
            await connection.send("GET", "/issues", None, None, {})
        await connection.close()


def test_an_owner_that_an_enterprise_manages_has_an_underscore():
    assert parse_repository("alice_acme/rocket") == ("alice_acme", "rocket")
    for wrong in ("_acme/rocket", "acme/..", "acme", "ac me/rocket"):
        with pytest.raises(BadRepository):
            parse_repository(wrong)


def test_a_query_whose_replies_all_get_lost_is_out_of_reach_and_not_unsure():
    """It changes nothing: who takes it for a change that may have happened tries until the series is contended."""
    with GitHubServer(world_of(), listening=True) as server:
        sync(server)
        server.faults = Faults(lose=1.0, only=lambda method, path: path == "/graphql")

        async def scene() -> None:
            register = opened(server)

            async def sleep(seconds: float) -> None:
                return None

            register.client._sleep = sleep
            with pytest.raises(RegisterUnavailable, match="not reachable"):
                await register.read(SERIES)
            await register.close()

        asyncio.run(scene())


def test_a_cache_that_cannot_be_written_leaves_nothing_behind(tmp_path, monkeypatch):
    cache = ResponseCache(tmp_path / "cache.json")
    cache.put_response("/issues", CachedResponse("etag", [], None))

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        cache.save()
    assert list(tmp_path.iterdir()) == []
    cache.save()
    assert [path.name for path in tmp_path.iterdir()] == ["cache.json"]
