"""The conformance suite of registers: every register passes it, and one that breaks a promise fails it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from asterism.series.git_register import GitRegister
from asterism.series.register import Change, RevisionConflict, SeriesRegister, Snapshot, encode_name
from asterism.series.store_register import StoreRegister
from asterism.store.memory import MemoryStore
from asterism.store.url import open_store
from tests.laboratory.register_conformance import ProcessOpener, RegisterConformance
from tests.series.register_openers import bare_repository, over_http

OPENERS = "tests.series.register_openers"


class TestMemory(RegisterConformance):
    """Registers in a store: two connections are two registers over one store."""

    async def open_register(self) -> SeriesRegister:
        return StoreRegister(MemoryStore())

    async def open_another(self, register: SeriesRegister) -> SeriesRegister:
        assert isinstance(register, StoreRegister)
        return StoreRegister(register._store, owned=False)


class OnAStore(RegisterConformance):
    urls: Iterator[str]

    async def open_register(self) -> SeriesRegister:
        self.url = next(self.urls)
        return StoreRegister(await open_store(self.url))

    async def open_another(self, register: SeriesRegister) -> SeriesRegister:
        return StoreRegister(await open_store(self.url))

    async def process_opener(self, register: SeriesRegister) -> ProcessOpener:
        return ProcessOpener(f"{OPENERS}:open_store_register", self.url)


class TestSqlite(OnAStore):
    @pytest.fixture(autouse=True)
    def _in_a_folder(self, tmp_path: Path) -> None:
        self.urls = (f"sqlite:///{tmp_path}/{number}.db" for number in itertools.count())


class TestPostgres(OnAStore):
    @pytest.fixture(autouse=True)
    def _on_a_server(self, postgres_url: str) -> None:
        self.urls = iter([postgres_url])

    @pytest.mark.long
    def test_racing_processes_lose_no_claim(self) -> None:  # tests/series/test_concurrent_claims.py has a short one
        super().test_racing_processes_lose_no_claim()


class OnGit(RegisterConformance):
    urls: Iterator[str]

    async def open_register(self) -> SeriesRegister:
        return GitRegister(next(self.urls))

    async def open_another(self, register: SeriesRegister) -> SeriesRegister:
        return GitRegister(register.url)

    async def process_opener(self, register: SeriesRegister) -> ProcessOpener:
        return ProcessOpener(f"{OPENERS}:open_git_register", register.url)


# Each takes many git processes; the short tests are tests/series/test_git_register.py and test_git_https.py.


@pytest.mark.long
class TestGitInAFile(OnGit):
    @pytest.fixture(autouse=True)
    def _in_a_folder(self, tmp_path: Path) -> None:
        self.urls = (bare_repository(tmp_path / f"{number}.git") for number in itertools.count())


@pytest.mark.long
class TestGitOverHttp(OnGit):
    @pytest.fixture(autouse=True)
    def _on_a_server(self, tmp_path: Path) -> Iterator[None]:
        bare_repository(tmp_path / "remote.git")
        with over_http(tmp_path) as (address, _):
            self.urls = iter([f"{address}/remote.git"])
            yield


async def test_git_with_long_hashes_keeps_what_is_written_and_refuses_a_lost_update(tmp_path: Path) -> None:
    register = GitRegister(bare_repository(tmp_path / "remote.git", "--object-format=sha256"))
    token = await register.swap("RFC-1", None, "text", "claim")
    assert len(token) == 64
    assert await register.read("RFC-1") == Snapshot("text", token)
    with pytest.raises(RevisionConflict):
        await register.swap("RFC-1", None, "other", "claim")
    assert [change.text for change in await register.history("RFC-1", 9)] == ["text"]
    await register.close()


# -- registers that break a promise ------------------------------------------------------------------------------------


class Plain:
    """A register in a dictionary that keeps all promises; each subclass breaks one."""

    url = "plain:"

    def __init__(self, cells: dict[str, list[Change]] | None = None) -> None:
        self.cells: dict[str, list[Change]] = {} if cells is None else cells

    def clock(self) -> float:
        return 1.0

    def key(self, name: str) -> str:
        encode_name(name)
        return name

    def token(self, name: str, text: str) -> str:
        return str(len(self.cells.get(name, ())) + 1)

    def current(self, name: str) -> Snapshot:
        cell = self.cells.get(self.key(name))
        return Snapshot(cell[-1].text, cell[-1].token) if cell else Snapshot(None, None)

    async def read(self, name: str) -> Snapshot:
        return self.current(name)

    def allowed(self, name: str, expected: str | None, text: str) -> bool:
        return self.current(name).token == expected

    async def swap(self, name: str, expected: str | None, text: str, message: str) -> str:
        await asyncio.sleep(0)
        if not self.allowed(name, expected, text):
            raise RevisionConflict(name)
        key = self.key(name)
        token = self.token(key, text)
        self.cells.setdefault(key, []).append(Change(1.0, message, text, token))
        return token

    async def names(self) -> list[str]:
        return sorted(self.cells)

    async def history(self, name: str, limit: int) -> list[Change]:
        return self.cells.get(self.key(name), [])[::-1][:limit]

    async def close(self) -> None:
        pass


class WritesAnyway(Plain):
    def allowed(self, name: str, expected: str | None, text: str) -> bool:
        return True


class FirstWriteTwice(Plain):
    def allowed(self, name: str, expected: str | None, text: str) -> bool:
        return expected is None or super().allowed(name, expected, text)


class SameTextSameToken(Plain):
    """Like a git remote to which two clients push the same commit."""

    def token(self, name: str, text: str) -> str:
        return f"hash of {text}"


class UpToDate(Plain):
    """Like a client that checks the exit code only: text that is there already counts as written."""

    def allowed(self, name: str, expected: str | None, text: str) -> bool:
        return self.current(name).text == text or super().allowed(name, expected, text)


class AnyCase(Plain):
    def key(self, name: str) -> str:
        encode_name(name)
        return name.replace("/", "-").replace("%2F", "-")


class AnyName(Plain):
    def key(self, name: str) -> str:
        return name


class LooksThenWrites(Plain):
    async def swap(self, name: str, expected: str | None, text: str, message: str) -> str:
        if not self.allowed(name, expected, text):
            raise RevisionConflict(name)
        await asyncio.sleep(0)
        token = self.token(name, text)
        self.cells.setdefault(name, []).append(Change(1.0, message, text, token))
        return token


class OldestFirst(Plain):
    async def history(self, name: str, limit: int) -> list[Change]:
        return self.cells.get(self.key(name), [])[:limit]


class Tidies(Plain):
    async def swap(self, name: str, expected: str | None, text: str, message: str) -> str:
        return await super().swap(name, expected, text.strip(), message)


def problems_of(kind: Callable[..., Plain]) -> list[str]:
    class Checked(RegisterConformance):
        async def open_register(self) -> SeriesRegister:
            return kind()

        async def open_another(self, register: SeriesRegister) -> SeriesRegister:
            assert isinstance(register, Plain)
            return kind(register.cells)

    failed = []
    for name in dir(Checked):
        if name.startswith("test_"):
            try:
                getattr(Checked(), name)()
            except Exception:
                failed.append(name)
    return failed


def test_a_register_that_keeps_all_promises_passes_the_suite() -> None:
    assert problems_of(Plain) == []


@pytest.mark.parametrize(
    "kind",
    [
        *(WritesAnyway, FirstWriteTwice, SameTextSameToken, UpToDate, AnyCase, AnyName, LooksThenWrites),
        *(OldestFirst, Tidies),
    ],
)
def test_a_register_that_breaks_a_promise_fails_the_suite(kind: type[Plain]) -> None:
    assert problems_of(kind)
