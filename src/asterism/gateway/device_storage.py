"""What devices of a gateway may store: the log of each attempt, and results and notices within an hour.

A device has no store, so that it is the gateway that holds to the limits of the settings, whatever the device does.

**Logs.** Of each attempt, ``log_limit`` bytes are kept. A device that keeps to it has up to twice as much here for a
moment: the chunks at the end of a log are dropped after others have come (core/attempt_log.py). What exceeds that is
left out.

**Results.** A large result is stored before the run that refers to it ends, so that a device may store what no run will
ever refer to. Such blobs go after an hour (fleet/retention.py); until then ``device_bytes`` bounds them. The result
that reaches the limit is still stored, so that no limit is too small for one result; the device sends the next one
when there is room again.

**Files.** They count as results do, until the run ends that has made them: from then on they belong to it. A part of a
file that would exceed ``device_bytes`` is refused for good, since an execution cannot wait for an hour.

**Notices.** A device has a few in an hour: one when its health changes, and one for each grant whose result came too
late. The same said again is no notice.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from asterism.base.clock import Clock
from asterism.base.http_limits import RecentEvents, RequestRefused
from asterism.base.log_recorder import LONGEST_LINE
from asterism.core.attempt_log import BLOCK_COST, LogChunk
from asterism.core.run.run import Grant
from asterism.fleet.settings import Settings
from asterism.gateway.gateway_messages import GatewayRefusal
from asterism.store.protocol import PutLog, Store, StoredChunk

log = logging.getLogger("asterism.gateway")

HOUR = 3600.0

NOTICES_PER_HOUR = 60
"""How many notices each device may cause within an hour. A device that changes its health has a few."""

GRANTS_REMEMBERED = 10_000
"""Of how many grants it is remembered how much they store, and that there is a notice about a late result."""

ATTEMPTS_REMEMBERED = 10_000
"""The logs of how many attempts are counted in memory; those of others are read again from the store."""


@dataclass(slots=True)
class _AttemptLog:
    """The chunks of the log of an attempt in the store, by their first line, and what each costs."""

    costs: dict[int, int]
    total: int
    exceeded: bool = False

    def drop(self, first: int, before: int) -> None:
        for number in [number for number in self.costs if first <= number < before]:
            self.total -= self.costs.pop(number)

    def put(self, first: int, cost: int, most: int) -> bool:
        """Count a chunk in place of the one with the same first line, if there is room. Returns whether there is."""
        total = self.total - self.costs.get(first, 0) + cost
        if total > most:
            return False
        self.costs[first], self.total = cost, total
        return True


class DeviceStorage:
    """``settings`` reads the settings of the fleet."""

    def __init__(self, store: Store, clock: Clock, settings: Callable[[], Awaitable[Settings]]) -> None:
        self._store, self._clock, self._settings = store, clock, settings
        self._attempts: OrderedDict[tuple[str, int], _AttemptLog] = OrderedDict()
        self._stored: dict[str, tuple[float, float]] = {}  # bytes of each device, fading away, and when it was counted
        self._of_files: OrderedDict[Grant, int] = OrderedDict()  # of those, the bytes of files
        self._notices = RecentEvents(clock.time, NOTICES_PER_HOUR, HOUR)
        self._late: OrderedDict[Grant, None] = OrderedDict()

    # -- logs --------------------------------------------------------------------------------------------------------

    async def log_part(self, device: str, part: PutLog) -> PutLog:
        """The part of a log without the chunks that exceed the limit of the attempt."""
        limit = (await self._settings()).log_limit
        most = 2 * (limit + LONGEST_LINE) if limit else 0
        known = await self._attempt(part.run, part.epoch)
        if part.drop is not None:
            known.drop(*part.drop)
        kept = [chunk for chunk in part.chunks if known.put(chunk.first, _cost(chunk), most)]
        if len(kept) < len(part.chunks) and not known.exceeded:
            known.exceeded = True
            text = "device %s sent more of the log of run %s than the limit of %s bytes: the rest is left out"
            log.warning(text, device, part.run, f"{limit:,}")
        return replace(part, chunks=kept)

    async def _attempt(self, run: str, epoch: int) -> _AttemptLog:
        attempt_log = self._attempts.get((run, epoch))
        if attempt_log is None:  # this server has not seen it, or has forgotten it
            costs = {chunk.first: _cost(chunk) for chunk in await self._store.log(run) if chunk.epoch == epoch}
            # another message may have asked at the same time
            attempt_log = self._attempts.setdefault((run, epoch), _AttemptLog(costs, sum(costs.values())))
        self._attempts.move_to_end((run, epoch))
        while len(self._attempts) > ATTEMPTS_REMEMBERED:
            self._attempts.popitem(last=False)
        return attempt_log

    # -- results -----------------------------------------------------------------------------------------------------

    async def admit(self, device: str) -> None:
        """Raises RequestRefused if a device has stored too much in the last hour: it may try again later."""
        most = (await self._settings()).device_bytes
        excess = self._level(device, most) - most
        if excess >= 0:
            wait = max(1.0, excess * HOUR / max(1, most))
            text = f"device {device} has stored {most:,} bytes of results within an hour (setting device_bytes)"
            raise RequestRefused(429, f"{text}: wait {wait:.0f} s", wait)

    async def add(self, device: str, size: int) -> None:
        """Count what a device stores."""
        most = (await self._settings()).device_bytes
        self._stored[device] = (self._level(device, most) + size, self._clock.time())

    # -- files -------------------------------------------------------------------------------------------------------

    async def admit_part(self, device: str, size: int) -> None:
        """Raises GatewayRefusal if a device has stored too much in the last hour to store a part of a file."""
        most = (await self._settings()).device_bytes
        if self._level(device, most) + size > most:
            text = f"device {device} may store {most:,} bytes within an hour that no run refers to yet"
            advice = "raise it with: asterism fleet set --device-bytes SIZE"
            raise GatewayRefusal(409, "quota", f"{text} (setting device_bytes): {advice}")

    async def add_part(self, device: str, grant: Grant, size: int) -> None:
        """Count a part of a file that a device stores for a grant."""
        await self.add(device, size)
        self._of_files[grant] = self._of_files.pop(grant, 0) + size
        while len(self._of_files) > GRANTS_REMEMBERED:
            self._of_files.popitem(last=False)

    def refer_to_files(self, device: str, grant: Grant) -> None:
        """The run of a grant refers to its files from now on: they count no more."""
        level, at = self._stored.get(device, (0.0, 0.0))
        self._stored[device] = (max(0.0, level - self._of_files.pop(grant, 0)), at)

    def _level(self, device: str, most: int) -> float:
        """How much of its limit a device has used: as much as the limit fades away in an hour."""
        level, at = self._stored.get(device, (0.0, 0.0))
        level -= (self._clock.time() - at) * most / HOUR
        if level <= 0.0:
            self._stored.pop(device, None)
        return max(0.0, level)

    # -- notices -----------------------------------------------------------------------------------------------------

    def admit_notice(self, device: str) -> None:
        """Raises RequestRefused if a device has caused too many notices in the last hour: it may try again later."""
        self._notices.check(device, f"device {device} has caused {NOTICES_PER_HOUR} notices within an hour")

    def add_notice(self, device: str) -> None:
        """Count a notice."""
        self._notices.add(device)

    def add_late_notice(self, device: str, grant: Grant) -> bool:
        """Count a notice about a result that came too late, if it is the first of its grant, and there is room.
        Returns whether it is."""
        if grant in self._late or self._notices.wait(device) is not None:
            return False
        self._notices.add(device)
        self._late[grant] = None
        if len(self._late) > GRANTS_REMEMBERED:
            self._late.popitem(last=False)
        return True


def _cost(chunk: StoredChunk) -> int:
    """What a chunk costs, as devices count it; that of a blob is its size."""
    if isinstance(chunk.value, dict):
        return int(chunk.value.get("size", BLOCK_COST))
    return max(BLOCK_COST, sum(block.cost for block in LogChunk.from_json(chunk.first, chunk.value).blocks))
