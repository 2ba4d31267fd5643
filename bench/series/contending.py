"""Claims per second of one client that nobody disturbs, and how long it takes until the last of a hundred who claim at
the same moment has its answer.

The hundred are processes that run the command ``asterism series claim``, forked from one that has imported everything;
on the register in memory, which no other process can see, they are tasks of one loop. Each has its answer when its
process has ended.
"""

import asyncio
import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from asterism.series.claims import Claim, claim
from asterism.series.compare_and_swap import Contended, Outcome, RetryOptions
from asterism.series.git_register import GitRegister
from asterism.series.github.github_register import GitHubRegister, open_github
from asterism.series.github.issue_claims import IssueClaims
from asterism.series.register import SeriesRegister
from asterism.series.store_register import StoreRegister
from asterism.store.memory import MemoryStore
from asterism.store.url import open_store
from bench.runs.server import SETTINGS, database
from tests.cli.local_github import GitHubServer, Limit, scenes
from tests.series.register_openers import bare_repository, over_http
from tests.series.series_processes import Ended, all_at_once
from tests.store.postgres_server import Server

NAME = "RFC-093"
CONTENDERS = 100
NO_LIMIT = 10**9
CLAIMED, QUEUED, CONTENDED = 0, 75, 76
"""The exit codes of a claim."""
ISSUES = 1000
"""How many the local GitHub has, more than are ever claimed: a claim there is refused if there is no such issue."""

BAR = 90.0
"""The last of a hundred on a bare repository is to be answered within so many seconds."""


class Where(NamedTuple):
    """The option that names a register, its address, and what has to stand in the environment."""

    option: str
    address: str
    environment: Mapping[str, str] = {}

    async def opened(self) -> SeriesRegister:
        if self.option == "--remote":
            return GitRegister(self.address)
        if self.option == "--github":
            return open_github(self.address, environ=self.environment)
        return StoreRegister(await open_store(self.address))


Place = Callable[[Path], AbstractContextManager[Where]]
"""Gives a register for as long as the block lasts."""


@dataclass(frozen=True)
class Measured:
    """One register. ``last`` and ``tries`` are of those who do not give up; ``told`` is how many of those who try five
    times were told that the series is contended, and ``told_last`` when the last of them had its answer."""

    name: str
    alone: float
    contenders: int
    last: float
    tries: int
    told: int
    told_last: float

    @property
    def rate(self) -> float:
        return self.contenders / self.last


@contextmanager
def sqlite(folder: Path) -> Iterator[Where]:
    yield Where("--store", f"sqlite:///{folder}/fleet.db")


@contextmanager
def postgres(folder: Path) -> Iterator[Where]:
    with Server({**SETTINGS, "max_connections": 1000}) as server, database(server) as url:
        yield Where("--store", url)


@contextmanager
def git_file(folder: Path) -> Iterator[Where]:
    yield Where("--remote", bare_repository(folder / "remote.git"))


@contextmanager
def git_http(folder: Path) -> Iterator[Where]:
    bare_repository(folder / "remote.git")
    with over_http(folder) as (address, _):
        yield Where("--remote", f"{address}/remote.git")


@contextmanager
def github(folder: Path) -> Iterator[Where]:
    """The local GitHub of the tests, in a thread of this process, without a network and without rate limits: the
    figures show the cost of our requests, not the response time of GitHub."""
    with GitHubServer(scenes.world_of(ISSUES, NAME), listening=True) as server:
        server.limit = Limit(NO_LIMIT, NO_LIMIT)
        yield Where("--github", "acme/rocket", scenes.environ(server))


PLACES: dict[str, Place] = {
    "SQLite": sqlite,
    "PostgreSQL": postgres,
    "git, `file://`": git_file,
    "git, smart HTTP": git_http,
    "GitHub, a local one": github,
}


def measure(contenders: int = CONTENDERS, alone: int = 100, names: list[str] | None = None) -> list[Measured]:
    in_memory = _in_memory(contenders, alone)
    return [in_memory, *(_on(name, PLACES[name], contenders, alone) for name in names or PLACES)]


def _in_memory(contenders: int, alone: int) -> Measured:
    async def all_of_them(tries: int) -> tuple[float, int, int]:
        register, began = StoreRegister(MemoryStore()), time.perf_counter()
        retry = RetryOptions(tries=tries, deadline=None)
        asked = (claim(register, NAME, Claim(number + 1), retry=retry) for number in range(contenders))
        answers = await asyncio.gather(*asked, return_exceptions=True)
        seconds = time.perf_counter() - began
        wrong = [answer for answer in answers if not isinstance(answer, Outcome | Contended)]
        assert not wrong, f"{len(wrong)} claims failed: {wrong[0]!r}"
        outcomes = [answer for answer in answers if isinstance(answer, Outcome)]
        await check_register(register, len(outcomes))
        return seconds, sum(outcome.tries for outcome in outcomes), contenders - len(outcomes)

    rate = asyncio.run(_one_after_the_other(StoreRegister(MemoryStore()), alone))
    last, tries, refused = asyncio.run(all_of_them(0))
    assert refused == 0, f"{refused} of {contenders} gave up"
    told_last, _, told = asyncio.run(all_of_them(5))
    return Measured("memory", rate, contenders, last, tries, told, told_last)


def _on(name: str, place: Place, contenders: int, alone: int) -> Measured:
    async def undisturbed(where: Where) -> float:
        register = await where.opened()
        try:
            return await _one_after_the_other(register, alone)
        finally:
            await register.close()

    async def check(where: Where, claims: int) -> None:
        register = await where.opened()
        try:
            await check_register(register, claims)
        finally:
            await register.close()

    ended: dict[int, list[Ended]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, tries in enumerate((0, 5, None)):
            inside = Path(folder) / str(number)
            inside.mkdir()
            with place(inside) as where:
                if tries is None:
                    rate = asyncio.run(undisturbed(where))
                    continue
                words = ["series", "claim", NAME, where.option, where.address, "--tries", str(tries), "--json"]
                commands = [[*words, "--issue", str(issue + 1)] for issue in range(contenders)]
                ended[tries] = all_at_once(commands, inside, **where.environment)
                asyncio.run(check(where, check_answers(ended[tries], give_up=tries != 0)))
    told = sum(answer.code == CONTENDED for answer in ended[5])
    last, told_last = (max(answer.after for answer in ended[tries]) for tries in (0, 5))
    return Measured(name, rate, contenders, last, _tries(ended[0]), told, told_last)


async def _one_after_the_other(register: SeriesRegister, number: int) -> float:
    began = time.perf_counter()
    for issue in range(number):
        # as the command does: on GitHub a claim looks at the issues, too
        make = IssueClaims(register.client).claim if isinstance(register, GitHubRegister) else claim
        await make(register, NAME, Claim(issue + 1))
    seconds = time.perf_counter() - began
    await check_register(register, number)
    return number / seconds


def check_answers(ended: list[Ended], *, give_up: bool) -> int:
    """How many are claimed or queued. Raises AssertionError unless exactly one is claimed, and all others are queued,
    or, if they may ``give_up``, contended."""
    codes = Counter(answer.code for answer in ended)
    wrong = codes.keys() - {CLAIMED, QUEUED, *([CONTENDED] if give_up else [])}
    if codes[CLAIMED] != 1 or wrong:
        shown = next((answer for answer in ended if answer.code in wrong), None)
        raise AssertionError(f"not one winner and all others queued: {dict(codes)}, {shown}")
    return codes[CLAIMED] + codes[QUEUED]


async def check_register(register: SeriesRegister, claims: int) -> None:
    """Raise AssertionError unless the register has so many different items: one is active, the others wait."""
    text = (await register.read(NAME)).text
    assert text is not None, "the register has no series"
    series = json.loads(text)
    items = [series["active_issue"], *series["queue"]]
    assert None not in items, f"no item is active: {items}"
    assert len(items) == len(set(items)) == claims, f"{claims} claims, and the register has {items}"


def _tries(ended: list[Ended]) -> int:
    return sum(int(json.loads(answer.out)["tries"]) for answer in ended)
