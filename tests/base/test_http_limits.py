"""The limits that both HTTP servers share: who gets a place, who gives way, and how much is read."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from asterism.base import http_server
from asterism.base.error_log import RecurringError
from asterism.base.http_limits import Bodies, Connections, Limits, Pace, RequestRefused, network_of, places
from asterism.base.http_server import LimitedServer, Listener, TooManyConnections
from asterism.server.request_guard import SERVER_LIMITS
from tests.cli.peer_server_fixtures import connected, serving_peer, trusting
from tests.process_scenes import PATIENCE

# -- places ------------------------------------------------------------------------------------------------------------


class Opened:
    """Connections that are entered one after another; those that were closed, by number."""

    def __init__(self, limits: Limits, places: int) -> None:
        self.now = 100.0
        self.connections = Connections(limits, places, lambda: self.now)
        self.closed: list[int] = []

    def enter(self, address: str) -> Any:
        place = self.connections.enter(address)
        place.close = lambda: self.closed.append(place.number)
        return place


def test_there_is_always_room_for_one_more_and_the_oldest_of_the_same_address_goes() -> None:
    scene = Opened(Limits(per_address=3, fresh=0.0), places=20)
    for _ in range(5):
        scene.enter("10.0.0.1")
    assert scene.closed == [1, 2]
    scene.enter("10.0.0.2")
    assert scene.closed == [1, 2]


def test_when_all_places_are_taken_the_address_that_has_the_most_gives_way() -> None:
    scene = Opened(Limits(per_address=None), places=10)  # five of them for strangers
    quiet = scene.enter("10.0.0.1")
    for _ in range(6):
        scene.enter("10.0.0.2")
    assert scene.closed == [2, 3]
    assert quiet.number in scene.connections.strangers


def test_an_address_from_which_a_client_was_admitted_gives_way_last() -> None:
    scene = Opened(Limits(per_address=None), places=6)
    scene.enter("10.0.0.1").admit("laptop")
    for address in ("10.0.0.1", "10.0.0.1", "10.0.0.3", "10.0.0.4"):
        scene.enter(address)
    assert scene.closed == [4]


def test_what_a_stranger_asks_gives_it_no_longer_stay() -> None:
    """Slow requests kept 19 of 20 places, so that other clients of the same address were closed in the handshake."""
    scene = Opened(Limits(per_address=20), places=200)
    for _ in range(19):
        scene.enter("10.0.0.1").busy = True
    scene.now += 1.0
    peer = scene.enter("10.0.0.1")
    for _ in range(19):
        scene.enter("10.0.0.1")
    assert scene.closed == list(range(1, 20))
    peer.admit("laptop")


def test_who_has_just_come_is_spared_while_there_are_places() -> None:
    scene = Opened(Limits(per_address=3, fresh=1.0), places=20)  # ten of them for strangers
    other = scene.enter("10.0.0.2")
    flood = [scene.enter("10.0.0.1") for _ in range(9)]
    assert scene.closed == []
    scene.enter("10.0.0.1")  # there are no places any more
    assert scene.closed == [flood[0].number]
    scene.now += 1.0
    scene.enter("10.0.0.1")  # and the others are not fresh any more
    assert len([stranger for stranger in scene.connections.strangers.values() if stranger.address == "10.0.0.1"]) == 3
    assert other.number in scene.connections.strangers


def test_an_address_with_too_many_is_not_spared_because_a_client_was_admitted_from_it() -> None:
    scene = Opened(Limits(per_address=3, fresh=1.0), places=10)
    scene.enter("10.0.0.1").admit("laptop")
    quiet = scene.enter("10.0.0.2")
    flood = [scene.enter("10.0.0.1") for _ in range(6)]
    assert scene.closed == [flood[0].number, flood[1].number]
    assert quiet.number in scene.connections.strangers


def test_admitted_clients_have_places_of_their_own() -> None:
    scene = Opened(Limits(per_address=None, per_client=4), places=8)
    admitted = [scene.enter("10.0.0.1") for _ in range(4)]
    for place in admitted:
        place.admit("laptop")
    for _ in range(100):
        scene.enter("10.0.0.1")
    assert set(scene.connections.admitted) == {place.number for place in admitted}
    assert len(scene.connections.strangers) == 4


def test_an_idle_connection_of_a_client_gives_way_to_its_next_and_a_busy_one_does_not() -> None:
    scene = Opened(Limits(per_client=2), places=20)
    first, second, third = (scene.enter("10.0.0.1") for _ in range(3))
    first.admit("laptop")
    second.admit("laptop")
    first.busy = True
    third.admit("laptop")
    assert scene.closed == [second.number]
    third.busy = True
    with pytest.raises(RequestRefused, match="2 requests of laptop are under way: wait") as refused:
        scene.enter("10.0.0.1").admit("laptop")
    assert refused.value.status == 429
    scene.enter("10.0.0.1").admit("attic")  # and others are not kept out


def test_when_all_reserved_places_are_busy_a_client_is_told_to_come_again() -> None:
    scene = Opened(Limits(), places=8)
    for number in range(4):
        place = scene.enter(f"10.0.0.{number}")
        place.admit(f"peer {number}")
        place.busy = number > 0
    scene.enter("10.0.1.1").admit("another")  # the idle one gives way
    assert scene.closed == [1]
    scene.connections.admitted[5].busy = True
    with pytest.raises(RequestRefused, match="try again later"):
        scene.enter("10.0.1.2").admit("one more")


def test_a_connection_that_had_to_give_way_takes_no_reserved_place() -> None:
    """Its request was being answered meanwhile; its place was never given back."""
    scene = Opened(Limits(per_address=1, fresh=0.0), places=8)
    place = scene.enter("10.0.0.1")
    scene.enter("10.0.0.1")
    assert scene.closed == [place.number]
    with pytest.raises(RequestRefused, match="closed to make room"):
        place.admit("laptop")
    assert scene.connections.admitted == {}


def test_a_server_has_places_for_thousands_of_devices() -> None:
    connections = Connections(SERVER_LIMITS, places(SERVER_LIMITS, 20_000), lambda: 0.0)
    for number in range(10_000):  # each device has one that waits, and one for heartbeats
        place = connections.enter("10.0.0.1")
        place.admit(f"device {number // 2}")
        place.busy = number % 2 == 0
    assert (len(connections.admitted), connections.strangers_at_most) == (10_000, 1_000)
    for place in list(connections.admitted.values()):
        place.leave()
    assert not connections._of_client


def test_the_places_are_a_share_of_the_descriptors() -> None:
    assert places(Limits(), 1 << 20) == 200
    assert places(Limits(), 256) == 64
    assert places(Limits(), 10) == 8


@pytest.mark.parametrize(
    ("address", "other", "same"),
    [
        ("2001:db8::1", "2001:db8::ffff", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("fe80::1%eth0", "fe80::2%eth1", True),
        ("10.0.0.1", "10.0.0.2", False),
    ],
)
def test_a_machine_is_one_address_however_many_it_has(address: str, other: str, same: bool) -> None:
    assert (network_of(address) == network_of(other)) == same


# -- bodies ------------------------------------------------------------------------------------------------------------


def test_bodies_come_out_of_a_budget_of_which_each_client_has_a_part() -> None:
    bodies = Bodies(Limits(small=10, bodies=300))
    with bodies.reserved("laptop", 100, each=150), bodies.reserved("attic", 100, each=150):
        with pytest.raises(RequestRefused, match="other large requests of laptop") as refused:
            bodies.reserved("laptop", 60, each=150).__enter__()
        assert refused.value.status == 429
        with pytest.raises(RequestRefused, match="too many large requests are being read") as refused:
            bodies.reserved("cellar", 101, each=150).__enter__()
        assert refused.value.status == 503
        with bodies.reserved("laptop", 10, each=150):  # what is small always finds room
            pass
    with bodies.reserved("laptop", 1000, each=2000):  # what is allowed and larger than all of it goes alone
        pass


def test_the_least_rate_of_a_body_holds_all_the_time() -> None:
    """64 MB could trickle for half an hour, a byte every few seconds, as long as all of it came in the end."""
    pace = Pace(Limits(head=10.0, rate=1000), 0.0)
    assert pace.late_at == 10.0
    for second in range(1, 100):  # at that very rate there are always ten seconds in hand
        pace.came(1000, float(second))
        assert pace.late_at == second + 10.0
    pace.came(1_000_000, 100.0)
    assert pace.late_at == 110.0  # no credit accumulates
    for second in range(101, 109):
        pace.came(1, float(second))
    assert pace.late_at < 110.1


def happening(thing: Any, name: str) -> asyncio.Event:
    """Set when a method was called."""
    event, method = asyncio.Event(), getattr(thing, name)

    def called(*words: Any) -> Any:
        event.set()
        return method(*words)

    setattr(thing, name, called)
    return event


# -- real connections --------------------------------------------------------------------------------------------------


async def close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


async def hung_up(reader: asyncio.StreamReader) -> None:
    with suppress(ConnectionResetError):
        assert await reader.read() == b""


@pytest.mark.parametrize("tls", [False, True], ids=["before TLS", "after TLS"])
async def test_silent_connections_keep_no_client_out(tmp_path: Path, tls: bool) -> None:
    """120 idle TLS connections answered 503 to everybody; silent ones before TLS were not even counted."""
    async with serving_peer(tmp_path, Limits(per_address=None, connections=20)) as scene:
        opened = []
        async with scene.caller(await scene.token()) as caller:
            for number in range(120):
                opened.append(await connected(scene.url, trusting() if tls else None))
                if number % 30 == 0:
                    await caller.send({})
            await caller.send({})
            async with scene.caller(await scene.token("attic")) as another:  # one that was never here before
                await another.send({})
        for reader, _ in opened[:90]:
            await hung_up(reader)
        for _, writer in opened:
            await close(writer)


async def test_without_limits_for_strangers_they_all_stay(tmp_path: Path) -> None:
    """What the limit does: without it 60 connections that say nothing are 60 descriptors for as long as they like."""
    async with serving_peer(tmp_path, Limits(per_address=None, connections=1000, descriptors=1.0)) as scene:
        opened = [await connected(scene.url, trusting()) for _ in range(60)]
        async with scene.caller(await scene.token()) as caller:
            await caller.send({})
        assert not any(reader.at_eof() for reader, _ in opened)
        for _, writer in opened:
            await close(writer)


async def test_slow_uploads_of_one_peer_do_not_keep_others_out(tmp_path: Path) -> None:
    async with serving_peer(tmp_path, Limits(connections=12)) as scene:
        token = await scene.token()
        slow = []
        for _ in range(4):
            reader, writer = await connected(scene.url, trusting())
            head = f"POST /v1/meet HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\ncontent-length: 100\r\n\r\n"
            writer.write(head.encode())
            slow.append((reader, writer))
        async with scene.caller(await scene.token("attic")) as other:
            await other.send({})
        reader, writer = await connected(scene.url, trusting())
        writer.write(head.encode())
        assert b" 429 " in await reader.readline()  # its fifth
        for _, each in [*slow, (reader, writer)]:
            await close(each)


async def test_slow_requests_of_strangers_do_not_close_who_shares_their_address(tmp_path: Path) -> None:
    async with serving_peer(tmp_path, Limits(per_address=3, fresh=0.0)) as scene:
        token, invitation = await scene.token(), await scene.invitation("attic")
        slow = []
        for _ in range(2):
            reader, writer = await connected(scene.url, trusting())
            head = f"POST /v1/accept HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {invitation}\r\n"
            writer.write(f"{head}content-length: 100\r\nexpect: 100-continue\r\n\r\n".encode())
            assert b" 100 " in await reader.readline()  # it is being read
            slow.append(writer)
        reader, writer = await connected(scene.url, trusting())  # a peer, which has not shown its secret yet
        silent = [await connected(scene.url, trusting()) for _ in range(2)]
        head = f"POST /v1/meet HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n"
        writer.write(f"{head}content-length: 2\r\n\r\n{{}}".encode())
        assert b" 200 " in await reader.readline()
        for each in [*slow, writer, *(silent_writer for _, silent_writer in silent)]:
            await close(each)


async def test_nothing_is_read_of_who_shows_no_invitation(tmp_path: Path) -> None:
    async with serving_peer(tmp_path) as scene:
        for shown in ("", "authorization: Bearer nothing\r\n"):
            reader, writer = await connected(scene.url, trusting())
            writer.write(f"POST /v1/accept HTTP/1.1\r\nhost: x\r\n{shown}content-length: 100\r\n\r\n".encode())
            assert b" 401 " in await reader.readline()  # before any of the body has come
            await close(writer)


async def test_who_stops_in_the_middle_of_a_body_is_cut_off_however_large_it_is(tmp_path: Path) -> None:
    async with serving_peer(tmp_path, Limits(head=0.2, gap=3600.0, rate=1000)) as scene:
        token = await scene.token()
        reader, writer = await connected(scene.url, trusting())
        head = f"POST /v1/meet HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n"
        writer.write(f"{head}content-length: 10000000\r\n\r\n".encode() + b"x" * 100_000)
        async with asyncio.timeout(PATIENCE):
            assert b" 408 " in await reader.readline()
        await close(writer)


async def test_large_uploads_of_one_peer_do_not_take_the_room_of_others(tmp_path: Path) -> None:
    async with serving_peer(tmp_path, Limits(small=2000, bodies=5_000_000), most=4_000_000) as scene:
        token, other = await scene.token(), await scene.token("attic")
        scene.hearer.wanted = {"ab" * 32: 3_000_000}

        async def uploading(whose: str, store: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            reader, writer = await connected(scene.url, trusting())
            head = f"PUT /v1/blobs/{'ab' * 32} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {whose}\r\n"
            writer.write(
                f"{head}asterism-store: {store}\r\ncontent-length: 3000000\r\nexpect: 100-continue\r\n\r\n".encode()
            )
            return reader, writer

        first = await uploading(token, "store of laptop")
        assert b" 100 " in await first[0].readline()  # it is being read
        for whose, store, status in (
            (token, "store of laptop", b" 503 "),
            (other, "store of attic", b" 503 "),
        ):
            again = await uploading(whose, store)
            assert status in await again[0].readline()
            await close(again[1])
        async with scene.caller(other) as caller:
            await caller.send({"text": "x" * 1000})  # what is small is heard
        await close(first[1])


async def test_who_does_not_read_something_large_is_hung_up_on(tmp_path: Path) -> None:
    async with serving_peer(tmp_path, Limits(head=0.2, rate=1 << 40)) as scene:
        token = await scene.token()
        scene.hearer.blobs = {"ab" * 32: b"x" * 30_000_000}
        host, port = scene.url.removeprefix("https://").split(":")
        sock = socket.create_connection((host, int(port)))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        _, writer = await asyncio.open_connection(sock=sock, ssl=trusting(), server_hostname="x", limit=1)
        head = f"GET /v1/blobs/{'ab' * 32}?run=r1 HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n"
        left = happening(scene.connections, "leave")
        writer.write(f"{head}asterism-store: store of laptop\r\n\r\n".encode())
        await left.wait()
        assert not scene.connections.admitted
        writer.transport.abort()


# -- out of descriptors ------------------------------------------------------------------------------------------------


class Exhausted:
    """A socket whose accept fails until it is allowed to go well."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock, self.fails, self.failed = sock, False, asyncio.Queue[float]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def accept(self) -> Any:
        if self.fails:
            self.failed.put_nowait(asyncio.get_running_loop().time())
            raise OSError(errno.EMFILE, "Too many open files")
        return self._sock.accept()


async def nothing(scope: Any, receive: Any, send: Any) -> None:
    """An application that gets no request."""


@asynccontextmanager
async def listening(sock: Any, limits: Limits) -> AsyncIterator[Listener]:
    server = LimitedServer(nothing, limits, logging.getLogger("asterism.peers"), None)
    serving = asyncio.create_task(server.serve(sockets=[sock]))
    await server.ready.wait()
    try:
        yield server.listeners[0]
    finally:
        server.leaving.set()
        await serving
        sock.close()


async def test_out_of_descriptors_the_listener_pauses_gives_some_back_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(http_server, "ACCEPT_PAUSE", 0.05)
    caplog.set_level(logging.INFO)
    sock = Exhausted(socket.create_server(("127.0.0.1", 0)))
    async with listening(sock, Limits()) as listener:
        address = sock.getsockname()
        entered = happening(listener.connections, "enter")
        reader, writer = await asyncio.open_connection(*address)  # a stranger
        await entered.wait()
        sock.fails = True
        waiting = await asyncio.open_connection(*address)
        await hung_up(reader)  # its descriptor is needed
        first, second, third = [await sock.failed.get() for _ in range(3)]
        assert min(second - first, third - second) >= 0.04  # it does not spin
        entered.clear()
        sock.fails = False
        await entered.wait()
        for opened in (writer, waiting[1]):
            await close(opened)
    said = [record.message for record in caplog.records if record.name == "asterism.peers"]
    assert said[0].startswith("no connection can be accepted: Too many open files")
    assert len(said) == 2
    assert said[1].startswith("connections are accepted again")


class Kept:
    """A socket that keeps what it has accepted."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock, self.accepted = sock, list[socket.socket]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def accept(self) -> Any:
        sock, address = self._sock.accept()
        self.accepted.append(sock)
        return sock, address


async def test_an_answer_does_not_wait_until_the_client_has_acknowledged_its_head() -> None:
    sock = Kept(socket.create_server(("127.0.0.1", 0)))
    async with listening(sock, Limits()) as listener:
        entered = happening(listener.connections, "enter")
        _, writer = await asyncio.open_connection(*sock.getsockname())
        await entered.wait()
        [accepted] = sock.accepted
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
        await close(writer)


async def test_requests_that_are_none_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    sock = socket.create_server(("127.0.0.1", 0))
    async with listening(sock, Limits()):
        for _ in range(20):
            reader, writer = await asyncio.open_connection(*sock.getsockname())
            writer.write(b"\x00 nonsense\r\n\r\n")
            assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
            await close(writer)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_a_crowd_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with serving_peer(tmp_path, Limits(connections=8)) as scene:
        opened = [await connected(scene.url) for _ in range(50)]
        await hung_up(opened[0][0])
        for _, writer in opened:
            await close(writer)
    said = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert [message for message in said if "too many connections" in message] == [
        "too many connections: the oldest of 4 connections without authentication are closed"
    ]


async def test_a_flood_from_one_address_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One address has a small part of the places, so most of them were free, and each connection wrote two lines."""
    caplog.set_level(logging.INFO)
    async with serving_peer(tmp_path, Limits(connections=100, per_address=5, fresh=0.0)) as scene:
        opened = []
        for _ in range(60):  # each after the one before was accepted
            entered = happening(scene.connections, "enter")
            opened.append(await connected(scene.url))
            await entered.wait()
        await hung_up(opened[0][0])
        for _, writer in opened:
            await close(writer)
    said = [record.message for record in caplog.records if "connections" in record.message]
    assert said == ["too many connections: the oldest of 50 connections without authentication are closed"]


def test_what_comes_and_goes_is_over_when_it_was_not_met_for_a_while(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    now = [0.0]
    trouble = RecurringError(logging.getLogger("asterism.peers"), "crowded", "calm", lambda: now[0], calm=60.0)
    for second in range(30):
        now[0] = float(second)
        trouble.occurred(TooManyConnections("many"))
        trouble.recovered()
    now[0] = 88.0
    trouble.recovered()
    assert [record.message for record in caplog.records] == ["crowded: many"]
    now[0] = 89.0
    trouble.recovered()
    assert [record.message for record in caplog.records] == ["crowded: many", "calm, after 29 s"]
