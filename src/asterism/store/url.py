"""Store addresses: open the store that a URL names.

====================================  ===================================================================
``sqlite:///fleet.db``                a file, relative to the current directory
``sqlite:////var/lib/fleet.db``       a file, from the root
``fleet.db``, ``/var/lib/fleet.db``   the same, if there is a dot or a slash in it
``postgresql://user@host/database``   a PostgreSQL server (``postgres://`` is the same)
``memory:``                           this process only, until it ends
====================================  ===================================================================

Without a URL, the environment variable ``ASTERISM_STORE`` names the store; without that, it is a file in the user's
data directory.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

from asterism.base.text import masked_url
from asterism.store.protocol import Store
from asterism.store.sqlite import SqliteStore
from asterism.store.store_errors import StoreError, StoreMissing, StoreNotFound

VARIABLE = "ASTERISM_STORE"
FORMS = "valid addresses are sqlite:///file.db, sqlite:////from/the/root.db, postgresql://… and memory:"


async def open_store(url: str | None = None, *, create: bool = True) -> Store:
    """Open a store.

    :param url: its address; None for the default store.
    :param create: create the store if it does not exist.
    :raises StoreMissing: the store does not exist, and was not or cannot be created.
    :raises StoreError: the address is not valid, or the engine cannot open the store.
    """
    named = url if url is not None else os.environ.get(VARIABLE) or None
    if named is None:
        file = default_file(make=create)
        if not create and not file.parent.is_dir():
            raise StoreNotFound(f"there is no store {file}")
        return await SqliteStore.open(file, create=create)
    scheme, colon, _ = named.partition(":")
    if not colon and ("." in named or "/" in named):
        return await SqliteStore.open(_file_of(named, f"///{named}"), create=create)
    if not colon:
        shown = masked_url(named)
        raise StoreError(
            f"{shown!r} is not the address of a store: {FORMS}; for a file of this name write sqlite:///{shown}"
        )
    match scheme.lower():
        case "sqlite":
            return await SqliteStore.open(_file_of(named, named.partition(":")[2]), create=create)
        case "postgresql" | "postgres":
            return await _open_postgres(named, create=create)
        case "memory":
            return _open_memory(named)
    raise StoreError(f"unknown kind of store {scheme!r}: {FORMS}")  # the rest may contain a password


def default_file(
    *, make: bool = False, environment: Mapping[str, str] = os.environ, platform: str = sys.platform
) -> Path:
    """Return the file of the default store. With ``make``, create its folder, for this user alone."""
    file = _data_directory(environment, platform) / "asterism" / "fleet.db"
    if make and not file.parent.is_dir():
        try:
            file.parent.parent.mkdir(parents=True, exist_ok=True)
            file.parent.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise StoreMissing(
                f"cannot create the directory {file.parent} for the store: {error}; name another store in {VARIABLE}"
            ) from error
    return file


def _data_directory(environment: Mapping[str, str], platform: str) -> Path:
    home = Path(os.path.expanduser("~"))
    if platform == "win32":
        return Path(environment.get("LOCALAPPDATA") or home / "AppData" / "Local")
    if platform == "darwin":
        return home / "Library" / "Application Support"
    named = environment.get("XDG_DATA_HOME", "")
    return (
        Path(named) if os.path.isabs(named) else home / ".local" / "share"
    )  # the XDG specification: ignore a relative path


def _file_of(url: str, rest: str) -> str:
    """Return the path after ``sqlite:///``; one from the root has four slashes."""
    if not rest.startswith("///"):
        shown = masked_url(url)
        raise StoreError(
            f"{shown!r} has too few slashes: for a file in this directory write sqlite:///{masked_url(rest.lstrip('/'))}"
        )
    path = rest[3:]
    if not path:
        raise StoreError(f"{masked_url(url)!r} does not name a file: {FORMS}")
    if path == ":memory:":
        raise StoreError("for a store in memory write memory:, without sqlite")
    return os.path.expanduser(path)


async def _open_postgres(url: str, *, create: bool) -> Store:
    # in a thread: the import of the driver takes a tenth of a second
    module = await asyncio.to_thread(import_module, "asterism.store.postgres")
    store: Store = await module.PostgresStore.open(url, create=create)
    return store


def _open_memory(url: str) -> Store:
    if url.partition(":")[2].strip("/"):
        raise StoreError(f"a store in memory has no name: write memory: instead of {masked_url(url)!r}")
    from asterism.store.memory import MemoryStore

    return MemoryStore()
