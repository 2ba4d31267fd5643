"""Connections to a PostgreSQL server: its address, the pool, and an estimate of the server's clock.

The address is ``postgresql://user:password@host:port/database?schema=asterism``, with any parameter that PostgreSQL
understands. ``service=NAME`` (or ``PGSERVICE``) takes what the URL leaves out from the file of services. Several hosts
(``//one,two:5433/…``, or ``?host=one,two&port=5432,5433``) are servers of one cluster: they are tried in turn, each
with its share of the time, so that a server that is down does not use up all of it.

A connection to another machine uses TLS, unless ``sslmode`` says otherwise: the default of PostgreSQL's clients, to
fall back to plain text, would send the password to any server that declines TLS.

Connections are opened on demand and closed when idle. All of them go to the server that takes writes. Each has time
limits for a statement, for a lock, for a transaction whose client sleeps, and for the answer of a server that is gone,
so that no call waits forever.
"""

from __future__ import annotations

import asyncio
import configparser
import contextlib
import logging
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit, urlunsplit

import asyncpg

from asterism.base.clock import ServerClock
from asterism.base.https_session import is_loopback
from asterism.base.text import masked_url
from asterism.store.postgres.commit_history import CommitHistory
from asterism.store.postgres.error_mapping import is_collision, spoils, translated
from asterism.store.store_errors import StoreBusy, StoreError, StoreMissing, StoreReadOnly, StoreUnavailable

log = logging.getLogger(__name__)

SCHEMA = "asterism"
OLDEST_SERVER = 15
IDLE = 60.0
"""How long an unused connection is kept, in seconds."""

QUICK = {"plan_cache_mode": "force_generic_plan"} | dict.fromkeys(
    ("enable_seqscan", "enable_bitmapscan", "enable_hashjoin", "enable_mergejoin"), "off"
)
"""Settings for reads and writes by id: one plan for all arguments, by index. It is made while the tables are empty, and
still right when they are full."""

BROAD = {"plan_cache_mode": "force_custom_plan"}
"""Settings for queries: a plan for each call."""

COLLISION_TRIES = 5
"""How often to try a transaction that deadlocks with another."""

Result = TypeVar("Result")

_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_HOST = re.compile(r"(?:\[([^][]+)\]|([^][:]*))(?::([0-9]*))?")
_SERVERS = re.compile(r"[a-z0-9+.-]*://([^/?#\s]*)", re.IGNORECASE)


@dataclass(frozen=True)
class Address:
    """``shown`` is the URL without its passwords. ``hosts`` has the arguments of asyncpg's ``connect``, one set for
    each server."""

    url: str
    shown: str
    schema: str
    hosts: tuple[dict[str, Any], ...]

    @classmethod
    def parse(cls, url: str, schema: str | None = None) -> Address:
        """Parse a URL. ``schema`` takes precedence over that of the URL. Raises StoreMissing if it is not valid,
        without repeating it: it may contain a password."""
        try:
            parts, servers = _split(url)
            query = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
            name = schema or query.pop("schema", "") or SCHEMA
            login, _, hostlist = servers.rpartition("@")
            service = _service(query.pop("service", "") or os.environ.get("PGSERVICE", ""))
            if hostlist or query.get("host"):
                service = {key: value for key, value in service.items() if key not in ("host", "port")}
            query = service | query
            if "@" in parts.path:
                raise ValueError("a misplaced login would be taken for the name of a database")
            hosts = list(_hosts(unquote(hostlist) or query.pop("host", ""), query.pop("port", "")))
        except ValueError:
            raise StoreMissing(
                "the address of the store is not valid; it should look like postgresql://user@host:5432/database, "
                "with anything but letters, digits, '-', '.', '_' and '~' in the password written as %XX"
            ) from None
        if parts.scheme not in ("postgresql", "postgres"):
            raise StoreMissing(f"the address of a store in PostgreSQL begins with postgresql://, not {parts.scheme}://")
        if not _NAME.fullmatch(name):
            raise StoreMissing(
                f"{name!r} is not a valid schema name: use up to 63 lower-case letters, digits and '_', no digit first"
            )
        query.pop("target_session_attrs", None)  # nothing is decided on a replica
        query.pop("schema", None)
        user, _, password = login.partition(":")
        options = {"dsn": urlunsplit(("postgresql", "", parts.path, urlencode(query, safe="/,:"), ""))}
        options |= {"user": unquote(user)} if user else {}
        options |= {"password": unquote(password)} if password else {}
        mode = query.get("sslmode") or os.environ.get("PGSSLMODE")
        _check_certificates(mode, query)
        return cls(url, masked_url(url), name, tuple(options | host | _encryption(mode, host) for host in hosts))


def _encryption(mode: str | None, host: Mapping[str, Any]) -> dict[str, str]:
    """The argument ``ssl`` for a server: TLS is required for other machines, unless there is an ``sslmode``."""
    name = host.get("host", "")
    return {} if mode or not name or name.startswith(("/", "@")) or is_loopback(name) else {"ssl": "require"}


def _check_certificates(mode: str | None, query: Mapping[str, str]) -> None:
    """Raises StoreMissing if a file that the connection needs does not exist: the driver says so less clearly."""
    files = {
        name: query.get(name) or os.environ.get(f"PG{name.upper()}") for name in ("sslrootcert", "sslcert", "sslkey")
    }
    for name, file in files.items():
        if file and not os.path.isfile(file):
            raise StoreMissing(f"there is no file {file}, which {name} of the address of the store names")
    usual = os.path.expanduser("~/.postgresql/root.crt")
    if mode in ("verify-ca", "verify-full") and not files["sslrootcert"] and not os.path.isfile(usual):
        raise StoreMissing(
            f"sslmode={mode} needs the certificate of the authority that signed the one of the server: add "
            f"sslrootcert=FILE to the address of the store, or put it into {usual}"
        )


_OF_SERVICE = frozenset(
    {"host", "port", "dbname", "user", "password", "passfile", "krbsrvname", "gsslib", "sslmode", "sslcert", "sslkey"}
    | {"sslrootcert", "sslcrl", "sslpassword", "sslnegotiation", "ssl_min_protocol_version", "ssl_max_protocol_version"}
)
"""The parameters that a service may have; others are for other clients."""


def _service(name: str) -> dict[str, str]:
    """The parameters of a service, from the file of services. The driver must not read it itself: each of its hosts is
    judged on its own, as those of an address are. Raises StoreMissing."""
    if not name:
        return {}
    file = os.environ.get("PGSERVICEFILE") or os.path.expanduser("~/.pg_service.conf")
    services = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        with open(file, encoding="utf-8") as lines:
            services.read_file(lines)
    except (OSError, ValueError, configparser.Error) as error:
        detail = error.strerror if isinstance(error, OSError) else "it is not a file of services"
        raise StoreMissing(
            f"the service {name!r} of the address of the store needs the file {file}: {detail}"
        ) from None
    if name not in services:
        raise StoreMissing(f"there is no service {name!r} in {file}, which the address of the store names")
    return {key: value for key, value in services[name].items() if key in _OF_SERVICE and value}


def _split(url: str) -> tuple[SplitResult, str]:
    """The URL without its servers, and the servers: newer releases of Python refuse brackets that do not come first."""
    match = _SERVERS.match(url)
    if match is None:
        raise ValueError("there is no //")
    return urlsplit(url[: match.start(1)] + url[match.end(1) :]), match[1]


def _hosts(names: str, ports: str) -> Iterator[dict[str, Any]]:
    """Yield ``{"host": …, "port": …}`` for each host, those of ``PGHOST`` if the address names none. If there are none
    either, yield one without ``host``: asyncpg then uses this machine. It must not read ``PGHOST`` itself: each host
    needs its own decision about TLS."""
    if names.startswith(":") and "," not in names:
        names, ports = "", names[1:]
    if not names:
        names, ports = os.environ.get("PGHOST", ""), ports or os.environ.get("PGPORT", "")
    numbers = [int(port) if port else None for port in ports.split(",")]
    if not names:
        yield {"port": numbers[0]} if numbers[0] is not None else {}
        return
    all_names = names.split(",")
    if len(numbers) not in (1, len(all_names)):
        raise ValueError("the numbers of ports and hosts differ")
    for place, address in enumerate(all_names):
        host, port = _host_and_port(address)
        if not host:
            raise ValueError("a host of the list has no name")
        yield {"host": host, "port": port or numbers[place if len(numbers) > 1 else 0] or 5432}


def _host_and_port(text: str) -> tuple[str, int | None]:
    if text.startswith("/"):
        return text, None
    match = _HOST.fullmatch(text)
    if match is None:
        raise ValueError("not a host")
    return match[1] or match[2], int(match[3]) if match[3] else None


class Connection(Protocol):
    """What we use of asyncpg's connections."""

    async def execute(self, query: str, *args: Any) -> str: ...
    async def fetch(self, query: str, *args: Any) -> list[Any]: ...
    async def fetchrow(self, query: str, *args: Any) -> Any: ...
    async def fetchval(self, query: str, *args: Any) -> Any: ...
    def transaction(self, **options: Any) -> Any: ...
    def cursor(self, query: str, *, prefetch: int) -> AsyncIterator[Any]: ...
    async def copy_to_table(self, table: str, *, source: Any, columns: Any) -> str: ...
    async def add_listener(self, channel: str, callback: Any) -> None: ...
    def add_termination_listener(self, callback: Any) -> None: ...
    def add_log_listener(self, callback: Any) -> None: ...
    def get_server_version(self) -> Any: ...
    def is_closed(self) -> bool: ...
    def is_in_transaction(self) -> bool: ...
    async def close(self, *, timeout: float) -> None: ...
    def terminate(self) -> None: ...


class ConnectionFactory:
    """Opens connections to one address. ``timeout`` is the longest time for a statement, in seconds; the limit for
    locks is a part of it."""

    def __init__(self, address: Address, timeout: float, clock: ServerClock) -> None:
        self.address = address
        self.timeout = timeout
        self.clock = clock
        self.history = CommitHistory(address.shown)
        self.opened = False
        """Whether the store was opened: from then on a server that refuses writes, or the login while the password is
        being changed, is temporarily unavailable."""
        self.pooled = False
        """Whether the server is behind a connection pooler that keeps no settings of a session."""
        self._first = 0
        """The server to try first: the one that took the last connection."""

    async def connect(self, settings: Mapping[str, str]) -> Connection:
        """Open a connection, with the password as it is now in its file. Raises a StoreError that says for each server
        why it cannot be used."""
        try:
            hosts = Address.parse(self.address.url, self.address.schema).hosts
        except StoreMissing as error:
            if self.opened:  # a file that it names is being replaced
                raise StoreUnavailable(str(error)) from error
            raise
        refusals: list[StoreError] = []
        for number in sorted(range(len(hosts)), key=lambda number: number != self._first):
            try:
                connection = await self._connect_to(hosts[number], settings)
            except (OSError, asyncpg.PostgresError, asyncpg.InternalClientError, asyncpg.InterfaceError) as error:
                refusal = _refusal(error, self.address.shown)
                if self.opened and isinstance(error, asyncpg.InvalidAuthorizationSpecificationError):
                    refusal = StoreUnavailable(str(refusal))
                log.debug("no connection to a server of the store: %s", refusal)
                refusals.append(refusal)
            else:
                self._first = number
                return connection
        raise self._verdict(refusals)

    async def _connect_to(self, host: dict[str, Any], settings: Mapping[str, str]) -> Connection:
        settings = {**self._limits(), **settings}
        options = {
            **host,
            "timeout": self.timeout / 3 / len(self.address.hosts),
            "command_timeout": self.timeout,
        }
        if not self.pooled:
            try:
                connection: Connection = await asyncpg.connect(
                    **options, target_session_attrs="read-write", server_settings=settings
                )
            except asyncpg.ProtocolViolationError:  # PgBouncer refuses settings that it does not know
                self.pooled = True
            else:
                try:
                    if self.opened or await _has_settings(connection, settings):
                        return connection
                except BaseException:
                    connection.terminate()
                    raise
                self.pooled = True  # it ignores them
                connection.terminate()
        return await PooledConnection.open(options, settings)

    def _limits(self) -> dict[str, str]:
        return {
            "application_name": "asterism",
            "search_path": f'"{self.address.schema}", pg_temp',  # temporary tables last, not first
            "statement_timeout": str(int(self.timeout * 900)),
            "lock_timeout": str(int(self.timeout * 1000 / 6)),
            "idle_in_transaction_session_timeout": str(int(self.timeout * 1000 / 6)),
            "tcp_keepalives_idle": "60",
            "default_transaction_isolation": "read committed",
            "synchronous_commit": "on",
            "jit": "off",
        }

    def _verdict(self, refusals: list[StoreError]) -> StoreError:
        reasons = "; ".join(dict.fromkeys(str(refusal) for refusal in refusals))
        kinds = {type(refusal) for refusal in refusals}
        if len(kinds) == 1 and not (self.opened and StoreReadOnly in kinds):
            return kinds.pop()(reasons)
        return StoreUnavailable(reasons)


async def _has_settings(connection: Connection, settings: Mapping[str, str]) -> bool:
    search_path = await connection.fetchval("SELECT current_setting('search_path')")
    return bool(search_path == settings["search_path"])


def _refusal(error: Exception, shown: str) -> StoreError:
    """Return the StoreError for a failure to connect. A host name that cannot be resolved now may be resolved later."""
    if isinstance(error, ValueError) and not isinstance(error, OSError):
        return StoreMissing(f"{shown}: the address of the store is not valid")
    if isinstance(error, ConnectionError) and "rejected SSL upgrade" in str(error):
        return StoreMissing(
            f"{shown}: the server declined TLS, and nothing was sent: enable TLS there (ssl = on); or, only if the "
            "network between is trusted, add sslmode=disable to the address"
        )
    meant = translated(error, shown)
    return meant if isinstance(meant, StoreError) else StoreUnavailable(str(meant))


class ConnectionPool:
    """Up to ``most`` connections with the same settings."""

    def __init__(self, factory: ConnectionFactory, settings: Mapping[str, str], most: int) -> None:
        self._factory = factory
        self._settings = settings
        self._room = asyncio.Semaphore(most)
        self._idle: list[tuple[float, Connection]] = []
        self._unsure: set[Connection] = set()
        """Connections whose commit may not be on the standby."""
        self._reaper: asyncio.TimerHandle | None = None
        self._closed = False

    @contextlib.asynccontextmanager
    async def borrowed(self, *, whole: bool = True) -> AsyncIterator[Connection]:
        """Lend a connection for the block. Errors of the driver leave the block as StoreErrors.

        :param whole: the time limit is for the whole block, not for each statement. See ``limit``.
        """
        history = self._factory.history
        history.refuse_lost()
        async with self._place():
            idle = self._take_idle()
            connection = idle or await self._open()
            verified = False
            try:
                with self.limit(connection) as timer:
                    if idle is None or history.is_due(pooled=self._factory.pooled):
                        await history.verify(connection)
                    verified = True
                    if not whole:
                        timer.cancel()
                    yield connection
                if connection in self._unsure:
                    raise asyncpg.ConnectionFailureError(
                        "it may not be on the standby: the wait for that was cancelled"
                    )
            except Exception as error:
                if spoils(error) or not verified:
                    history.doubt()
                    self._discard(connection)
                    self._close_idle(0.0)  # the others are probably broken too
                else:
                    self._return(connection)
                meant = translated(error, self._factory.address.shown)
                if meant is error:
                    raise
                raise meant from error
            except BaseException:
                history.doubt()  # cancelled during a statement
                self._discard(connection)
                raise
            self._return(connection)

    @contextlib.asynccontextmanager
    async def _place(self) -> AsyncIterator[None]:
        """Raises StoreBusy if all connections are in use for too long."""
        try:
            if not self._room.locked():  # the usual case, on the way of every statement
                await self._room.acquire()
            else:
                async with asyncio.timeout(self._factory.timeout):
                    await self._room.acquire()
        except TimeoutError:
            raise StoreBusy(f"{self._factory.address.shown}: all connections of this process are in use") from None
        try:
            yield
        finally:
            self._room.release()

    @contextlib.contextmanager
    def limit(self, connection: Connection) -> Iterator[asyncio.TimerHandle]:
        """Give the connection up when the block takes too long. The driver would cancel the statement instead: a commit
        that waits for a synchronous standby would then be done without it, and others would see what may get lost. The
        server ends every other statement by its own limits."""
        timer = asyncio.get_running_loop().call_later(self._factory.timeout, connection.terminate)
        try:
            yield timer
        except (asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            late = not timer.cancelled() and asyncio.get_running_loop().time() >= timer.when()
            if late and connection.is_closed():
                raise TimeoutError from error
            raise
        finally:
            timer.cancel()

    async def repeated(self, attempt: Callable[[Connection], Awaitable[Result]], *, whole: bool = True) -> Result:
        """Return the result of ``attempt``, which is one transaction, and repeated after a deadlock or a serialization
        failure. ``whole`` is that of ``borrowed``."""
        tries = 1
        while True:
            try:
                async with self.borrowed(whole=whole) as connection:
                    return await attempt(connection)
            except StoreBusy as error:
                if tries == COLLISION_TRIES or not is_collision(error):
                    raise
                tries += 1

    async def fetch(self, query: str, *args: Any) -> list[Any]:
        return await self.repeated(lambda connection: connection.fetch(query, *args))

    async def fetchrow(self, query: str, *args: Any) -> Any:
        return await self.repeated(lambda connection: connection.fetchrow(query, *args))

    def acknowledged(self, position: int | None, transaction: int | None, timeline: str | None) -> None:
        """Remember a commit that returned: see ``commit_history``."""
        self._factory.history.acknowledged(position, transaction, timeline)

    async def _open(self) -> Connection:
        if self._closed:
            raise StoreUnavailable(f"{self._factory.address.shown}: this store is closed")
        connection = await self._factory.connect(self._settings)
        if self._closed:
            connection.terminate()
            raise StoreUnavailable(f"{self._factory.address.shown}: this store is closed")
        connection.add_log_listener(lambda _, message: self._warned(connection, message))
        return connection

    def _warned(self, connection: Connection, message: Any) -> None:
        """The server says that it committed without its standby, since somebody cancelled the wait. It then reports
        success: the message comes before that."""
        if message.server_source_function == "SyncRepWaitForLSN":  # the SQLSTATE is that of many warnings
            log.warning("%s: %s", self._factory.address.shown, message)
            self._unsure.add(connection)

    def _take_idle(self) -> Connection | None:
        while self._idle:
            _, connection = self._idle.pop()
            if not connection.is_closed():
                return connection
        return None

    def _return(self, connection: Connection) -> None:
        if self._closed or connection.is_closed() or connection.is_in_transaction():
            self._discard(connection)
            return
        self._unsure.discard(connection)
        loop = asyncio.get_running_loop()
        self._idle.append((loop.time(), connection))
        if self._reaper is None:
            self._reaper = loop.call_later(IDLE, self._reap)

    def _discard(self, connection: Connection) -> None:
        self._unsure.discard(connection)
        if not connection.is_closed():
            connection.terminate()

    def _reap(self) -> None:
        self._reaper = None
        self._close_idle(IDLE)
        if self._idle:
            self._reaper = asyncio.get_running_loop().call_later(IDLE, self._reap)

    def _close_idle(self, longer_than: float) -> None:
        now = asyncio.get_running_loop().time()
        old = [connection for since, connection in self._idle if now - since >= longer_than]
        self._idle = [(since, connection) for since, connection in self._idle if now - since < longer_than]
        for connection in old:
            self._discard(connection)

    async def close(self) -> None:
        """Close idle connections now, and the others when they are returned."""
        self._closed = True
        if self._reaper is not None:
            self._reaper.cancel()
        idle, self._idle = self._idle, []
        for _, connection in idle:
            with contextlib.suppress(Exception):
                await connection.close(timeout=5.0)


# -- a connection behind a pooler --------------------------------------------------------------------------------------


class PooledConnection:
    """Has the methods of asyncpg's connections that the store uses. ``settings`` are those of each transaction."""

    def __init__(self, connection: Any, settings: Mapping[str, str]) -> None:
        self._connection = connection
        values = "; ".join(
            f"SET LOCAL {name} = {value if name == 'search_path' else _quoted(value)}"
            for name, value in settings.items()
            if name not in _OF_SESSION
        )
        self._settings = values

    @classmethod
    async def open(cls, options: Mapping[str, Any], settings: Mapping[str, str]) -> PooledConnection:
        """Connect with these arguments of asyncpg's ``connect``. Raises as that does, also for a server that refuses
        writes."""
        name = {"application_name": settings["application_name"]}
        connection = cls(await asyncpg.connect(**options, statement_cache_size=0, server_settings=name), settings)
        try:
            if await connection.fetchval("SELECT current_setting('transaction_read_only')") == "on":
                raise asyncpg.TargetServerAttributeNotMatched("the server takes no writes")
        except BaseException:
            connection.terminate()
            raise
        return connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    async def execute(self, query: str, *args: Any) -> Any:
        if query == "BEGIN":
            return await self._connection.execute(f"BEGIN ISOLATION LEVEL READ COMMITTED; {self._settings}")
        return await self._performed("execute", query, args)

    async def fetch(self, query: str, *args: Any) -> Any:
        return await self._performed("fetch", query, args)

    async def fetchrow(self, query: str, *args: Any) -> Any:
        return await self._performed("fetchrow", query, args)

    async def fetchval(self, query: str, *args: Any) -> Any:
        return await self._performed("fetchval", query, args)

    async def _performed(self, method: str, query: str, args: tuple[Any, ...]) -> Any:
        """Perform a statement: in the transaction that is open, or in one of its own."""
        perform = getattr(self._connection, method)
        if self._connection.is_in_transaction():
            return await perform(query, *args)
        await self.execute("BEGIN")
        try:
            result = await perform(query, *args)
        except Exception:
            with contextlib.suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):  # the first one counts
                await self._connection.execute("ROLLBACK")
            raise
        await self._connection.execute("COMMIT")
        return result

    async def cursor(self, query: str, *, prefetch: int) -> AsyncIterator[Any]:
        """Yield the rows of a query without arguments. The driver's cursor would prepare a statement with a name, which
        the session may have from another process."""
        await self._connection.execute(f"DECLARE asterism_rows NO SCROLL CURSOR FOR {query}")
        while rows := await self._connection.fetch(f"FETCH {prefetch} FROM asterism_rows"):
            for row in rows:
                yield row
        await self._connection.execute("CLOSE asterism_rows")

    @contextlib.asynccontextmanager
    async def transaction(self, **options: Any) -> AsyncIterator[None]:
        async with self._connection.transaction(**{"isolation": "read_committed", **options}):
            await self._connection.execute(self._settings)
            yield


_OF_SESSION = ("application_name", "tcp_keepalives_idle", "default_transaction_isolation")
"""Settings of the connection between pooler and server, or that the transaction has in another form."""


def _quoted(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
