"""Kept answers: a request with an ``Idempotency-Key`` is done once, and its repeats get the answer of the first.

A client whose connection was cut does not know whether its request was done; it sends the request again with the same
key. A key belongs to one credential and one request: its record has the hash of the operation and of all that was sent,
and another request with this key is refused.

Before a request is done its key is put into the store, and afterwards the answer. A repeat finds one of three cases:

- the answer is there: it is sent again;
- the first is under way, or was answered a moment ago: the repeat waits until the answer is in the store, or looks
  again for a while if another server does it;
- the first was not finished, since its server died or lost its store in the middle: the outcome is
  unknown. The repeat is not done, and says so.

The client does not wait until its answer is kept: answers of the same moment are written in one commit, ``WRITE_DELAY``
seconds after the first of them. Answers are kept for ``KEPT`` seconds. Of a credential with more than ``MOST_KEYS`` the
oldest are removed, but none that a client may still repeat (``FRESH``). An answer that is large or has a secret is not
kept: a repeat learns that the request was done. From time to time a server that meets a new credential removes what is
old of all others.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import logging
import math
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from starlette.responses import Response

from asterism.api.operation import KeyReused, NotKept, OutcomeLost
from asterism.base.http_limits import RequestRefused
from asterism.core.json_values import JsonObject
from asterism.store.optimistic_update import retry_on_conflict, try_commit
from asterism.store.protocol import PutRegister, Register, Store
from asterism.store.store_errors import StoreError

log = logging.getLogger("asterism.server")

PREFIX = "answer/"
KEPT = 86_400.0
"""How long an answer is kept, in seconds."""

MOST_KEYS = 1000
"""How many answers of one credential are kept, without the fresh ones. They are trimmed a tenth at a time."""

FRESH = 120.0
"""For how many seconds no answer is removed, however many there are: longer than clients repeat a request."""

SWEEP_INTERVAL = 3600.0
"""For how many seconds after a look at the answers of all credentials a server looks at none but the caller's."""

WRITE_DELAY = 0.05
"""After how many seconds answers are written, with those that came since."""

LARGEST_KEPT = 64 << 10
"""The largest answer that is kept, in bytes."""

LONGEST_KEY = 200
OTHER_SERVER = 15.0
"""How long after its beginning a request at another server may still be answered, in seconds."""

POLL = 0.5


@dataclass(frozen=True)
class KeyedRequest:
    """A request with a key. ``sha256`` is the hash of its operation and of all that was sent."""

    credential: str
    key: str
    sha256: str

    @classmethod
    def of(cls, credential: str, key: str, *parts: bytes) -> KeyedRequest:
        """Raises RequestRefused for a key that is not valid."""
        if not 1 <= len(key) <= LONGEST_KEY or not key.isascii() or not key.isprintable():
            raise RequestRefused(400, f"an Idempotency-Key has 1 to {LONGEST_KEY} printable ASCII characters")
        whole = hashlib.sha256()
        for part in parts:
            whole.update(len(part).to_bytes(8, "big") + part)
        return cls(credential, key, whole.hexdigest())

    @cached_property
    def register(self) -> str:
        return f"{PREFIX}{self.credential}/{hashlib.sha256(self.key.encode()).hexdigest()}"


@dataclass
class KeptAnswers:
    """The kept answers of a store. ``server`` names this process in the records of requests that it does; ``spawn``
    begins a task that ends with the server."""

    store: Store
    server: str
    spawn: Callable[[Coroutine[Any, Any, None]], object]
    _unwritten: list[PutRegister] = field(default_factory=list, repr=False)
    _under_way: dict[str, asyncio.Future[None]] = field(default_factory=dict, repr=False)
    _known: dict[str, dict[str, float]] = field(default_factory=dict, repr=False)
    """By credential: when each register was put, oldest first."""

    _swept_at: float = field(default=-math.inf, repr=False)

    async def answer(self, request: KeyedRequest, do: Callable[[], Awaitable[Response]], *, secret: bool) -> Response:
        """Do a request, or answer as the first with this key was answered. Whatever ``do`` raises leaves the outcome
        unknown.

        Raises KeyReused, NotKept, OutcomeLost and StoreError."""
        place = request.register
        while place in self._under_way:
            await asyncio.shield(self._under_way[place])
        self._under_way[place] = asyncio.get_running_loop().create_future()
        answered = False
        try:
            begun = await self._begin(request)
            if isinstance(begun, Register):
                return await self._repeated(request, begun)
            response = await do()
            self._keep(request, begun, response, secret)
            answered = True
            return response
        finally:
            if not answered:
                self._end(place)

    def _end(self, place: str) -> None:
        self._under_way.pop(place).set_result(None)

    async def _begin(self, request: KeyedRequest) -> Register | int:
        """Put the key into the store, and return the revision of its record; the record of an earlier request if there
        is one."""

        async def attempt() -> Register | int:
            earlier = await self.store.register(request.register)
            now = self.store.clock()
            if earlier is not None and _put_at(earlier, now) > now - KEPT:
                return earlier
            value = {"at": now, "sha256": request.sha256, "server": self.server}
            await self.store.commit([PutRegister(request.register, value, earlier.revision if earlier else None)])
            self._known[request.credential][request.register] = now
            return 1 if earlier is None else earlier.revision + 1

        await self._trim(request.credential, self.store.clock())
        return await retry_on_conflict(attempt)

    def _keep(self, request: KeyedRequest, revision: int, response: Response, secret: bool) -> None:
        """Keep an answer, in a moment. If the store or the server fails before, a repeat learns that the outcome is
        unknown, which is safe."""
        value: JsonObject = {"at": self.store.clock(), "sha256": request.sha256, "status": response.status_code}
        if len(response.body) <= LARGEST_KEPT and not secret:
            value |= {"body": bytes(response.body).decode(), "media": response.media_type or "application/json"}
        self._unwritten.append(PutRegister(request.register, value, revision))
        if len(self._unwritten) == 1:
            self.spawn(self._write_later())

    async def _write_later(self) -> None:
        await asyncio.sleep(WRITE_DELAY)
        await self.write()

    async def write(self) -> None:
        """Write the answers that are not in the store yet."""
        answers, self._unwritten = self._unwritten, []
        try:
            if answers and not await try_commit(self.store, answers):
                for answer in answers:  # the record of one of them was removed meanwhile
                    await try_commit(self.store, [answer])
        except StoreError as error:
            log.warning("the answers to %d requests were not kept: %s", len(answers), error)
        finally:
            for answer in answers:
                self._end(answer.key)

    async def _repeated(self, request: KeyedRequest, earlier: Register) -> Response:
        """The answer to a repeat."""
        latest: Register | None = earlier
        while latest is not None:
            value = latest.value if isinstance(latest.value, Mapping) else {}
            if value.get("sha256") != request.sha256:
                raise KeyReused("another request was sent with this Idempotency-Key: nothing was done; use a new key")
            if "body" in value:
                headers = {"idempotent-replayed": "true"}
                return Response(value["body"], value["status"], headers, value["media"])
            if "status" in value:
                raise NotKept("this was done already, with this Idempotency-Key; its answer is not kept: look at it")
            if value["server"] == self.server or self.store.clock() > value["at"] + OTHER_SERVER:
                break
            await asyncio.sleep(POLL)
            latest = await self.store.register(request.register)
        raise OutcomeLost(
            "the server stopped or lost its store in the middle of this request, and it is unknown whether it was "
            "done: look before you send it again"
        )

    async def _trim(self, credential: str, now: float) -> None:
        """Remove old answers of a credential. What another server has put is counted when this one first looks."""
        old: list[str] = []
        if credential not in self._known:
            prefix = f"{PREFIX}{credential}/"
            sweeps = now - self._swept_at > SWEEP_INTERVAL
            self._swept_at = now if sweeps else self._swept_at
            records = await self.store.registers(PREFIX if sweeps else prefix)
            times = {record.key: _put_at(record, now) for record in records}
            own = [(key, at) for key, at in times.items() if key.startswith(prefix)]
            self._known[credential] = dict(sorted(own, key=lambda item: item[1]))
            old = [key for key, at in times.items() if at < now - KEPT and not key.startswith(prefix)]
        known = self._known[credential]
        too_many = MOST_KEYS // 10 if len(known) >= MOST_KEYS else 0
        aged = list(itertools.takewhile(lambda item: item[1] < now - FRESH, known.items()))  # the oldest come first
        own_old = [key for number, (key, at) in enumerate(aged) if number < too_many or at < now - KEPT]
        for key in own_old:
            del known[key]
        old += own_old
        with contextlib.suppress(StoreError):  # the next start of a server finds them again
            present = [await self.store.register(key) for key in old]
            gone = [PutRegister(record.key, None, record.revision) for record in present if record is not None]
            if gone:
                await self.store.commit(gone)


def _put_at(record: Register, now: float) -> float:
    """When a record was put. A damaged one counts as new: it is unknown what it stood for."""
    at = record.value.get("at") if isinstance(record.value, Mapping) else None
    return float(at) if isinstance(at, int | float) and abs(at) < 1e300 else now
