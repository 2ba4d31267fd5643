"""The links of a world of peers: they are cut, lose messages and answers, and deliver some of them twice."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from asterism.peers.exchange import Exchange, PeerUnreachable

if TYPE_CHECKING:
    from asterism.testing.sim.peer_world import PeerWorld

GIVES_UP = 2.0
"""After how many seconds a machine stops waiting for an answer."""


class Link:
    """The way from one machine to another."""

    def __init__(self, world: PeerWorld, here: str, there: str) -> None:
        self._world, self._here, self._there = world, here, there

    async def send(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        return await self._deliver(lambda one: one.answer(self._here, _copied(message)), repeats=True)  # type: ignore[no-any-return]

    async def fetch_blob(self, blob: str, run: str) -> bytes:
        data = await self._deliver(lambda one: one.read_blob(self._here, blob, run))
        if data is None:
            raise PeerUnreachable("it is not kept there")
        return bytes(data)

    async def send_blob(self, blob: str, data: bytes) -> None:
        await self._deliver(lambda one: one.receive_blob(self._here, blob, data))

    async def _deliver(self, ask: Callable[[Exchange], Any], repeats: bool = False) -> Any:
        world, chance = self._world, self._world.chance
        await world.lives_of(self._here).machine.gate()
        await asyncio.sleep(0.005 + 0.05 * chance.random())
        life = world.lives.get(self._there)
        if world.is_cut(self._here, self._there) or life is None or chance.random() < world.losses:
            await asyncio.sleep(GIVES_UP)
            raise PeerUnreachable(f"{self._there} does not answer")
        if repeats and chance.random() < world.losses:
            asyncio.get_running_loop().call_later(chance.uniform(0.1, 10.0), self._again, ask)
        answering = asyncio.ensure_future(ask(life.exchange))
        life.tasks.append(answering)
        done, _ = await asyncio.wait([answering], timeout=GIVES_UP)
        cut = world.is_cut(self._here, self._there) or chance.random() < world.losses
        if not done or cut or answering.cancelled():
            raise PeerUnreachable(f"no answer of {self._there}")
        return _copied(answering.result())

    def _again(self, ask: Callable[[Exchange], Any]) -> None:
        """The same message comes a second time, late. Nobody waits for the answer."""
        life = self._world.lives.get(self._there)
        if life is not None:
            life.tasks.append(asyncio.ensure_future(ask(life.exchange)))


def _copied(value: Any) -> Any:
    """What is left of it on a wire."""
    return value if value is None or isinstance(value, bytes) else json.loads(json.dumps(value))
