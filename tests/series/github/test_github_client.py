"""The GitHub client: rate limits, lost replies, conditional requests, credentials."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from asterism.series.github.github_client import (
    Credentials,
    GitHubClient,
    NoCredentials,
    RequestRejected,
    credentials_from,
)
from asterism.series.github.github_register import BadRepository, GitHubRegister, open_github, parse_repository
from asterism.series.register import OutcomeUnknown, RateLimited, RegisterUnavailable
from tests.series.github.github_fixtures import environ, opened, service_of, world_of
from tests.series.github.github_server import Faults, GitHubServer, Limit


@pytest.fixture
def server() -> Iterator[GitHubServer]:
    """The client is tested with its transport."""
    with GitHubServer(world_of(), listening=True) as running:
        yield running


@asynccontextmanager
async def with_client(server: GitHubServer) -> AsyncIterator[tuple[GitHubClient, list[float]]]:
    """The client's pauses take no time; they are noted."""
    register = opened(server)
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    register.client._sleep = sleep
    try:
        yield register.client, slept
    finally:
        await register.close()


# -- limits ------------------------------------------------------------------------------------------------------------


async def test_a_secondary_limit_is_waited_for_as_long_as_it_says(server):
    server.secondary_next = 7
    async with with_client(server) as (client, slept):
        assert (await client.get("issues/1"))["number"] == 1
        assert slept == [7.0]


async def test_a_limit_that_takes_longer_than_the_patience_is_told(server):
    server.secondary_next = 3600
    async with with_client(server) as (client, slept):
        with pytest.raises(RateLimited) as told:
            await client.get("issues/1")
        assert (told.value.retry_after, slept) == (3600.0, [])


async def test_the_patience_is_for_one_piece_of_work_and_begins_anew_with_the_next(server):
    async with with_client(server) as (client, slept):
        for _ in range(2):
            client.begin_operation()
            server.secondary_next = 60
            await client.get("issues/1")
        server.secondary_next = 60
        with pytest.raises(RateLimited):
            await client.get("issues/1")
        assert slept == [60.0, 60.0]


async def test_a_limit_that_the_deadline_does_not_leave_time_for_is_told_at_once(server):
    register = opened(server, deadline=20.0)
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    register.client._sleep = sleep
    for asked, waits in ((10, True), (14, True), (20, False), (60, False)):
        server.secondary_next = asked
        if waits:
            await register.client.get("issues/1")
            continue
        with pytest.raises(RateLimited, match=f"accepts the next request in {asked} s"):
            await register.client.get("issues/1")
    assert slept == [10.0, 14.0]
    register.client._until -= 15.0  # most of the time is over
    server.secondary_next = 10
    with pytest.raises(RateLimited):
        await register.client.get("issues/1")
    register.client.begin_operation()
    server.secondary_next = 10
    await register.client.get("issues/1")
    assert slept == [10.0, 14.0, 10.0]
    await register.close()


async def test_a_secondary_limit_without_a_time_is_waited_for_a_minute(server):
    answer = server._answered

    def once(*args: Any) -> Any:
        server._answered = answer  # type: ignore[method-assign]
        return 403, {}, json.dumps({"message": "You have exceeded a secondary rate limit."}).encode()

    server._answered = once  # type: ignore[method-assign]
    async with with_client(server) as (client, slept):
        await client.get("issues/1")
        assert slept == [60.0]


async def test_a_primary_limit_is_waited_for_until_it_is_reset(server):
    server.limit = Limit(limit=5000, remaining=0, reset=time.time() + 80)
    async with with_client(server) as (client, slept):

        async def reset(seconds: float) -> None:
            slept.append(seconds)
            server.limit.reset = time.time() - 1

        client._sleep = reset
        await client.get("issues/1")
        assert 20 < slept[0] < 83


async def test_a_primary_limit_of_graphql_which_answers_200_is_waited_for_too(server):
    server.limit = Limit(limit=5000, remaining=0, reset=time.time() + 80)
    async with with_client(server) as (client, slept):

        async def reset(seconds: float) -> None:
            slept.append(seconds)
            server.limit = Limit()

        client._sleep = reset
        data, errors = await client.graphql('query { repository(owner: "acme", name: "rocket") { id } }', {})
        assert (data["repository"]["id"], errors) == ("R_4242", [])
        assert 20 < slept[0] < 83


async def test_nothing_more_is_sent_once_the_limit_is_known_to_be_used_up(server):
    server.limit = Limit(limit=5000, remaining=1, reset=time.time() + 3600)
    async with with_client(server) as (client, _):
        await client.get("issues/1")
        server.forget()
        with pytest.raises(RateLimited):
            await client.get("issues/2")
        assert server.log == []


async def test_what_has_not_changed_does_not_count_against_the_limit(server):
    async with with_client(server) as (client, _):
        await client.get_all("issues", {"state": "open"})
        left = server.limit.remaining
        for _ in range(10):
            await client.get_all("issues", {"state": "open"})
        assert server.limit.remaining == left
        assert client.calls["not_modified"] == 10
        server.call(lambda world: world.add_issue("RFC-093-04: new"))
        assert len(await client.get_all("issues", {"state": "open"})) == 4


# -- lost replies ------------------------------------------------------------------------------------------------------


async def test_a_read_is_asked_again_after_a_broken_connection_and_an_error_of_the_server(server):
    async with with_client(server) as (client, slept):
        for fault in ("lose", "drop", "broken"):
            faults = Faults(**{fault: 1.0})
            left = [2]
            faults.only = lambda method, path, left=left: left.__setitem__(0, left[0] - 1) or left[0] >= 0
            server.faults = faults
            assert (await client.get("issues/1"))["number"] == 1
        assert len(slept) == 6
        assert slept == sorted(slept[:2]) + sorted(slept[2:4]) + sorted(slept[4:])  # longer each time


async def test_a_read_that_never_gets_through_is_out_of_reach_and_a_write_is_unsure(server):
    server.faults = Faults(drop=1.0)
    async with with_client(server) as (client, _):
        with pytest.raises(RegisterUnavailable, match="not reachable"):
            await client.get("issues/1")
        with pytest.raises(OutcomeUnknown):
            await client.send("PATCH", "issues/1", {"title": "x"})
        server.forget()
        with pytest.raises(OutcomeUnknown):
            await client.send("POST", "issues", {"title": "x"}, repeatable=False)
        assert server.counted["dropped"] == 1


async def test_a_server_that_is_not_there_is_told_and_nothing_was_sent():
    register = open_github("acme/rocket", environ={"GITHUB_TOKEN": "t", "GITHUB_API_URL": "http://127.0.0.1:9"})

    async def sleep(seconds: float) -> None:
        return None

    register.client._sleep = sleep
    with pytest.raises(RegisterUnavailable, match="not reachable"):
        await register.client.send("POST", "issues", {"title": "x"}, repeatable=False)
    await register.close()


async def test_a_next_page_that_leads_elsewhere_is_not_followed_with_our_credentials(server):
    answer = server._answered

    def elsewhere(*args: Any) -> Any:
        status, extra, content = answer(*args)
        return status, {**extra, "Link": '<http://evil.example/issues?page=2>; rel="next"'}, content

    server._answered = elsewhere  # type: ignore[method-assign]
    async with with_client(server) as (client, _):
        assert len(await client.get_all("issues", {"state": "open"})) == 3


async def test_the_clock_is_that_of_github(server):
    server.ahead = 86_400.0
    async with with_client(server) as (client, _):
        await client.get("issues/1")
        assert abs(client.clock() - time.time() - server.ahead) < 1000.0


# -- what is kept ------------------------------------------------------------------------------------------------------


async def synced_with_cache(server: GitHubServer, file: Path, token: str = "") -> dict[str, int]:
    known = environ(server)
    if token:
        server.tokens[token] = "service"
        known["GITHUB_TOKEN"] = token
    register: GitHubRegister = open_github("acme/rocket", environ=known, cache=file)
    await service_of(register).sync()
    await register.close()
    return dict(register.client.calls)


def test_a_process_that_begins_anew_knows_what_it_knew_from_its_file(server, tmp_path):
    file = tmp_path / "cache" / "github.json"
    asyncio.run(synced_with_cache(server, file))
    asyncio.run(synced_with_cache(server, file))
    left = server.limit.remaining
    calls = asyncio.run(synced_with_cache(server, file))
    assert calls == {"requests": 2, "not_modified": 2}
    assert server.limit.remaining == left  # the whole cycle was free
    assert environ(server)["GITHUB_TOKEN"] not in file.read_text()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"scope": 1}', '{"scope": "x", "answers": [], "texts": {}}'])
def test_a_cache_that_cannot_be_read_is_an_empty_one(server, tmp_path, content):
    file = tmp_path / "github.json"
    file.write_text(content)
    asyncio.run(synced_with_cache(server, file))
    assert json.loads(file.read_text())["answers"]


def test_a_cache_serves_nobody_but_who_filled_it(server, tmp_path):
    file = tmp_path / "github.json"
    for _ in range(2):
        asyncio.run(synced_with_cache(server, file))
    assert "not_modified" not in asyncio.run(synced_with_cache(server, file, token="another's"))


# -- credentials -------------------------------------------------------------------------------------------------------


def test_a_token_comes_from_the_environment():
    assert credentials_from({"GITHUB_TOKEN": " t1 "}) == Credentials("t1")
    assert credentials_from({"GH_TOKEN": "t2"}) == Credentials("t2")
    for nothing in ({}, {"GITHUB_TOKEN": ""}):
        with pytest.raises(NoCredentials, match="GITHUB_TOKEN"):
            credentials_from(nothing)


def test_an_app_needs_its_key(tmp_path):
    file = tmp_path / "key.pem"
    with pytest.raises(NoCredentials, match="GITHUB_APP_PRIVATE_KEY"):
        credentials_from({"GITHUB_APP_ID": "77"})
    with pytest.raises(NoCredentials, match="cannot read the private key"):
        credentials_from({"GITHUB_APP_ID": "77", "GITHUB_APP_PRIVATE_KEY_FILE": str(file)})
    file.write_text("hello")
    with pytest.raises(NoCredentials, match="PEM"):
        credentials_from({"GITHUB_APP_ID": "77", "GITHUB_APP_PRIVATE_KEY_FILE": str(file)})
    with pytest.raises(NoCredentials, match="number"):
        credentials_from({"GITHUB_APP_ID": "77", "GITHUB_APP_INSTALLATION_ID": "x", "GITHUB_APP_PRIVATE_KEY": "k"})


def test_credentials_are_never_shown():
    shown = repr(Credentials("secret-token", "77", "secret-key"))
    assert "secret" not in shown


@pytest.mark.parametrize("text", ["", "rocket", "acme/", "/rocket", "acme/rocket/x", "acme/..", "a b/c", "acme/ro?ket"])
def test_what_names_no_repository_is_refused(text):
    with pytest.raises(BadRepository):
        parse_repository(text)


@pytest.mark.parametrize("address", ["nonsense", "api.github.com", "https://", "file:///x"])
def test_an_address_of_github_that_is_none_is_told_before_anything_is_asked(address):
    with pytest.raises(BadRepository, match="GITHUB_API_URL"):
        open_github("acme/rocket", environ={"GITHUB_TOKEN": "t", "GITHUB_API_URL": address})


async def test_a_wrong_token_is_told_in_a_sentence(server):
    register = open_github("acme/rocket", environ={**environ(server), "GITHUB_TOKEN": "wrong"})
    with pytest.raises(RegisterUnavailable, match="refuses the credentials for acme/rocket: Bad credentials"):
        await register.names()
    await register.close()


async def test_a_repository_that_is_not_there_is_told_in_a_sentence(server):
    register = open_github("acme/nothing", environ=environ(server))
    with pytest.raises(RegisterUnavailable, match="github:acme/nothing"):
        await register.names()
    with pytest.raises(RequestRejected):
        await register.client.get("issues/1")
    with pytest.raises(RegisterUnavailable):
        await register.swap("RFC-093", None, "x", "m")
    await register.close()
