"""Store addresses: which store a URL names, and the default store."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from importlib import import_module
from pathlib import Path

import pytest

from asterism.store.memory import MemoryStore
from asterism.store.sqlite import SqliteStore
from asterism.store.store_errors import StoreError, StoreMissing
from asterism.store.url import VARIABLE, default_file, open_store


@pytest.fixture(autouse=True)
def _a_home_of_our_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.delenv(VARIABLE, raising=False)


async def file_of(url: str | None) -> Path:
    store = await open_store(url)
    try:
        assert isinstance(store, SqliteStore)
        assert not await store.counts()
        return store.path
    finally:
        await store.close()


async def test_three_slashes_are_relative_and_four_are_from_the_root(tmp_path: Path) -> None:
    os.mkdir(tmp_path / "home")
    assert await file_of("sqlite:///fleet.db") == tmp_path / "fleet.db"
    assert await file_of(f"sqlite:///{tmp_path}/a fleet%20?.db") == tmp_path / "a fleet%20?.db"
    assert await file_of("SQLite:///./home/../other.db") == tmp_path / "home/../other.db"
    assert await file_of("sqlite:///~/fleet.db") == tmp_path / "home" / "fleet.db"
    assert sorted(os.listdir(tmp_path)) == ["a fleet%20?.db", "fleet.db", "home", "other.db"]


async def test_memory_is_memory() -> None:
    for url in ("memory:", "memory://"):
        store = await open_store(url)
        assert isinstance(store, MemoryStore)
        await store.close()


async def test_the_environment_variable_names_the_default_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "sqlite:///named.db")
    assert await file_of(None) == tmp_path / "named.db"
    assert await file_of("sqlite:///said.db") == tmp_path / "said.db"


async def test_the_default_store_is_a_file_in_the_data_directory_for_this_user_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "")
    for _ in range(2):
        file = await file_of(None)
        assert file == default_file()
        assert tmp_path in file.parents
        assert stat.S_IMODE(os.stat(file.parent).st_mode) == 0o700


@pytest.mark.parametrize(
    ("platform", "environment", "expected"),
    [
        ("linux", {"XDG_DATA_HOME": "/data"}, "/data"),
        ("linux", {}, "~/.local/share"),
        ("linux", {"XDG_DATA_HOME": ""}, "~/.local/share"),
        ("linux", {"XDG_DATA_HOME": "relative"}, "~/.local/share"),
        ("darwin", {"XDG_DATA_HOME": "/data"}, "~/Library/Application Support"),
        ("win32", {"LOCALAPPDATA": "/users/ann/local"}, "/users/ann/local"),
        ("win32", {}, "~/AppData/Local"),
    ],
)
def test_each_platform_has_its_own_data_directory(platform: str, environment: dict[str, str], expected: str) -> None:
    file = default_file(environment=environment, platform=platform)
    assert file == Path(os.path.expanduser(expected)) / "asterism" / "fleet.db"


async def test_a_data_directory_that_cannot_be_created_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.close(os.open(tmp_path / "file", os.O_CREAT))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "file"))
    with pytest.raises(StoreMissing, match=rf"cannot create the directory .*file/asterism for the store.*{VARIABLE}"):
        await open_store(None)


@pytest.mark.parametrize("named", ["fleet.db", "./fleet"])
async def test_a_file_may_be_named_without_a_scheme(
    named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = await open_store(named)
    await store.close()
    assert (tmp_path / named).is_file()


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("fleet", r"'fleet' is not the address of a store.*for a file of this name write sqlite:///fleet"),
        ("", "is not the address of a store"),
        ("sqlite:fleet.db", r"too few slashes: for a file in this directory write sqlite:///fleet\.db"),
        ("sqlite://fleet.db", r"too few slashes: for a file in this directory write sqlite:///fleet\.db"),
        ("sqlite:///", "does not name a file"),
        ("sqlite:///:memory:", "for a store in memory write memory:"),
        ("memory:fleet", "a store in memory has no name"),
        ("mysql://ann:secret@host/fleet", "unknown kind of store 'mysql': valid addresses are sqlite:///"),
    ],
)
async def test_an_invalid_url_is_refused_with_advice(url: str, words: str) -> None:
    with pytest.raises(StoreError, match=words) as raised:
        await open_store(url)
    assert "secret" not in str(raised.value)


async def test_without_asyncpg_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("asterism.store.postgres")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    for scheme in ("postgresql", "postgres"):
        with pytest.raises(StoreMissing, match="install the extra 'postgres'"):
            await open_store(f"{scheme}://ann:secret@localhost/fleet")


async def test_postgresql_is_opened_by_its_own_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    PostgresStore = (await asyncio.to_thread(import_module, "asterism.store.postgres")).PostgresStore
    opened: list[str] = []

    async def open_it(url: str, *, create: bool) -> MemoryStore:
        opened.append(url)
        return MemoryStore()

    monkeypatch.setattr(PostgresStore, "open", open_it)
    for url in ("postgresql://ann@localhost/fleet", "postgres://localhost/fleet"):
        await open_store(url)
    assert opened == ["postgresql://ann@localhost/fleet", "postgres://localhost/fleet"]


async def test_without_create_no_store_is_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.delenv("ASTERISM_STORE", raising=False)
    for url in (None, f"sqlite:///{tmp_path}/fleet.db"):
        with pytest.raises(StoreMissing, match="there is no store"):
            await open_store(url, create=False)
    assert os.listdir(tmp_path) == []
