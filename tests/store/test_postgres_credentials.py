"""Credentials that rotate while a store is open: each connection reads the password anew."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from asterism.store.protocol import PutRun, Query
from asterism.store.store_errors import StoreError, StoreUnavailable
from tests.laboratory.store_conformance.sample_records import a_run, ids
from tests.store.postgres_fixtures import opened
from tests.store.postgres_server import Server


@pytest.fixture(scope="module")
def guarded() -> Iterator[Server]:
    with Server(password="first") as server:
        yield server


@pytest.mark.parametrize("place", ["password file", "service"])
@pytest.mark.long
async def test_a_password_that_is_changed_while_a_store_is_open(
    guarded: Server, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "credentials"

    def write(password: str) -> None:
        service = f"[fleet]\nhost={guarded.folder}\nuser=postgres\ndbname=postgres\npassword={password}\n"
        file.write_text(service if place == "service" else f"*:*:*:postgres:{password}\n")
        file.chmod(0o600)

    def change(password: str) -> None:
        guarded.sql(f"ALTER ROLE postgres PASSWORD '{password}'")
        guarded._password = password

    change("first")
    write("first")
    url = f"postgresql://postgres@/postgres?host={guarded.folder}&passfile={file}"
    if place == "service":
        monkeypatch.setenv("PGSERVICEFILE", str(file))
        url = "postgresql:///?service=fleet"
    async with opened(url, schema=place.replace(" ", "_")) as store:
        await store.commit([PutRun(a_run(1), None)])
        change("second")
        guarded.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'asterism'")
        with contextlib.suppress(StoreError):
            await store.find(Query())  # a connection that the server has ended
        with pytest.raises(StoreUnavailable, match="the server refuses the login"):  # not yet in the file
            await store.find(Query())
        write("second")
        assert ids(await store.find(Query())) == ["r0001"]
        await store.commit([PutRun(a_run(2), None)])
        if place == "service":
            file.unlink()  # for a moment, while it is replaced
            store._quick._close_idle(0.0)
            with pytest.raises(StoreUnavailable, match="needs the file"):
                await store.run("r0001")
            write("second")
            assert await store.run("r0001") is not None
