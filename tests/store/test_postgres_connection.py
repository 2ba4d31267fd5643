"""The address of a PostgreSQL store: every form of the URL, and no password in messages."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pytest

from asterism.base.clock import ServerClock
from asterism.store.postgres import connection
from asterism.store.postgres.connection import Address, ConnectionFactory
from asterism.store.store_errors import StoreError, StoreMissing


def hosts(url: str) -> list[tuple[str | None, int | None]]:
    return [(host.get("host"), host.get("port")) for host in Address.parse(url).hosts]


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql://db.example/fleet", [("db.example", 5432)]),
        ("postgres://db.example:6000/fleet", [("db.example", 6000)]),
        ("postgresql://one,two:6000,[::1]:7000/fleet", [("one", 5432), ("two", 6000), ("::1", 7000)]),
        ("postgresql:///fleet?host=/run/pg&port=6000", [("/run/pg", 6000)]),
        ("postgresql:///fleet?host=one,two&port=1,2", [("one", 1), ("two", 2)]),
        ("postgresql:///fleet?host=one,two&port=1", [("one", 1), ("two", 1)]),
        ("postgresql://user@%2Frun%2Fpg/fleet", [("/run/pg", 5432)]),
        ("postgresql:///fleet", [(None, None)]),
        ("postgresql:///fleet?port=6000", [(None, 6000)]),
    ],
)
def test_every_way_to_name_servers_is_parsed(url: str, expected: list[tuple[str, int]]) -> None:
    assert hosts(url) == expected


def test_user_and_password_are_taken_out_of_the_url() -> None:
    [host] = Address.parse("postgresql://me:p%40ss%2Fword@db/fleet?sslmode=require").hosts
    assert (host["user"], host["password"]) == ("me", "p@ss/word")
    assert "p%40ss" not in host["dsn"]
    assert "sslmode=require" in host["dsn"]


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:secret@db/fleet",
        "postgresql://me:sec:secret@db/fleet",
        "postgresql://me:se@secret@db:5432/fleet?schema=a",
        "postgresql://me:/?#secret@db/fleet",
        "postgresql://db/fleet?user=me&password=secret",
        "postgresql://db/fleet?sslpassword=secret&user=me",
        "postgresql://me:secret@one,two/fleet",
    ],
)
def test_the_shown_address_has_no_password(url: str) -> None:
    try:
        shown = Address.parse(url).shown
    except StoreMissing as error:
        shown = str(error)
    assert "secret" not in shown


def test_the_shown_address_can_be_recognised() -> None:
    assert Address.parse("postgresql://me:secret@db:6000/fleet?schema=a").shown == (
        "postgresql://me:***@db:6000/fleet?schema=a"
    )


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:secret@db:no-number/fleet",
        "postgresql://db/fleet?host=a,b&port=1,2,3",
        "postgresql://[::1/fleet",
        "postgresql://db,[]:6000/fleet",
        "postgresql://[::1]6000/fleet",
        "postgresql://db/fleet?secret",
    ],
)
def test_an_invalid_address_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(StoreMissing, match="address of the store is not valid") as caught:
        Address.parse(url)
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_the_schema_is_in_the_url_or_given_or_asterism() -> None:
    assert Address.parse("postgresql://db/fleet").schema == "asterism"
    assert Address.parse("postgresql://db/fleet?schema=mine").schema == "mine"
    assert Address.parse("postgresql://db/fleet?schema=mine", "other").schema == "other"
    for wrong in ("Fleet", "a-b", 'a"b', "1a", "a" * 64, "a b", "ä"):
        with pytest.raises(StoreMissing, match="not a valid schema name"):
            Address.parse("postgresql://db/fleet", wrong)


def test_another_kind_of_store_is_refused() -> None:
    with pytest.raises(StoreMissing, match="begins with postgresql"):
        Address.parse("sqlite:///fleet.db")


def test_a_replica_cannot_be_asked_for() -> None:
    [host] = Address.parse("postgresql://db/fleet?target_session_attrs=standby&schema=a").hosts
    assert "target_session_attrs" not in host["dsn"]
    assert "schema" not in host["dsn"]


# -- encryption --------------------------------------------------------------------------------------------------------


@pytest.fixture
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("SSLMODE", "SSLROOTCERT", "SSLCERT", "SSLKEY", "HOST", "PORT", "SERVICE", "SERVICEFILE"):
        monkeypatch.delenv(f"PG{name}", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql://db/fleet", ["require"]),
        ("postgresql://10.0.0.7/fleet", ["require"]),
        ("postgresql://localhost.example.org/fleet", ["require"]),
        ("postgresql://localhost,db,127.0.0.2,[::1]/fleet", [None, "require", None, None]),
        ("postgresql:///fleet?host=/run/pg", [None]),
        ("postgresql:///fleet", [None]),
        ("postgresql://db/fleet?sslmode=disable", [None]),
        ("postgresql://db/fleet?sslmode=prefer", [None]),
    ],
)
@pytest.mark.usefixtures("no_settings")
def test_tls_is_required_on_the_way_to_another_machine(url: str, expected: list[str | None]) -> None:
    assert [host.get("ssl") for host in Address.parse(url).hosts] == expected


@pytest.mark.usefixtures("no_settings")
def test_the_environment_names_a_server_and_a_mode_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGHOST", "db,other")
    assert Address.parse("postgresql:///fleet").hosts[0]["ssl"] == "require"
    monkeypatch.setenv("PGSSLMODE", "prefer")
    assert "ssl" not in Address.parse("postgresql:///fleet").hosts[0]


@pytest.mark.parametrize("url", ["postgresql:///fleet", "postgresql://:5433/fleet", "postgresql:///fleet?port=5433"])
@pytest.mark.usefixtures("no_settings")
def test_each_server_that_the_environment_names_is_judged(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGHOST", "localhost,db,/run/pg,other:5435")
    monkeypatch.setenv("PGPORT", "5433")
    hosts = Address.parse(url).hosts
    expected = [("localhost", 5433, None), ("db", 5433, "require"), ("/run/pg", 5433, None), ("other", 5435, "require")]
    assert [(host["host"], host["port"], host.get("ssl")) for host in hosts] == expected


@pytest.mark.usefixtures("no_settings")
def test_no_host_of_a_list_is_left_to_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would take all those of PGHOST in its place."""
    monkeypatch.setenv("PGHOST", "db")
    with pytest.raises(StoreMissing, match="is not valid"):
        Address.parse("postgresql://localhost,,other/fleet")


SERVICES = """\
# of the whole team
[fleet]
host=localhost,db
port=5432,5433
dbname=runs
user=ann
password=100%&secret
connect_timeout=3
[trusted]
host=db
sslmode=disable
"""


@pytest.mark.usefixtures("no_settings")
def test_each_server_that_a_service_names_is_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".pg_service.conf").write_text(SERVICES)
    monkeypatch.setenv("PGHOST", "elsewhere")
    monkeypatch.setenv("PGSSLMODE", "")
    address = Address.parse("postgresql:///?service=fleet")
    hosts = [(host["host"], host["port"], host.get("ssl")) for host in address.hosts]
    assert hosts == [("localhost", 5432, None), ("db", 5433, "require")]
    assert "secret" not in address.shown
    for host in address.hosts:  # nothing is left to the driver
        query = dict(parse_qsl(urlsplit(host["dsn"]).query))
        assert query == {"dbname": "runs", "user": "ann", "password": "100%&secret"}
    assert [host.get("ssl") for host in Address.parse("postgresql:///?service=trusted").hosts] == [None]
    [own] = Address.parse("postgresql://other:5434/?service=fleet").hosts  # the address has precedence
    assert (own["host"], own["port"], own["ssl"]) == ("other", 5434, "require")
    monkeypatch.setenv("PGSERVICE", "fleet")
    assert [host.get("ssl") for host in Address.parse("postgresql:///").hosts] == [None, "require"]


@pytest.mark.usefixtures("no_settings")
def test_a_service_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "services"
    monkeypatch.setenv("PGSERVICEFILE", str(file))
    with pytest.raises(StoreMissing, match=rf"service 'fleet' of the address .* the file {file}: No such file"):
        Address.parse("postgresql:///?service=fleet")
    file.write_text("host=db\n")
    with pytest.raises(StoreMissing, match="it is not a file of services"):
        Address.parse("postgresql:///?service=fleet")
    file.write_text(SERVICES)
    with pytest.raises(StoreMissing, match=rf"there is no service 'other' in {file}"):
        Address.parse("postgresql:///?service=other")


class DecliningServer:
    """Declines TLS, and asks for the password in plain text."""

    def __init__(self) -> None:
        self.received, self.left = b"", asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.received += await reader.readexactly(8)  # the request for TLS
        writer.write(b"N")
        for _ in range(2):  # who connects, and the password
            self.received += await reader.read(1000)
            writer.write(b"R" + struct.pack(">II", 8, 3))
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        self.left.set()


@pytest.mark.parametrize(("mode", "sent"), [("", False), ("?sslmode=prefer", True)])
@pytest.mark.usefixtures("no_settings")
async def test_nothing_is_sent_to_a_server_that_declines_tls(
    mode: str, sent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "is_loopback", lambda host: False)  # as if it were another machine
    there = DecliningServer()
    async with await asyncio.start_server(there.serve, "127.0.0.1", 0) as server:
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        factory = ConnectionFactory(Address.parse(f"postgresql://me:secret@{address}/fleet{mode}"), 3.0, ServerClock())
        with pytest.raises(StoreError) as refused:
            await factory.connect({})
        await there.left.wait()
    assert (b"secret" in there.received) is sent
    if not sent:
        assert isinstance(refused.value, StoreMissing)
        assert "the server declined TLS, and nothing was sent" in str(refused.value)
        assert len(there.received) == 8


@pytest.mark.parametrize("mode", ["verify-full", "verify-ca"])
@pytest.mark.usefixtures("no_settings")
def test_verification_without_a_certificate_says_what_is_missing(mode: str, tmp_path: Path) -> None:
    with pytest.raises(
        StoreMissing, match=rf"sslmode={mode} needs the certificate of the authority .* sslrootcert=FILE"
    ):
        Address.parse(f"postgresql://db/fleet?sslmode={mode}")
    with pytest.raises(StoreMissing, match=r"there is no file none\.pem, which sslrootcert of the address"):
        Address.parse(f"postgresql://db/fleet?sslmode={mode}&sslrootcert=none.pem")
    (tmp_path / ".postgresql").mkdir()
    (tmp_path / ".postgresql" / "root.crt").write_text("")
    Address.parse(f"postgresql://db/fleet?sslmode={mode}")
