"""What devices of a gateway store: logs, results, notices and files, within limits; and the files that they fetch.

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

``DeviceFiles`` has the content of files, in parts, for the runs that devices were granted. An upload is a file that
nobody sees yet. A part is written only where the file ends, so the server says how far it has come, and a device goes
on from there, whatever was cut off. When all parts are there, the content is compared with its hash, made durable, and
put under its name. In a folder that is a rename; for a bucket the parts are gathered in the state directory of the
server first.

Each part and each end asks whether the grant still counts. An upload of a grant that is over is removed; what a device
leaves otherwise goes after an hour, like content that no run refers to. A device reads the files of its input, and what
it has sent itself.

The list of files with which a run ends names only these, with their sizes, so that nobody reads content whose hash he
knows. What a device has sent for a grant is in a file beside its uploads.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import json
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from asterism.base.clock import Clock, stopped
from asterism.base.content_store import NAME, Content, ContentFolder, ContentStore
from asterism.base.http_limits import RecentEvents, RequestRefused
from asterism.base.log_recorder import LONGEST_LINE
from asterism.base.remembered import Remembered
from asterism.core.attempt_log import BLOCK_COST, LogChunk
from asterism.core.record import replace
from asterism.core.run.run import Grant, Run
from asterism.execution.artifacts import (
    LARGEST_MANIFEST,
    MOST_FILES,
    ArtifactProblem,
    Artifacts,
    chunks_of,
    entries_of,
)
from asterism.fleet.device.process_records import state_directory
from asterism.fleet.device.run_inputs import manifests_in
from asterism.fleet.fleet import Fleet
from asterism.fleet.retention import BLOB_AGE
from asterism.fleet.settings import Settings
from asterism.gateway.gateway_messages import FILE_PART, GatewayRefusal, InvalidMessage
from asterism.store.protocol import PutLog, Store, StoredChunk
from asterism.store.store_errors import StoreUnavailable

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
        self._attempts: Remembered[tuple[str, int], _AttemptLog] = Remembered(ATTEMPTS_REMEMBERED)
        self._stored: dict[str, tuple[float, float]] = {}  # bytes of each device, fading away, and when it was counted
        self._of_files: Remembered[Grant, int] = Remembered(GRANTS_REMEMBERED)  # of those, the bytes of files
        self._notices = RecentEvents(clock.time, NOTICES_PER_HOUR, HOUR)
        self._late: Remembered[Grant, None] = Remembered(GRANTS_REMEMBERED)

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
            attempt_log = self._attempts.get((run, epoch)) or _AttemptLog(costs, sum(costs.values()))
        self._attempts[run, epoch] = attempt_log
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
        self._of_files[grant] = self._of_files.get(grant, 0) + size

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
        return True


def _cost(chunk: StoredChunk) -> int:
    """What a chunk costs, as devices count it; that of a blob is its size."""
    if isinstance(chunk.value, dict):
        return int(chunk.value.get("size", BLOCK_COST))
    return max(BLOCK_COST, sum(block.cost for block in LogChunk.from_json(chunk.first, chunk.value).blocks))


# -- the files of devices ---------------------------------------------------------------------------------------------


UPLOADS_AT_ONCE = 4
"""How many unfinished uploads one grant may have; the oldest goes for another."""

UPLOADS_REMEMBERED, READERS_REMEMBERED = 1000, 1000
"""Of how many uploads the hash is computed as they come; that of others is computed at their end. Of how many grants it
is remembered what they may read."""

END_WAIT = 20.0
"""How long a device waits in one request for the end of its upload, in seconds."""

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


class Upload:
    """Content that comes in parts, in a file of its own."""

    def __init__(self, grant: Grant, path: Path) -> None:
        self.grant, self.path = grant, path
        self.lock = asyncio.Lock()
        self.ending: asyncio.Task[Content] | None = None
        self._hash, self._hashed = hashlib.sha256(), 0

    def append(self, offset: int, data: memoryview) -> tuple[int, int]:
        """Write a part where the file ends; one that belongs elsewhere is left out. Returns the size then, and how much
        was written. Blocks."""
        with self.path.open("ab", buffering=0) as file:
            size = file.seek(0, 2)
            if size != offset:
                return size, 0
            while data:
                written = file.write(data)
                if self._hashed == size:
                    self._hash.update(data[:written])
                    self._hashed += written
                size += written
                data = data[written:]
        return size, size - offset

    def check(self, size: int, name: str) -> None:
        """Compare the whole file with its size and hash. Blocks. Raises GatewayRefusal."""
        with self._file() as file:
            came = file.seek(0, 2)
            if came != size:
                raise GatewayRefusal(409, "lost", f"{came:,} of {size:,} bytes have come: send it again")
            file.seek(self._hashed)  # what came before the server was started again
            for chunk in chunks_of(file, lambda: None):
                self._hash.update(chunk)
                self._hashed += len(chunk)
        if self._hash.hexdigest() != name:
            self.remove()
            raise GatewayRefusal(409, "lost", "the content does not match its hash: it was damaged on its way")

    @property
    def is_busy(self) -> bool:
        """Whether a part is being written, or the content is being put under its name: nothing else writes then."""
        return self.lock.locked() or not (self.ending is None or self.ending.done())

    async def end(self, place: ContentStore, size: int, name: str) -> Content:
        """Put the content under its name, durably; no part is written meanwhile. Raises GatewayRefusal and OSError."""
        async with self.lock:
            return await asyncio.to_thread(self.put, place, size, name)

    def put(self, place: ContentStore, size: int, name: str) -> Content:
        """Put the content under its name, durably. Blocks. Raises GatewayRefusal and OSError."""
        self.check(size, name)
        if isinstance(place, ContentFolder):
            place.adopt(self.path, name)
            return Content(name, size)
        with self._file() as file:
            content = place.put(chunks_of(file, lambda: None))
        self.remove()
        return content

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)

    def _file(self) -> Any:
        try:
            return self.path.open("rb")
        except FileNotFoundError:
            raise GatewayRefusal(409, "lost", "nothing of this upload is here: send it again") from None


class DeviceFiles:
    """``fleet`` is that of the server, ``storage`` counts what devices store."""

    def __init__(self, fleet: Fleet, storage: DeviceStorage) -> None:
        self._fleet, self._store, self._storage = fleet, fleet.store, storage
        self._uploads: OrderedDict[tuple[str, Grant, str], Upload] = OrderedDict()
        self._readable: Remembered[Grant, frozenset[str]] = Remembered(READERS_REMEMBERED)
        self._checked: Remembered[tuple[Grant, str], str] = Remembered(READERS_REMEMBERED)  # what is wrong, if anything
        self._checking: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # by device

    async def close(self) -> None:
        await stopped(*(upload.ending for upload in self._uploads.values() if upload.ending is not None))

    # -- uploads -----------------------------------------------------------------------------------------------------

    async def append(self, device: str, grant: Grant, key: str, offset: int, data: memoryview) -> int:
        """Add a part to an upload. Returns how much of it is here; if that is not the end of the part, the part did not
        belong there. Raises GatewayRefusal and StoreUnavailable."""
        await self._granted(grant)
        if len(data) > FILE_PART:
            raise InvalidMessage(f"a part of a file has at most {FILE_PART:,} bytes")
        await self._storage.admit_part(device, len(data))
        place = await self._place()
        with self._place_errors(place):
            upload = await self._upload(place, device, grant, key)
            async with upload.lock:
                size, written = await asyncio.to_thread(upload.append, offset, data)
        await self._storage.add_part(device, grant, written)
        return size

    async def end(self, device: str, grant: Grant, key: str, size: int, name: str) -> Content | None:
        """Put an upload under its name. Returns it, or None if that takes longer: the device asks again. Raises
        GatewayRefusal and StoreUnavailable."""
        await self._granted(grant)
        if NAME.fullmatch(name) is None:
            raise InvalidMessage("content is named by its SHA-256")
        place = await self._place()
        with self._place_errors(place):
            upload = await self._upload(place, device, grant, key)
            if upload.ending is None:
                upload.ending = asyncio.create_task(upload.end(place, size, name))
            ending = upload.ending
            await asyncio.wait([ending], timeout=END_WAIT)
            if not ending.done():
                return None
            if ending.exception() is not None:
                upload.ending = None
            content = ending.result()
            await asyncio.to_thread(self._record_sent, place, device, grant, content)
        self._readable[grant] = self._readable.get(grant, frozenset()) | {content.name}
        return content

    async def _upload(self, place: ContentStore, device: str, grant: Grant, key: str) -> Upload:
        known = self._uploads.get((device, grant, key))
        if known is None:
            its = [
                other for other, upload in self._uploads.items() if other[:2] == (device, grant) and not upload.is_busy
            ]
            for other in its[: max(0, len(its) + 1 - UPLOADS_AT_ONCE)]:
                self._forget(other)
            path = await asyncio.to_thread(self._path, place, device, grant, key)
            known = self._uploads.setdefault((device, grant, key), Upload(grant, path))
        self._uploads.move_to_end((device, grant, key))
        while len(self._uploads) > UPLOADS_REMEMBERED and not next(iter(self._uploads.values())).is_busy:
            self._uploads.popitem(last=False)
        return known

    def _path(self, place: ContentStore, device: str, grant: Grant, key: str) -> Path:
        """The file of an upload: the same after the server was started again. Blocks."""
        words = json.dumps([device, *grant, key])
        folder = place
        if not isinstance(folder, ContentFolder):
            folder = ContentFolder(state_directory() / "uploads", self._store.clock)
            folder.sweep(self._store.clock() - BLOB_AGE)
        return folder.unfinished(hashlib.sha256(words.encode()).hexdigest()[:32])

    def _record_sent(self, place: ContentStore, device: str, grant: Grant, content: Content) -> None:
        """Remember what was sent for a grant. Blocks."""
        with self._sent_path(place, device, grant).open("a") as file:
            file.write(f"{content.name} {content.size}\n")

    def _sent(self, place: ContentStore, device: str, grant: Grant) -> dict[str, int]:
        """The sizes of the content that was sent for a grant, by name. Blocks."""
        try:
            text = self._sent_path(place, device, grant).read_text()
        except FileNotFoundError:
            return {}
        return {words[0]: int(words[1]) for line in text.splitlines() if len(words := line.split()) == 2}

    def _sent_path(self, place: ContentStore, device: str, grant: Grant) -> Path:
        path = self._path(place, device, grant, "")
        return path.with_name(path.name.replace(".new", ".sent"))

    def _forget(self, key: tuple[str, Grant, str]) -> None:
        upload = self._uploads.pop(key)
        if upload.ending is None:
            upload.remove()

    async def check_kept(self, device: str, grant: Grant, manifest: str) -> None:
        """Raises InvalidMessage unless a manifest names only content that the device has sent for its grant, or that
        its run was given, with the right sizes. It is checked once, and one for a device at a time."""
        async with self._checking.setdefault(device, asyncio.Lock()):
            problem = self._checked.get((grant, manifest))
            if problem is None:
                place, run = await self._place(), await self._granted(grant)
                given = {*_manifests(await self._fleet.blobs.fetch(run.input))}
                with self._place_errors(place):
                    more, why = await asyncio.to_thread(self._judge, place, device, grant, manifest, given)
                await self._storage.admit_part(device, more)  # the same content at many paths
                self._checked[grant, manifest] = problem = why
        if problem:
            raise InvalidMessage(problem)

    def _judge(self, place: ContentStore, device: str, grant: Grant, manifest: str, given: set[str]) -> tuple[int, str]:
        """How many bytes of the files of a manifest are repetitions of others, and what is wrong with it, if anything.
        Blocks."""
        sent, artifacts = self._sent(place, device, grant), Artifacts(place)
        if sent.get(manifest, LARGEST_MANIFEST + 1) > LARGEST_MANIFEST:
            what = "is longer than" if manifest in sent else "was not sent for this run; it has at most"
            return 0, f"the list of its files {what} {LARGEST_MANIFEST:,} bytes"
        known = dict(sent)
        for name in given:
            with contextlib.suppress(ArtifactProblem):
                known |= {entry.sha256: entry.size for entry in entries_of(artifacts.manifest(name))}
        try:
            entries = entries_of(artifacts.manifest(manifest))
        except ArtifactProblem as problem:
            return 0, str(problem)
        if len(entries) > MOST_FILES:
            return 0, f"it has made {len(entries):,} files; {MOST_FILES:,} are allowed: pack them into an archive"
        for entry in entries:
            if entry.sha256 not in known:
                return (
                    0,
                    f"{entry.path!r} is no file that this device has sent or that the run was given: {entry.sha256}",
                )
            if entry.size != known[entry.sha256]:
                return 0, f"{entry.path!r} has {known[entry.sha256]:,} bytes, not {entry.size:,}"
        distinct = {entry.sha256 for entry in entries}
        uncertain = sorted(distinct - self._readable.get(grant, frozenset()))  # it was sent before this server started
        if missing := [name for name in uncertain if _read(place, name, 0, 1) is None]:
            text = f"{len(missing)} of the files that it has made are not on the server; the first: {missing[0]}"
            return 0, text
        return sum(entry.size for entry in entries) - sum(known[name] for name in distinct), ""

    # -- downloads ---------------------------------------------------------------------------------------------------

    async def read(self, grant: Grant, name: str, offset: int) -> bytes:
        """A part of content that the run of a grant may read: less than a whole part at its end. Raises GatewayRefusal
        and StoreUnavailable."""
        run = await self._granted(grant)
        place = await self._place()
        with self._place_errors(place):
            if name not in await self._names_for(run, grant, place):
                raise GatewayRefusal(403, "not_granted", "this run has no such file in its input")
            data = await asyncio.to_thread(_read, place, name, offset, FILE_PART)
        if data is None:
            raise GatewayRefusal(404, "missing", f"{name} is not in {place.location}")
        return data

    async def _names_for(self, run: Run, grant: Grant, place: ContentStore) -> frozenset[str]:
        """What a run may read: the files of its input, and what was sent for it here."""
        known = self._readable.get(grant)
        manifests = set(_manifests(await self._fleet.blobs.fetch(run.input)))
        if known is None or not manifests <= known:
            known = (known or frozenset()) | await asyncio.to_thread(_all_names, place, manifests)
            self._readable[grant] = known
        return known

    # -- grants, the place -------------------------------------------------------------------------------------------

    async def _granted(self, grant: Grant) -> Run:
        """The run of a grant. If the grant is over, its uploads are removed. Raises GatewayRefusal."""
        run = await self._store.run(grant.run)
        if run is None or run.grant != grant:
            for key in [key for key in self._uploads if key[1] == grant]:
                self._forget(key)
            self._readable.pop(grant, None)
            raise GatewayRefusal(409, "fenced", f"run {grant.run} does not belong to this device any more")
        return run

    async def _place(self) -> ContentStore:
        try:
            return await self._fleet.artifacts()
        except ArtifactProblem as error:
            raise GatewayRefusal(409, "no_place", str(error)) from None

    @contextlib.contextmanager
    def _place_errors(self, place: ContentStore) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            text = error.strerror or str(error)
            if error.errno in _NO_SPACE:
                advice = "free some, or name another place with: asterism fleet set --artifacts URL"
                raise GatewayRefusal(409, "full", f"the server has no space for files ({text}): {advice}") from None
            if error.errno == errno.EIO:
                raise StoreUnavailable(text) from None
            raise GatewayRefusal(409, "no_place", f"the server cannot keep files in {place.location}: {text}") from None


def _manifests(run_input: Any) -> Iterator[str]:
    """The manifests of the files in the input of a run."""
    for value in run_input.values() if isinstance(run_input, Mapping) else ():
        yield from manifests_in(value)


def _all_names(place: ContentStore, manifests: set[str]) -> frozenset[str]:
    """Manifests and the files in them. A missing or damaged manifest fails when the device reads it. Blocks."""
    names = set(manifests)
    for manifest in manifests:
        with contextlib.suppress(ArtifactProblem):
            names |= Artifacts(place).names(manifest)
    return frozenset(names)


def _read(place: ContentStore, name: str, offset: int, most: int) -> bytes | None:
    file = place.open(name, offset)
    if file is None:
        return None
    with file:
        return file.read(most)
