"""The sessions of MCP clients of older revisions, by the credential that opened them.

The SDK has one limit for all sessions. Each credential has one of its own here, so that nobody locks others out: the
session that was unused for longest makes room for a new one, and its client opens another. All sessions of a credential
end with it.

Which sessions there are is known from the answers of the SDK. One that it has ended because nobody used it is still
counted, and is the first to make room.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from asterism.base.http_limits import RequestRefused
from asterism.server.endpoint import ServerState
from asterism.server.request_guard import Caller

SESSIONS_EACH = 32
"""How many sessions one credential may have."""

EndSession = Callable[[Caller, str], Awaitable[None]]


class McpSessions:
    """``end`` ends a session of a caller."""

    def __init__(self, server: ServerState, end: EndSession) -> None:
        self._server, self._end = server, end
        self._sessions: dict[
            str, dict[str, int]
        ] = {}  # of each credential: requests under way, least recently used first
        self._opening: dict[str, int] = {}

    @contextmanager
    def used(self, caller: Caller, session: str | None) -> Iterator[None]:
        """A request in a session; it is in use until the block ends."""
        mine = self._sessions.get(caller.credential.id, {})
        if session is None or session not in mine:
            yield
            return
        mine[session] = mine.pop(session) + 1  # to the end
        try:
            yield
        finally:
            if session in mine:
                mine[session] = mine.pop(session) - 1

    @contextmanager
    def opening(self, caller: Caller) -> Iterator[None]:
        """A request that may open a session: it counts until the block ends."""
        identity = caller.credential.id
        self._opening[identity] = self._opening.get(identity, 0) + 1
        try:
            yield
        finally:
            self._opening[identity] -= 1
            if not self._opening[identity]:
                del self._opening[identity]

    async def make_room(self, caller: Caller) -> None:
        """End sessions that are unused, if a credential has too many. Call it in the block of ``opening``. Raises
        RequestRefused if all are in use."""
        identity = caller.credential.id
        while len(mine := self._sessions.get(identity, {})) + self._opening[identity] > SESSIONS_EACH:
            unused = next((session for session, requests in mine.items() if not requests), None)
            if unused is None:
                text = f"{SESSIONS_EACH} MCP sessions of {caller.name} are in use: close one of them"
                raise RequestRefused(429, text, 1.0)
            self.forget(caller, unused)
            await self._end(caller, unused)

    def add(self, caller: Caller, session: str) -> None:
        """A session was opened."""
        identity = caller.credential.id
        if identity not in self._sessions:
            self._sessions[identity] = {}
            self._server.spawn(self._end_all(caller))
        self._sessions[identity][session] = 0

    def forget(self, caller: Caller, session: str) -> None:
        """A session is over."""
        self._sessions.get(caller.credential.id, {}).pop(session, None)

    async def _end_all(self, caller: Caller) -> None:
        """End the sessions of a credential when it is revoked or expires."""
        await self._server.credential_ends.wait(caller.credential.id)
        for session in self._sessions.pop(caller.credential.id, {}):
            await self._end(caller, session)
