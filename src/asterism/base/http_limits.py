"""Limits of HTTP servers: number and duration of connections, and the size and rate of bodies.

A connection counts from the moment it is accepted, before anything is read from it. It is a *stranger's* until a
request on it has authenticated its client. Strangers have places of their own, and a new one always gets a place: if an
address has too many, its oldest connection is closed; if all places are taken, the oldest connection of the address
with the most. So no client locks out others by opening idle connections. An authenticated client moves to the places
for admitted clients (a few for each client); if they are full, idle connections are closed first. Addresses
from which a client was recently admitted are the last from which strangers are closed, unless they have too many.

Among strangers of one address only the age decides: if a request gave a longer stay, slow requests would keep places
while connections in their handshake are closed. A new connection is spared for a moment while there are places, so a
client that shares an address with a flood can authenticate.

All places together use only a share of the file descriptors of the process. The rest is for its own work.

A body has a declared length and must arrive at a minimum rate. Before any of it is read, its length is taken from a
budget. Each client has a part of it. A small body is always read.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from itertools import count
from typing import TYPE_CHECKING, Any

from asterism.core.errors import AsterismError
from asterism.core.record import Record, Struct

if TYPE_CHECKING:
    from starlette.requests import Request

PROXY = "the proxy"
"""The client name of all connections behind a proxy: it sends requests of several clients through one."""

PLACE = "asterism.place"
"""The key of the Place of a request in its ASGI scope."""

FEWEST_PLACES = 8
MOST_DESCRIPTORS = 65_536
"""How many file descriptors a server asks for at most."""

ADDRESSES = 1000
"""How many addresses of admitted clients are remembered."""

CHUNK = 64 * 1024
"""How many bytes of a large answer are sent at once."""


class RequestRefused(AsterismError):
    """A request is refused with an HTTP status. ``retry_after`` is in seconds."""

    def __init__(self, status: int, message: str, retry_after: float | None = None) -> None:
        self.status, self.retry_after = status, retry_after
        super().__init__(message)


class Limits(Record):
    """``connections`` is the number of places, half of them for strangers, but at most ``strangers``. ``descriptors``
    is the share of the file descriptors of the process that they may use. ``per_address`` is how many strangers may
    have one address (None: no limit, for a server behind a proxy), ``per_client`` how many connections an admitted
    client may have. For ``fresh`` seconds a new connection is not closed because of others of its address, while there
    are places. ``handshake``, ``head`` and ``idle`` limit the TLS handshake, the head of a request and the pause
    between two requests; ``gap`` is the longest pause within a body, in seconds. ``rate`` is the minimum rate of a body
    in bytes per second, over the last ``head`` seconds. Bodies of up to ``small`` bytes are always read; ``bodies`` is
    how many bytes of larger ones may be read at once."""

    connections: int = 200
    strangers: int = 1000
    descriptors: float = 0.25
    per_address: int | None = 20
    per_client: int = 4
    fresh: float = 1.0
    handshake: float = 10.0
    head: float = 10.0
    idle: float = 30.0
    gap: float = 10.0
    rate: int = 32 * 1024
    small: int = 256 * 1024
    bodies: int = 256 * 1024 * 1024


def places(limits: Limits, descriptors: int) -> int:
    """The number of places in a process with so many file descriptors."""
    return max(FEWEST_PLACES, min(limits.connections, int(descriptors * limits.descriptors)))


def descriptor_limit() -> int:
    """The limit of file descriptors of this process."""
    try:
        import resource
    except ImportError:  # not on this system
        return 512
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft != resource.RLIM_INFINITY else 1 << 20


def raise_descriptor_limit() -> None:
    """Let this process have as many file descriptors as it may, where there are limits: a server has a connection for
    each device that waits for work."""
    try:
        import resource
    except ImportError:  # not on this system
        return
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if descriptor_limit() < wanted:
        with contextlib.suppress(OSError, ValueError):  # macOS has a lower limit that it does not name
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


# -- connections -------------------------------------------------------------------------------------------------------


class Place(Struct, eq=False):
    """One connection. ``close`` ends it at once. ``client`` is its client, None for a stranger. It is ``busy`` while a
    request is being answered; this counts only for admitted clients. ``since`` is when it was accepted."""

    connections: Connections
    address: str
    number: int
    since: float
    close: Callable[[], object] = lambda: None
    client: str | None = None
    busy: bool = False

    def admit(self, client: str) -> None:
        """Admit an authenticated client. Raises RequestRefused if this client, or all of them, have too many
        requests."""
        self.connections.admit(self, client)

    def readmit(self, client: str) -> None:
        """Admit a client, also on a connection of another one: a browser keeps its connection when somebody else logs
        in. Raises RequestRefused as ``admit`` does."""
        if self.client is not None and self.client != client:
            self.connections.hand_over(self, client)
        self.admit(client)

    def leave(self) -> None:
        """Give the place back: the connection is closed."""
        self.connections.leave(self)


class Connections:
    """The connections of one server, which has so many ``places``. ``now`` counts seconds. ``made_room`` is called
    whenever the connection of a stranger is closed for another one."""

    def __init__(
        self, limits: Limits, places: int, now: Callable[[], float], made_room: Callable[[], None] = lambda: None
    ) -> None:
        self.strangers_at_most = max(1, min(places // 2, limits.strangers))
        self._admitted_at_most = max(1, places - self.strangers_at_most)
        each = limits.per_address if limits.per_address is not None else self.strangers_at_most
        self._per_address = min(each, self.strangers_at_most)
        self._per_client, self._fresh, self._now, self._made_room = limits.per_client, limits.fresh, now, made_room
        self._numbers = count(1)
        self.strangers: dict[int, Place] = {}
        self.admitted: dict[int, Place] = {}
        self._of_client: dict[str, dict[int, Place]] = {}
        self._known: dict[str, None] = {}

    def enter(self, address: str) -> Place:
        """A place for a new connection. Another connection may be closed for it."""
        prefix, now = network_of(address), self._now()
        alike = [known for known in self.strangers.values() if known.address == prefix]  # the oldest first
        too_many = alike[: max(0, len(alike) + 1 - self._per_address)]
        for place in too_many:
            if now - place.since >= self._fresh:
                self._close(place)
        if len(self.strangers) >= self.strangers_at_most:
            self._close(self._most_dispensable())
        place = Place(self, prefix, next(self._numbers), now)
        self.strangers[place.number] = place
        return place

    def admit(self, place: Place, client: str) -> None:
        if place.client == client:
            return
        if place.client is not None:
            raise RequestRefused(400, "this connection belongs to another client: open a new one")
        if place.number not in self.strangers:  # it was closed for another one during its request
            raise RequestRefused(503, "the connection was closed to make room for others", 1.0)
        self._make_room_for(client)
        if len(self.admitted) >= self._admitted_at_most and not self._closed_idle(list(self.admitted.values())):
            raise RequestRefused(503, "too many requests are under way: try again later", 5.0)
        del self.strangers[place.number]
        self.admitted[place.number] = place
        self._give(place, client)
        self._known.pop(place.address, None)
        self._known[place.address] = None
        while len(self._known) > ADDRESSES:
            del self._known[next(iter(self._known))]

    def hand_over(self, place: Place, client: str) -> None:
        """Give an admitted connection to another client. Raises RequestRefused as ``admit`` does."""
        self._make_room_for(client)
        self._take(place)
        self._give(place, client)

    def _give(self, place: Place, client: str) -> None:
        self._of_client.setdefault(client, {})[place.number] = place
        place.client = client

    def _take(self, place: Place) -> None:
        its = self._of_client.get(place.client or "", {})
        its.pop(place.number, None)
        if place.client is not None and not its:
            self._of_client.pop(place.client, None)

    def _make_room_for(self, client: str) -> None:
        """Close an idle connection of a client that has as many as it may. Raises RequestRefused if none is idle."""
        its = list(self._of_client.get(client, {}).values())
        if len(its) >= self._per_client and not self._closed_idle(its):
            raise RequestRefused(429, f"{self._per_client} requests of {client} are under way: wait for them", 1.0)

    def leave(self, place: Place) -> None:
        self.strangers.pop(place.number, None)
        self.admitted.pop(place.number, None)
        self._take(place)

    def shed(self) -> None:
        """Close all connections of strangers, because descriptors are needed elsewhere."""
        for place in list(self.strangers.values()):
            self.leave(place)
            place.close()

    def close(self) -> None:
        for place in [*self.strangers.values(), *self.admitted.values()]:
            place.close()

    def _most_dispensable(self) -> Place:
        counts = Counter(place.address for place in self.strangers.values())
        spared = {address for address in self._known if counts[address] <= self._per_address}
        return min(
            self.strangers.values(), key=lambda place: (place.address in spared, -counts[place.address], place.number)
        )

    def _closed_idle(self, among: list[Place]) -> bool:
        idle = [place for place in among if not place.busy]
        if idle:
            self._close(min(idle, key=lambda place: place.number))
        return bool(idle)

    def _close(self, place: Place) -> None:
        if place.client is None:
            self._made_room()
        self.leave(place)
        place.close()


def network_of(address: str) -> str:
    """What counts as one address: for IPv6 the /64 network, since one machine may have any number of addresses in
    it."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.ip_network((parsed, 64), strict=False))
    return str(parsed)


def address_of(request: Request) -> str:
    """What counts as the address of who sent a request."""
    return network_of(request.client.host) if request.client is not None else "nowhere"


def bearer_token(request: Request) -> str:
    """The token in the header ``Authorization`` of a request; empty without one."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def place_of(request: Request) -> Place | None:
    """The place of the connection of a request; None without one."""
    place = request.scope.get(PLACE)
    return place if isinstance(place, Place) else None


# -- bodies ------------------------------------------------------------------------------------------------------------


class Bodies:
    """The budget of bodies that are being read or sent, by client."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._held: Counter[str] = Counter()

    @contextlib.contextmanager
    def reserved(self, client: str, size: int, each: int) -> Iterator[None]:
        """Reserve bytes for the block; a client may have ``each`` at once. A body larger than the whole budget, which a
        fleet may allow, is read alone. Raises RequestRefused."""
        if size <= self.limits.small:
            yield
            return
        if self._held[client] + size > each:
            raise RequestRefused(429, f"other large requests of {client} are under way: wait for them", 1.0)
        if sum(self._held.values()) + size > max(self.limits.bodies, size if not self._held else 0):
            raise RequestRefused(503, "too many large requests are being read: try again later", 5.0)
        self._held[client] += size
        try:
            yield
        finally:
            self._held[client] -= size
            if not self._held[client]:
                del self._held[client]

    def deadline(self, size: int) -> float:
        """The deadline of an answer of this size that begins now, by the clock of the event loop."""
        return asyncio.get_running_loop().time() + self.limits.head + size / self.limits.rate


class Pace:
    """The deadline of a body that must arrive at the minimum rate. A faster sender gains at most ``head`` seconds, so
    it cannot send most of a body at once and trickle the rest. ``now`` is the time of each call."""

    def __init__(self, limits: Limits, now: float) -> None:
        self._limits = limits
        self.late_at = now + limits.head

    def came(self, size: int, now: float) -> None:
        """Count received bytes."""
        self.late_at = min(self.late_at + size / self._limits.rate, now + self._limits.head)


def length_of(request: Request, most: int) -> int:
    """The declared length of the body of a request. Raises RequestRefused if it is missing or too large. With
    ``Transfer-Encoding`` the body has any length, whatever ``Content-Length`` says; with ``Content-Encoding`` it is not
    what its length says, and nothing is decompressed here."""
    if request.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        raise RequestRefused(415, "the body must not be compressed: send it without Content-Encoding")
    said = request.headers.get("content-length", "")
    if not (said.isascii() and said.isdigit() and len(said) < 20) or "transfer-encoding" in request.headers:
        raise RequestRefused(411, "the request needs the header Content-Length, and no Transfer-Encoding")
    if int(said) > most:
        raise RequestRefused(413, f"the body is too large: the limit is {most:,} bytes")
    return int(said)


async def read_body(request: Request, bodies: Bodies, *, client: str, most: int, each: int) -> bytes:
    """The body of a request, at most ``most`` bytes; ``each`` is as for ``reserved``. Raises RequestRefused, for a body
    that is too large or has no room before any of it is read."""
    from starlette.requests import ClientDisconnect

    length = length_of(request, most)
    came, size = list[bytes](), 0
    with bodies.reserved(client, length, each):
        now = asyncio.get_running_loop().time
        pace, parts = Pace(bodies.limits, now()), request.stream()
        try:
            async with contextlib.aclosing(parts):
                while (part := await _next_part(parts, bodies.limits.gap, pace.late_at)) is not None:
                    came.append(part)
                    size += len(part)
                    pace.came(len(part), now())
        except ClientDisconnect:
            raise RequestRefused(400, "the connection was closed") from None
        except TimeoutError:
            raise RequestRefused(408, f"the request was too slow: {size:,} of {length:,} bytes") from None
    return b"".join(came)


async def _next_part(parts: AsyncIterator[bytes], gap: float, deadline: float) -> bytes | None:
    async with asyncio.timeout_at(min(asyncio.get_running_loop().time() + gap, deadline)):
        return await anext(parts, None)


class LargeAnswer:
    """A large answer as an ASGI application, sent in parts, so that memory does not hold all of it for a client that
    does not read, and the connection is closed in time. ``held`` is closed at the end."""

    def __init__(self, data: bytes, bodies: Bodies, held: contextlib.ExitStack) -> None:
        self._data, self._bodies, self._held = data, bodies, held

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers = [
            (b"content-type", b"application/octet-stream"),
            (b"content-length", str(len(self._data)).encode()),
        ]
        with self._held:
            try:
                async with asyncio.timeout_at(self._bodies.deadline(len(self._data))):
                    await send({"type": "http.response.start", "status": 200, "headers": headers})
                    for start in range(0, len(self._data), CHUNK):
                        part = self._data[start : start + CHUNK]
                        await send({"type": "http.response.body", "body": part, "more_body": True})
                    await send({"type": "http.response.body", "body": b"", "more_body": False})
            except TimeoutError:
                if isinstance(place := scope.get(PLACE), Place):
                    place.close()
                    await receive()  # until it is closed


# -- how often something may happen ------------------------------------------------------------------------------------


MAX_REMEMBERED = 1000
"""How many keys are remembered."""


class RecentEvents:
    """Counts events by key, at most ``most`` within ``window`` seconds. Forgets the oldest keys."""

    def __init__(self, now: Callable[[], float], most: int, window: float) -> None:
        self._now, self._most, self._window = now, most, window
        self._times: dict[str, list[float]] = {}

    def wait(self, key: str) -> float | None:
        """How long to wait until one more is allowed, in seconds; None if it is now."""
        since = self._now() - self._window
        recent = [at for at in self._times.get(key, ()) if at > since]
        return recent[-self._most] - since if len(recent) >= self._most else None

    def check(self, key: str, excess: str) -> None:
        """Raises RequestRefused if one more is not allowed now; ``excess`` says of what there were too many."""
        wait = self.wait(key)
        if wait is not None:
            raise RequestRefused(429, f"{excess}: wait {wait:.0f} s", wait)

    def knows(self, key: str) -> bool:
        """Whether there was an event of this key, however long ago, that is not forgotten."""
        return key in self._times

    def add(self, key: str) -> None:
        times = self._times.pop(key, [])
        self._times[key] = [*times, self._now()][-self._most :]
        while len(self._times) > MAX_REMEMBERED:
            del self._times[next(iter(self._times))]


class RecentBytes:
    """Counts bytes by key within the last hour, in whole minutes. Forgets the oldest keys."""

    WINDOW, STEP = 3600.0, 60.0

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._sizes: dict[str, dict[float, int]] = {}  # by the end of the minute

    def add(self, key: str, size: int, most: int, excess: str) -> None:
        """Raises RequestRefused if there would be more than ``most``, with the seconds after which there is room."""
        now = self._now()
        known = self._sizes.pop(key, {})
        recent = self._sizes[key] = {end: count for end, count in known.items() if end + self.WINDOW > now}
        while len(self._sizes) > MAX_REMEMBERED:
            del self._sizes[next(iter(self._sizes))]
        if size > most:
            raise RequestRefused(413, f"{excess}: this request alone has {size:,} bytes")
        over, ends = sum(recent.values()) + size - most, iter(recent)
        if over > 0:
            while over > 0:
                over -= recent[end := next(ends)]
            wait = end + self.WINDOW - now
            raise RequestRefused(429, f"{excess}: come again in {wait:.0f} s", wait)
        end = now - now % self.STEP + self.STEP
        recent[end] = recent.get(end, 0) + size


# -- signatures of webhook deliveries ----------------------------------------------------------------------------------


REFUSAL_LOG_INTERVAL = 60.0
"""The least seconds between two lines in the log about a wrong signature: anybody can send one."""


def is_signed(
    secret: bytes, content: bytes, signatures: Iterable[str], text_of: Callable[[bytes], str] = bytes.hex
) -> bool:
    """Whether one of the signatures is right. It is computed once, however many a stranger sends."""
    expected = text_of(hmac.digest(secret, content, "sha256")).encode()
    return any(hmac.compare_digest(expected, signature.encode("utf-8", "replace")) for signature in signatures)


def signed_as_github(secret: bytes, body: bytes, header: str) -> bool:
    """Whether ``X-Hub-Signature-256`` is right for this body."""
    return header.startswith("sha256=") and is_signed(secret, body, [header.removeprefix("sha256=")])


class WrongSignatures:
    """Refuses wrong signatures, and logs them seldom. ``now`` is a monotonic clock in seconds."""

    def __init__(self, log: logging.Logger, now: Callable[[], float] = time.monotonic) -> None:
        self._log, self._now = log, now
        self._logged_at = -REFUSAL_LOG_INTERVAL

    def refusal(self) -> RequestRefused:
        now = self._now()
        if now - self._logged_at >= REFUSAL_LOG_INTERVAL:
            self._logged_at = now
            self._log.warning("refused a delivery with a wrong signature")
        return RequestRefused(401, "the signature is wrong")
