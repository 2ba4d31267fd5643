"""A simulated fleet whose runs make files, beside a collector that removes at once what nothing refers to."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO, TypeVar

from asterism.base.clock import stopped
from asterism.base.content_store import Content, ContentStore
from asterism.fleet import kept_files
from asterism.fleet.device.agent import DeviceAgent
from asterism.fleet.device.device_connection import DeviceAccess
from asterism.fleet.device.executor import RunWork
from asterism.fleet.fleet import Fleet
from tests.laboratory.simulator.faults import ALL
from tests.laboratory.simulator.fleet_world import FleetWorld
from tests.laboratory.simulator.machines import Machine, SimExecutor, Wire

PIECES = 20
"""How many different files there are: runs make the same ones."""

UPLOAD = 4.0
"""How long a file takes on average, in seconds."""

Answer = TypeVar("Answer")


def any_file(chance: random.Random) -> list[bytes]:
    return [b"file %d" % chance.randrange(PIECES)]


class SimContent:
    """Content in memory. Nothing of it is durable: that is another test's."""

    location = "sim://files"

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.kept: dict[str, tuple[bytes, float]] = {}

    def put(self, chunks: Iterable[bytes]) -> Content:
        data = b"".join(chunks)
        content = Content(hashlib.sha256(data).hexdigest(), len(data))
        self.kept[content.name] = data, self._clock()
        return content

    def open(self, name: str, offset: int = 0) -> BinaryIO | None:
        return io.BytesIO(self.kept[name][0][offset:]) if name in self.kept else None

    def is_new(self) -> bool:
        return True  # the coordinators of the fleet leave it alone: the world has its own collectors

    def names(self, kept_before: float = float("inf")) -> Iterator[str]:
        yield from [name for name, (_, at) in self.kept.items() if at < kept_before]

    def remove(self, name: str, kept_before: float) -> None:
        if name in self.kept and self.kept[name][1] < kept_before:
            del self.kept[name]

    def sweep(self, kept_before: float) -> None:
        """There are no unfinished puts."""


class _Collected(SimContent):
    """The same content as a collector finds it."""

    def __init__(self, content: SimContent) -> None:
        super().__init__(content._clock)
        self.kept, self.remove = content.kept, content.remove  # type: ignore[method-assign]

    def is_new(self) -> bool:
        return False


class FileExecutor(SimExecutor):
    """Executes runs that keep some files at their end, one after the other."""

    async def execute(self, work: RunWork) -> Any:
        value = await super().execute(work)
        content, entries = await work.artifacts(), list[list[Any]]()
        for _ in range(self._chance.randint(1, 3)):
            piece = content.put(any_file(self._chance))
            entries.append([f"file{len(entries)}", piece.size, piece.name, 0o644])
            await self._machine.sleep(self._chance.expovariate(1 / UPLOAD))
            await self._machine.gate()
        work.on_files(content.put([json.dumps({"files": entries}).encode()]).name)
        return value


class _FilesFleet(Fleet):
    def __init__(self, content: SimContent, wire: Wire, **options: Any) -> None:
        super().__init__(wire, **options)
        self._content = content

    async def artifacts(self) -> ContentStore:
        return self._content


class FileWorld(FleetWorld):
    """Machines that share a store, and runs that make files while machines fail and two collectors work all the time.

    Whenever a run has completed, all its files are there from then on. When the faults are over, no other file stays.
    The clock of the store does not jump: a real collector leaves an hour for that, this one nothing.
    """

    def __init__(self, seed: int, **arguments: Any) -> None:
        faults = [name for name in ALL if name != "clock_jump"]
        super().__init__(seed, **{"runs": 20, "faults": faults, **arguments})
        self.content = SimContent(self.store.clock)
        self._collecting = random.Random(seed)

    def agent(self, access: Fleet | DeviceAccess, machine: Machine, host: str, **options: Any) -> DeviceAgent:
        executor = FileExecutor(machine, self.checker, self.chance)
        return super().agent(access, machine, host, executor=executor, **options)

    def access(self, wire: Wire, machine: Machine, host: str) -> Fleet:
        return _FilesFleet(self.content, wire, by=machine.name, clock=machine, chance=self.chance)

    async def play(self) -> None:
        collectors = [asyncio.create_task(self._collect()) for _ in range(2)]
        try:
            await super().play()
        finally:
            await stopped(*collectors)
        await asyncio.sleep(1.0)
        await self._collect_once()
        manifests = await kept_files.manifests(self.store)
        if not self.checker.violations and set(self.content.kept) != set(kept_files.names_of(self.content, manifests)):
            self.checker.broken("files to which nothing refers stay")

    async def _collect(self) -> None:
        while not self.checker.violations:
            await asyncio.sleep(self._collecting.uniform(0.0, 2.0))
            self.content.put(any_file(self._collecting))  # as an execution leaves it whose end is refused
            await self._collect_once()
            self._check_files(await kept_files.manifests(self.store))

    async def _collect_once(self) -> None:
        await kept_files.collect(self.store, _Collected(self.content), age=0.0, apart=self._apart)

    async def _apart(self, function: Callable[..., Answer], *arguments: Any) -> Answer:
        """Call a function as a thread of a collector would: some time later."""
        await asyncio.sleep(self._collecting.uniform(0.0, 1.0))
        return function(*arguments)

    def _check_files(self, manifests: set[str]) -> None:
        for problem in kept_files.problems(self.content, manifests):
            self.checker.broken(f"the end of a run was acknowledged, and {problem}")
