"""The register on GitHub passes the conformance suite, and checks the ref after a lost reply."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import pytest

from asterism.core.series.machine import Series
from asterism.series.claims import Claim, claim
from asterism.series.compare_and_swap import RetryOptions
from asterism.series.github.github_register import GitHubRegister
from asterism.series.register import OutcomeUnknown, RegisterUnavailable, RevisionConflict, Snapshot
from tests.laboratory.register_conformance import ProcessOpener, RegisterConformance
from tests.series.github.github_fixtures import opened
from tests.series.github.github_opener import open_at
from tests.series.github.github_server import Faults, GitHubServer

NAME = "RFC-093"


@pytest.fixture
def server() -> Iterator[GitHubServer]:
    with GitHubServer() as running:
        yield running


class TestGitHubRegister(RegisterConformance):
    @pytest.fixture(autouse=True)
    def _servers(self) -> Iterator[None]:
        self.servers: list[GitHubServer] = []
        yield
        for server in self.servers:
            server.__exit__()

    async def open_register(self) -> GitHubRegister:
        server = GitHubServer(listening=True).__enter__()
        self.servers.append(server)
        return await open_at(server.url)

    async def open_another(self, register: GitHubRegister) -> GitHubRegister:
        return await open_at(self.servers[-1].url)

    async def process_opener(self, register: GitHubRegister) -> ProcessOpener:
        return ProcessOpener("tests.series.github.github_opener:open_at", self.servers[-1].url)

    @pytest.mark.long
    def test_racing_processes_lose_no_claim(self) -> None:
        super().test_racing_processes_lose_no_claim()


async def test_a_lost_reply_to_a_swap_is_not_believed_either_way(server):
    register = opened(server)
    server.faults = Faults(lose=1.0, only=lambda method, path: path.endswith("/git/refs"))
    with pytest.raises(OutcomeUnknown):
        await register.swap(NAME, None, "one", "m")
    seen = await register.read(NAME)
    assert seen.text == "one"  # it had happened
    server.faults = Faults(drop=1.0, only=lambda method, path: path == "/graphql")
    with pytest.raises(OutcomeUnknown):
        await register.swap(NAME, seen.token, "two", "m")
    server.faults = Faults()
    assert await register.read(NAME) == seen  # it had not
    await register.close()


async def test_claims_go_through_while_replies_get_lost(server):
    server.faults = Faults(seed=3, lose=0.1, drop=0.05, broken=0.05)

    async def claim_issue(issue: int) -> int | str | None:
        register, wanted = opened(server), Claim(issue)
        try:
            while True:  # a claim that finds GitHub unavailable, or never hears its outcome, is repeated by its job
                with contextlib.suppress(RegisterUnavailable, OutcomeUnknown):
                    retry = RetryOptions(jitter=(0.0, 0.05), deadline=None)
                    return (await claim(register, NAME, wanted, retry=retry)).after.position(issue)
        finally:
            await register.close()

    positions = await asyncio.gather(*(claim_issue(issue) for issue in range(1, 9)))
    assert positions.count(0) >= 1
    [text] = server.call(lambda world: list(world.documents().values()))
    series = Series.from_text(text, NAME)
    assert sorted([series.active, *series.queue]) == list(range(1, 9))


async def test_a_change_that_github_does_not_allow_is_told_and_not_taken_for_a_race(server):
    register = opened(server)
    token = await register.swap(NAME, None, "one", "m")
    server.call(lambda world: setattr(world, "update_refs", lambda updates: "protected by a ruleset"))
    with pytest.raises(RegisterUnavailable, match="protected by a ruleset"):
        await register.swap(NAME, token, "two", "m")
    assert await register.read(NAME) == Snapshot("one", token)
    await register.close()


async def test_a_ref_that_holds_no_commit_is_not_free_and_can_be_replaced(server):
    """If a tag or a file was pushed there, the state must be repaired in place."""
    register = opened(server)
    blob = server.call(lambda world: world.put_blob("rubbish"))
    server.call(lambda world: world.refs.update({f"refs/asterism/series/{NAME}": blob}))
    snapshot = await register.read(NAME)
    assert snapshot == Snapshot("", blob)
    with pytest.raises(RevisionConflict):
        await register.swap(NAME, None, "mine", "m")
    token = await register.swap(NAME, snapshot.token, "mended", "m")
    assert await register.read(NAME) == Snapshot("mended", token)
    await register.close()


async def test_what_a_commit_contains_is_asked_for_once(server):
    register, other = opened(server), opened(server)
    await register.swap(NAME, None, "one", "m")
    await other.read(NAME)
    before = other.client.calls["graphql"]
    for _ in range(5):
        await other.read(NAME)
    assert other.client.calls["graphql"] == before
    assert other.client.calls["not_modified"] == 5
    await register.close()
    await other.close()
