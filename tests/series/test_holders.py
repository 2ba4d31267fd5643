"""Claims with a name: an issue belongs to the holder that claimed it first, and each issue is taken once."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path

import pytest

from asterism.api.local.series_handlers import next_issue
from asterism.api.series_operations import TakeNextIssue
from asterism.core.series.machine import Series
from asterism.series.claims import Claim, Release, claim, release, take_next
from asterism.series.store_register import StoreRegister
from asterism.store.memory import MemoryStore
from tests.forked_commands import run_command
from tests.series.register_openers import bare_repository
from tests.series.series_processes import all_at_once

NAME, AGENTS = "RFC-093", 20


def place_of(kind: str, folder: Path) -> tuple[str, ...]:
    if kind == "git":
        return ("--remote", bare_repository(folder / "remote.git"))
    return ("--store", f"sqlite:///{folder}/fleet.db")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["git", "sqlite"])
def test_of_twenty_processes_that_claim_one_issue_one_has_it(kind: str, tmp_path: Path) -> None:
    place = place_of(kind, tmp_path)
    words = ["series", "claim", NAME, "--issue", "7", "--json", *place]
    ended = all_at_once([[*words, "--by", f"agent-{number}"] for number in range(AGENTS)], tmp_path)
    assert Counter(process.code for process in ended) == {0: 1, 75: AGENTS - 1}, ended
    [winner] = [number for number, process in enumerate(ended) if process.code == 0]
    told = [json.loads(process.out) for process in ended]
    assert {answer["state"]["holder"] for answer in told} == {f"agent-{winner}"}
    assert all(answer["state"]["held_since"] for answer in told)
    assert [answer["status"] for answer in told].count("held") == AGENTS - 1
    assert run_command(*words, "--by", f"agent-{winner}").returncode == 0
    assert run_command(*words).returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["git", "sqlite"])
def test_twenty_processes_that_take_the_next_issue_take_each_once(kind: str, tmp_path: Path) -> None:
    place = place_of(kind, tmp_path)
    for number in range(4):
        for issue in (10 * number + 1, 10 * number + 2):
            run_command("series", "claim", f"RFC-{number}", "--issue", str(issue), *place)
        run_command("series", "release", f"RFC-{number}", "--issue", str(10 * number + 1), *place)
    words = ["series", "next", "--json", *place]
    ended = all_at_once([[*words, "--by", f"agent-{number}"] for number in range(AGENTS)], tmp_path)
    told = [json.loads(process.out) for process in ended]
    assert sorted(answer["issue"] for answer in told if answer["issue"]) == [2, 12, 22, 32]
    assert Counter(process.code for process in ended) == {0: 4, 75: AGENTS - 4}
    holders = {f"agent-{number}": answer["issue"] for number, answer in enumerate(told) if answer["issue"]}
    again = run_command(*words, "--by", next(iter(holders)))
    assert (again.returncode, json.loads(again.stdout)["issue"]) == (0, next(iter(holders.values())))


@pytest.mark.virtual_time(seeds=3)
async def test_workers_that_wait_for_a_turn_do_each_issue_once_and_one_at_a_time() -> None:
    store = MemoryStore()
    issues = {"RFC-1": range(1, 8), "RFC-2": range(11, 18)}
    register = StoreRegister(store, owned=False)
    for name, numbers in issues.items():
        for number in numbers:
            await claim(register, name, Claim(number))
        await release(register, name, Release(numbers[0]))
    done: list[int] = []
    busy: set[str] = set()

    async def work(holder: str) -> None:
        own = StoreRegister(store, owned=False)
        while True:
            taken = await next_issue(own, TakeNextIssue(holder, wait=3600.0), holder)
            if taken.issue is None or taken.series is None:
                assert not taken.others
                return
            name = taken.series.name
            assert name not in busy
            busy.add(name)
            await asyncio.sleep(3.0)
            busy.remove(name)
            done.append(int(taken.issue))
            await release(own, name, Release(taken.issue, holder, holder=holder))

    await asyncio.gather(*(work(f"agent-{number}") for number in range(AGENTS)))
    assert sorted(done) == [*range(2, 8), *range(12, 18)]


async def test_what_somebody_claimed_without_a_name_or_a_pause_keeps_is_not_taken() -> None:
    register = StoreRegister(MemoryStore(), owned=False)
    await claim(register, NAME, Claim(1))
    assert await take_next(register, "ann") is None
    await claim(register, NAME, Claim(1, holder="ann"))
    outcome = await take_next(register, "ann")
    assert outcome is not None
    assert (outcome.after.active, outcome.changed) == (1, False)
    assert await take_next(register, "bob", NAME) is None
    paused = TakeNextIssue("bob", wait=0.0)
    assert [series.holder for series in (await next_issue(register, paused, "bob")).others] == ["ann"]


async def test_another_holder_neither_renews_nor_forces_nor_releases() -> None:
    register = StoreRegister(MemoryStore(), owned=False)
    await claim(register, NAME, Claim(1, lease=60.0, holder="ann"))
    for wanted in (Claim(1, lease=900.0, renew=True, holder="bob"), Claim(1, force=True, holder="bob")):
        assert not (await claim(register, NAME, wanted)).changed
    assert not (await release(register, NAME, Release(1, holder="bob"))).changed
    assert (await release(register, NAME, Release(1, holder="ann"))).changed


def test_a_lease_that_runs_out_ends_the_hold() -> None:
    held = Claim(1, lease=60.0, holder="ann")(Series(NAME), 100.0)
    assert (held.holder, held.held_since, held.revision) == ("ann", 100.0, 1)
    assert Claim(1, holder="bob")(held, 150.0) is held
    taken = Claim(1, holder="bob")(held, 170.0)
    assert (taken.active, taken.holder, taken.held_since) == (1, "bob", 170.0)
