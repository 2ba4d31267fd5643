"""An App as the credentials: its installation is found, and its tokens are renewed."""

from __future__ import annotations

import datetime
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

import githubkit.cache.mem_cache as memory
import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from asterism.series.github.github_register import open_github
from asterism.series.github.sync import SyncService
from asterism.series.register import RegisterUnavailable
from tests.series.github.github_fixtures import assigned, environ, merged, service_of, world_of
from tests.series.github.github_server import TOKEN, GitHubServer

ASKED_FOR_ONE = "/app/installations/7/access_tokens"


@pytest.fixture(scope="module")
def key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


@pytest.fixture(scope="module", autouse=True)
def keys_are_checked_once() -> Iterator[None]:
    """Each token is signed with a key that was read anew, and to check a key takes 100 ms."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jwt.algorithms, "load_pem_private_key", cache(jwt.algorithms.load_pem_private_key))
        yield


@pytest.fixture
def server(key: rsa.RSAPrivateKey) -> Iterator[GitHubServer]:
    with GitHubServer(world_of(), listening=True) as running:
        running.app_key = key.public_key()
        yield running


def as_app(server: GitHubServer, key: rsa.RSAPrivateKey) -> dict[str, str]:
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    return {
        "GITHUB_API_URL": server.url,
        "GITHUB_APP_ID": "77",
        "GITHUB_APP_PRIVATE_KEY": pem.replace("\n", "\\n"),
    }


@asynccontextmanager
async def staying(server: GitHubServer, key: rsa.RSAPrivateKey) -> AsyncIterator[SyncService]:
    """A service that stays up."""
    register = open_github("acme/rocket", environ=as_app(server, key))
    try:
        yield service_of(register)
    finally:
        await register.close()


def tokens_asked_for(server: GitHubServer) -> int:
    return [path for _, path, _ in server.log].count(ASKED_FOR_ONE)


def refused(server: GitHubServer) -> int:
    return [status for _, _, status in server.log].count(401)


def take_back(server: GitHubServer) -> None:
    """No token of an installation is good any more."""
    server.call(lambda world: [server.tokens.pop(token) for token in list(server.tokens) if token != TOKEN])


async def test_an_app_finds_its_installation_and_works_with_one_token(server, key):
    async with staying(server, key) as service:
        [report] = (await service.sync()).series
        assert report.assigned
    assert tokens_asked_for(server) == 1


async def test_a_service_that_outlives_its_token_gets_another_before_it_ends(server, key, monkeypatch):
    passed = datetime.timedelta(0)

    class Later(datetime.datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.datetime.now(tz) + passed

    monkeypatch.setattr(memory, "datetime", Later)
    async with staying(server, key) as service:
        await service.sync()
        for hour, number in enumerate((2, 3), 1):
            merged(server, number - 1)
            passed = datetime.timedelta(minutes=58 * hour)
            await service.sync()
            assert tokens_asked_for(server) == hour  # it is good for another minute
            passed = datetime.timedelta(minutes=59 * hour, seconds=hour)
            take_back(server)
            await service.sync()
            assert assigned(server) == [number]
    assert tokens_asked_for(server) == 3
    assert refused(server) == 0


@pytest.mark.long
async def test_a_token_that_ends_before_its_time_is_followed_by_another(server, key):
    async with staying(server, key) as service:
        await service.sync()
        merged(server, 1)
        take_back(server)
        await service.sync()
        assert assigned(server) == [2]
    assert tokens_asked_for(server) == 2
    assert refused(server) == 1


@pytest.mark.long
async def test_a_token_that_ends_in_the_middle_of_a_change_loses_and_doubles_nothing(server, key):
    """What is refused for its token has not happened, so it is sent again, also what may be sent only once."""
    async with staying(server, key) as service:
        await service.register.names()
        take_back(server)
        token = await service.register.swap("OPS-1", None, "one", "the first")
        take_back(server)
        await service.register.swap("OPS-1", token, "two", "the second")
        assert [change.message for change in await service.register.history("OPS-1", 9)] == ["the second", "the first"]
    assert refused(server) == 2


async def test_an_app_whose_tokens_are_all_refused_is_told_and_not_asked_for_ever(server, key):
    async with staying(server, key) as service:
        await service.register.names()
        server.routes.known = lambda path, headers: path.startswith("/app/")  # type: ignore[method-assign]
        server.forget()
        with pytest.raises(RegisterUnavailable, match="refuses the credentials for acme/rocket: Bad credentials"):
            await service.register.names()
    assert (tokens_asked_for(server), refused(server)) == (1, 2)


async def test_an_app_that_was_uninstalled_is_told(server, key):
    async with staying(server, key) as service:
        await service.register.names()
        server.app_key = None
        take_back(server)
        with pytest.raises(RegisterUnavailable, match="refuses the credentials"):
            await service.register.names()


async def test_a_token_that_is_not_given_at_first_is_asked_for_again_and_nothing_is_in_doubt(server, key):
    """Its request failed, so the one that it was for did not leave: it is sent, also if it may be sent only once."""
    async with staying(server, key) as service:

        async def sleep(seconds: float) -> None:
            server.faults.broken = 0.0

        service.register.client._sleep = sleep
        await service.register.names()
        take_back(server)
        server.faults.only = lambda method, path: path == ASKED_FOR_ONE
        server.faults.broken = 1.0
        made = await service.register.client.send("POST", "issues", {"title": "one"}, repeatable=False)
        assert made["title"] == "one"
    assert [issue.title for issue in server.world.listed()].count("one") == 1


async def test_the_token_of_a_person_that_is_refused_is_asked_with_once(server):
    register = open_github("acme/rocket", environ={**environ(server), "GITHUB_TOKEN": "wrong"})
    with pytest.raises(RegisterUnavailable):
        await register.names()
    await register.close()
    assert refused(server) == 1


async def test_an_app_that_is_not_installed_is_told(server, key):
    server.app_key = rsa.generate_private_key(public_exponent=65537, key_size=2048).public_key()
    async with staying(server, key) as service:
        with pytest.raises(RegisterUnavailable, match="cannot find the installation"):
            await service.register.names()
