"""The proof: claims from many processes at the same moment, on real registers, and clients killed in the middle.

There is always one winner. Every other claim is queued once, or ends with Contended and is not in the series.
"""

from __future__ import annotations

import json
import random
import signal
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.forked_commands import run_command
from tests.series.register_openers import bare_repository, over_http
from tests.series.series_processes import Ended, all_at_once

NAME = "RFC-093"
CLAIMED, QUEUED, CONTENDED = 0, 75, 76


def claims(numbers: Sequence[int], *place: str) -> list[list[str]]:
    return [["series", "claim", NAME, "--issue", str(number), "--json", *place] for number in numbers]


def state(*place: str) -> dict[str, object]:
    done = run_command("series", "status", NAME, "--json", *place)
    assert done.returncode == 0, done.stderr
    document: dict[str, object] = json.loads(done.stdout)
    return document


def judged(ended: Sequence[Ended], numbers: Sequence[int], *place: str) -> Counter[int]:
    """How many ended in which way, after what they were told was held against what is there."""
    strange = [process for process in ended if process.code not in (CLAIMED, QUEUED, CONTENDED)]
    assert not strange, strange[0]
    by_code = {
        code: {number for number, process in zip(numbers, ended, strict=True) if process.code == code}
        for code in (CLAIMED, QUEUED, CONTENDED)
    }
    document = state(*place)
    queue = document["queue"]
    assert isinstance(queue, list)
    assert by_code[CLAIMED] == {document["active_issue"]}, "there is exactly one winner, and it knows"
    assert set(queue) == by_code[QUEUED], "who was told that it is queued is, and nobody else"
    assert len(set(queue)) == len(queue)
    assert document["revision"] == 1 + len(queue)
    return Counter(process.code for process in ended)


# -- git ---------------------------------------------------------------------------------------------------------------


def answered(ended: Sequence[Ended], numbers: Sequence[int]) -> bool:
    """Whether each was told how its own issue stands. How long it took is measured by ``bench/series``."""
    told = [json.loads(process.out) for process in ended]
    statuses = {CLAIMED: "claimed", QUEUED: "queued", CONTENDED: "contended"}
    right = [statuses[process.code] == form["status"] for process, form in zip(ended, told, strict=True)]
    named = [form["issue"] == number for number, form in zip(numbers, told, strict=True) if "issue" in form]
    return all(right) and all(named) and len(ended) == len(numbers)


@pytest.mark.long
def test_many_claims_on_a_bare_repository_are_all_answered_with_claimed_queued_or_contended(tmp_path: Path) -> None:
    numbers = range(1, 31)
    place = ("--remote", bare_repository(tmp_path / "remote.git"))
    ended = all_at_once(claims(numbers, *place), tmp_path)
    counts = judged(ended, numbers, *place)
    assert answered(ended, numbers)
    assert counts[CLAIMED] == 1
    assert counts[QUEUED] + counts[CONTENDED] == len(numbers) - 1


@pytest.mark.parametrize(
    "numbers", [pytest.param(range(1, 4), id="3"), pytest.param(range(1, 13), id="12", marks=pytest.mark.long)]
)
def test_many_claims_on_a_bare_repository_that_do_not_give_up_are_all_queued(numbers: range, tmp_path: Path) -> None:
    place = ("--remote", bare_repository(tmp_path / "remote.git"))
    ended = all_at_once(claims(numbers, *place, "--tries", "0"), tmp_path)
    assert judged(ended, numbers, *place) == {CLAIMED: 1, QUEUED: len(numbers) - 1}
    assert answered(ended, numbers)


@pytest.mark.long
def test_many_claims_over_http_that_do_not_give_up_are_all_queued(tmp_path: Path) -> None:
    numbers = range(1, 17)
    bare_repository(tmp_path / "remote.git")
    with over_http(tmp_path) as (address, _):
        place = ("--remote", f"{address}/remote.git")
        counts = judged(all_at_once(claims(numbers, *place, "--tries", "0"), tmp_path), numbers, *place)
    assert counts == {CLAIMED: 1, QUEUED: len(numbers) - 1}


# -- stores ------------------------------------------------------------------------------------------------------------


def claim_from_processes(processes: int, issues: int, tmp_path: Path, url: str) -> None:
    """Each process claims for so many issues, one after the other."""
    numbers = range(1, issues * processes + 1)
    shares = [numbers[first::processes] for first in range(processes)]
    words = [["series-claims", url, NAME, *map(str, own)] for own in shares]
    ended = all_at_once(words, tmp_path)
    assert {process.code for process in ended} == {0}, next(process.err for process in ended if process.code)
    told = [(number, code) for process in ended for number, code in json.loads(process.out)]
    assert sorted(number for number, _ in told) == list(numbers)
    place = ("--store", url)
    judged([Ended(code, "", "", 0.0) for _, code in sorted(told)], numbers, *place)
    assert Counter(code for _, code in told) == {CLAIMED: 1, QUEUED: len(numbers) - 1}


CROWDS = pytest.mark.parametrize(("processes", "issues"), [(3, 7), pytest.param(25, 20, marks=pytest.mark.long)])


@CROWDS
def test_claims_from_many_processes_on_sqlite_lose_nobody(processes: int, issues: int, tmp_path: Path) -> None:
    claim_from_processes(processes, issues, tmp_path, f"sqlite:///{tmp_path}/fleet.db")


@CROWDS
@pytest.mark.long
def test_claims_from_many_processes_on_postgresql_lose_nobody(
    processes: int, issues: int, tmp_path: Path, postgres_url: str
) -> None:
    claim_from_processes(processes, issues, tmp_path, postgres_url)


# -- killed in the middle ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("clients", "longest"), [(6, 0.4), pytest.param(16, 0.8, marks=pytest.mark.long)])
def test_what_was_acknowledged_is_there_whoever_was_killed_meanwhile(
    tmp_path: Path, clients: int, longest: float
) -> None:
    chance = random.Random(longest)
    place = ("--remote", bare_repository(tmp_path / "remote.git"))
    numbers = range(1, clients + 1)
    words = [
        [*claim_words, "--tries", "0", "--killed-after", f"{chance.uniform(0.05, longest if number % 2 else 2.0):.3f}"]
        for number, claim_words in zip(numbers, claims(numbers, *place), strict=True)
    ]
    ended = all_at_once([*words, *claims([99], *place, "--tries", "0")], tmp_path)
    told = {number: process.code for number, process in zip([*numbers, 99], ended, strict=True)}
    assert set(told.values()) <= {-signal.SIGKILL, CLAIMED, QUEUED}
    document = state(*place)
    queue = document["queue"]
    assert isinstance(queue, list)
    assert {number for number, code in told.items() if code == QUEUED} <= set(queue)
    assert {number for number, code in told.items() if code == CLAIMED} <= {document["active_issue"]}
    assert len({document["active_issue"], *queue}) == 1 + len(queue) == document["revision"]


@pytest.mark.parametrize(
    ("register", "longest"),
    [
        pytest.param("git", 0.6, marks=pytest.mark.long),
        pytest.param("git", 0.2, marks=pytest.mark.long),
        ("sqlite", 0.3),
        pytest.param("postgres_url", 0.3, marks=pytest.mark.long),
    ],
)
def test_clients_that_are_killed_in_the_middle_leave_no_series_stuck(
    tmp_path: Path, register: str, longest: float, request: pytest.FixtureRequest
) -> None:
    """Each is killed at a random time while the others run. Its change happened or did not. The state is readable, no
    issue is in it twice, and the next claim gets its turn when the leases have expired."""
    chance = random.Random(longest)
    place = ("--store", f"sqlite:///{tmp_path}/fleet.db")
    if register == "git":
        place = ("--remote", bare_repository(tmp_path / "remote.git"))
    elif register == "postgres_url":
        place = ("--store", request.getfixturevalue(register))
    doomed = [
        [*words, "--lease", "200ms", "--tries", "0", "--killed-after", f"{chance.uniform(0.001, longest):.3f}"]
        for words in claims(range(1, 13), *place)
    ]
    [survivor] = claims([99], *place, "--lease", "1h", "--tries", "0")  # nobody ends that one, however slow it all is
    ended = all_at_once([*doomed, survivor], tmp_path)
    assert {process.code for process in ended[:-1]} <= {-signal.SIGKILL, CLAIMED, QUEUED}
    assert ended[-1].code in (CLAIMED, QUEUED), ended[-1]
    assert -signal.SIGKILL in {process.code for process in ended}, "nobody was killed"
    document = state(*place)
    queue = document["queue"]
    assert isinstance(queue, list)
    here = [number for number in (document["active_issue"], *queue) if number is not None]
    assert len(set(here)) == len(here)
    assert 99 in here
    assert set(here) <= {*range(1, 13), 99}
    while True:  # nobody else lives, so each lease that runs out lets the next one have its turn, and then 99
        done = run_command(*survivor)
        assert done.returncode in (CLAIMED, QUEUED), done.stderr
        if done.returncode == CLAIMED:
            return
