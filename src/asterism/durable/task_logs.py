"""The logs of tasks that the process of a plan executes itself: written while they execute, and before their ends.

A log is a register ``log/PLAN/ID``, which names the task, the epoch and the attempt, and a register for each part of
its lines, ``log-part/PLAN/ID/FIRST``. The ids ascend with the time, as those of runs. The last part is written
before the end of the task is recorded. Logs are removed with their plan.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from functools import partial

from asterism.base.clock import stopped
from asterism.base.log_recorder import LogRecorder
from asterism.base.secret_mask import Mask
from asterism.core.attempt_log import LogChunk, LogUpdate
from asterism.core.record import Record
from asterism.durable.journal_store import head_key
from asterism.durable.journal_writer import JournalWriter
from asterism.fleet.fleet import Fleet
from asterism.orchestrator.devices import Work
from asterism.store.optimistic_update import retry_on_conflict, until_available
from asterism.store.protocol import ExpectRegister, PutRegister, Register, Store, Write, read_slot
from asterism.store.row_codec import readable
from asterism.store.store_errors import Conflict, StoreError

LOGS, PARTS = "log/", "log-part/"

FLUSH_INTERVAL = 1.0
"""Seconds after which new output is written while its task executes."""

_making_log = threading.Lock()


class StoredLog(Record):
    """The log of one execution. ``id`` ascends with the time; the register has the other fields."""

    id: str
    task: str
    epoch: int
    attempt: int


def decode_log(register: Register) -> StoredLog:
    """Raises CorruptRecord and InvalidRecord."""
    return register.read(lambda value: StoredLog.from_json({**value, "id": register.key.rpartition("/")[2]}))


def decode_part(register: Register) -> LogChunk:
    """Raises CorruptRecord."""
    return register.read(lambda value: LogChunk.from_json(int(register.key.rpartition("/")[2]), value))


async def stored_logs(store: Store, plan: str) -> list[StoredLog]:
    """The logs of a plan, in the order in which their tasks first printed."""
    logs = readable(decode_log, await store.registers(f"{LOGS}{plan}/"))
    return sorted(logs, key=lambda log: log.id)


async def log_chunks(store: Store, plan: str, log: str) -> list[LogChunk]:
    """The lines of a log."""
    parts = readable(decode_part, await store.registers(f"{PARTS}{plan}/{log}/"))
    return sorted(parts, key=lambda part: part.first)


class TaskLogs:
    """Writes the logs of a plan that this process runs. ``journal`` is that of the plan as it was loaded last."""

    journal: JournalWriter

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self._loop = asyncio.get_running_loop()
        self._new: dict[TaskOutput, None] = {}  # with output that is not written
        self._flushing: asyncio.Task[None] | None = None

    def output(self, work: Work) -> TaskOutput:
        """What keeps the output of an execution."""
        return TaskOutput(self, work)

    def printed(self, output: TaskOutput) -> None:
        """There is new output. In any thread."""
        if output not in self._new:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._flush_soon, output)

    def _flush_soon(self, output: TaskOutput) -> None:
        self._new[output] = None
        if self._flushing is None:
            self._flushing = self._loop.create_task(self._flush())

    async def _flush(self) -> None:
        try:
            while self._new:
                await self.fleet.clock.sleep(FLUSH_INTERVAL)
                outputs, self._new = list(self._new), {}
                for output in outputs:
                    if not output.over:
                        await output.write()
        finally:
            self._flushing = None

    async def close(self) -> None:
        """Write nothing more."""
        await stopped(*filter(None, [self._flushing]))


class TaskOutput:
    """What keeps the output of one execution. ``mask`` has the secrets to hide in it."""

    def __init__(self, logs: TaskLogs, work: Work) -> None:
        self._logs, self._work = logs, work
        self.mask = Mask()
        self.log: LogRecorder | None = None
        self.over = False
        self._id = ""
        self._parts: list[int] = []  # that are in the store, by their first lines
        self._sure = True  # whether it is known which parts are there
        self._writing = asyncio.Lock()

    def recorder(self) -> LogRecorder | None:
        """What records the output, made when it is first asked for; None if output is not kept. In any thread."""
        if self.log is None and not self.over:
            fleet = self._logs.fleet
            with _making_log:  # several threads may print for the first time
                if self.log is None and (limit := fleet.known_settings.log_limit):
                    printed = self._logs.printed
                    clock = fleet.store.clock
                    self.log = LogRecorder(clock, limit, mask=lambda: self.mask, on_new=lambda: printed(self))
        return None if self.over else self.log

    async def write(self) -> None:
        """Write what is new. What the store does not take is written later."""
        log, store, name = self.log, self._logs.fleet.store, self._work.constellation
        assert log is not None
        async with self._writing:
            update = log.take()
            if update is None:
                return
            fence = ExpectRegister(head_key(name), self._logs.journal.head_revision)
            try:
                await store.commit([fence, *await self._writes(update)])
            except (StoreError, ValueError) as error:
                log.give_back(update)
                self._sure = self._sure and isinstance(error, Conflict)
            else:
                self._written(update)

    async def finish(self) -> None:
        """The execution is over: record nothing more, and write the rest before its end is recorded. If the work was
        stopped, the store has one chance to take it."""
        assert self.log is not None
        self.over = True
        self.log.close()
        job = asyncio.current_task()
        async with self._writing:
            if (rest := self.log.take()) is None:
                return
            write = partial(retry_on_conflict, partial(self._write_alone, rest))
            if job is not None and job.cancelling():
                with contextlib.suppress(StoreError):
                    await write()
            else:
                await until_available(self._logs.fleet.clock, write)

    async def _write_alone(self, update: LogUpdate) -> None:
        writes = await self._writes(update)
        self._sure = False  # until the answer is here
        await self._logs.fleet.store.commit(writes)

    async def _writes(self, update: LogUpdate) -> list[Write]:
        staged = self._staged(update)
        if self._sure:
            return list(staged)
        store = self._logs.fleet.store
        return [(await read_slot(store, write.key)).put(write.value) for write in staged]

    def _staged(self, update: LogUpdate) -> list[PutRegister]:
        work = self._work
        name, writes = work.constellation, list[PutRegister]()
        if not self._id:
            self._id = self._logs.fleet.run_ids.new(self._logs.fleet.store.clock())
        if not self._parts:
            about = {"task": work.task.id, "epoch": work.epoch, "attempt": work.attempt}
            writes.append(PutRegister(f"{LOGS}{name}/{self._id}", about, None))
        key = f"{PARTS}{name}/{self._id}/"
        writes += [PutRegister(f"{key}{chunk.first:012d}", chunk.to_json(), None) for chunk in update.chunks]
        begin, end = update.drop or (0, 0)
        writes += [PutRegister(f"{key}{first:012d}", None, 1) for first in self._parts if begin <= first < end]
        return writes

    def _written(self, update: LogUpdate) -> None:
        begin, end = update.drop or (0, 0)
        self._parts = [first for first in self._parts if not begin <= first < end]
        self._parts += [chunk.first for chunk in update.chunks]
