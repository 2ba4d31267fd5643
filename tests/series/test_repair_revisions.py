"""A rebuilt state continues the revision of the old one, as far as that is known."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from asterism.core.series.machine import Live, Series
from asterism.series.claims import Claim, claim
from asterism.series.compare_and_swap import RetryOptions, update
from asterism.series.git_register import GitRegister
from asterism.series.register import REF_PREFIX, STATE_FILE, SeriesRegister
from asterism.series.store_register import STATE_PREFIX, StoreRegister
from asterism.store.memory import MemoryStore
from asterism.store.protocol import PutRegister
from tests.series.github.github_fixtures import SERIES, opened, world_of
from tests.series.github.github_server import GitHubServer
from tests.series.register_openers import bare_repository

EAGER = RetryOptions(tries=5, jitter=(0.0, 0.01), deadline=None)
REF = REF_PREFIX + SERIES
Spoil = Callable[[str | None], Awaitable[None]]
"""Puts this text in the place of the state; None takes it away."""


@asynccontextmanager
async def in_store(folder: Path) -> AsyncIterator[tuple[SeriesRegister, Spoil]]:
    store = MemoryStore()

    async def spoil(text: str | None) -> None:
        kept = await store.register(STATE_PREFIX + SERIES)
        assert kept is not None
        value = None if text is None else {**kept.value, "text": text}
        await store.commit([PutRegister(kept.key, value, kept.revision)])

    yield StoreRegister(store), spoil


@asynccontextmanager
async def on_git(folder: Path) -> AsyncIterator[tuple[SeriesRegister, Spoil]]:
    register = GitRegister(bare_repository(folder / "remote.git"))

    def git(*words: str, stdin: str = "") -> str:
        who = ("-c", "user.name=x", "-c", "user.email=x@example.invalid")
        words = ("git", "-C", str(folder / "remote.git"), *who, *words)
        return subprocess.run(words, input=stdin, capture_output=True, text=True, check=True).stdout.strip()

    async def spoil(text: str | None) -> None:
        if text is None:
            git("update-ref", "-d", REF)
            return
        blob = git("hash-object", "-w", "--stdin", stdin=text)
        tree = git("mktree", stdin=f"100644 blob {blob}\t{STATE_FILE}\n")
        git("update-ref", REF, git("commit-tree", "-p", REF, tree, stdin="by hand"))

    try:
        yield register, spoil
    finally:
        await register.close()


@asynccontextmanager
async def on_github(folder: Path) -> AsyncIterator[tuple[SeriesRegister, Spoil]]:
    with GitHubServer(world_of()) as server:
        register = opened(server)

        async def spoil(text: str | None) -> None:
            def write(world) -> None:
                if text is None:
                    world.refs.pop(REF)
                else:
                    world.write_document(REF, text, STATE_FILE)

            await asyncio.to_thread(server.call, write)

        yield register, spoil
        await register.close()


PLACES = {"store": in_store, "git": on_git, "github": on_github}


def rebuilt(series: Series, now: float) -> Series:
    return series.rebuild([Live(1, 1, True), Live(2, 2)], now)


async def used(register: SeriesRegister) -> Series:
    for number in (1, 2, 3):
        await claim(register, SERIES, Claim(number), retry=EAGER)
    await update(register, SERIES, lambda series, now: series.release(3, now), "release", retry=EAGER)
    return Series.from_text((await register.read(SERIES)).text, SERIES)


@pytest.mark.parametrize("place", ["store", pytest.param("git", marks=pytest.mark.long), "github"])
@pytest.mark.parametrize("texts", [["{"], ["{", "]", "7"], ['{"active_issue": 1}'], ['{"revision": 1}']])
async def test_a_state_that_cannot_be_read_goes_on_where_its_history_ends(
    place: str, texts: list[str], tmp_path: Path
) -> None:
    async with PLACES[place](tmp_path) as (register, spoil):
        before = await used(register)
        for text in texts:
            await spoil(text)
        after = (await update(register, SERIES, rebuilt, "rebuild", retry=EAGER, repair=True)).after
        assert after.revision > before.revision
        assert (after.active, after.queue) == (1, (2,))
        assert after == Series.from_text((await register.read(SERIES)).text, SERIES)


@pytest.mark.parametrize("place", PLACES)
async def test_of_a_state_that_is_lost_the_history_tells_what_it_can(place: str, tmp_path: Path) -> None:
    """A store keeps it beside the state; a ref takes it along."""
    async with PLACES[place](tmp_path) as (register, spoil):
        before = await used(register)
        await spoil(None)
        after = (await update(register, SERIES, rebuilt, "rebuild", retry=EAGER, repair=True)).after
        assert after.revision == (before.revision + 1 if place == "store" else 1)
