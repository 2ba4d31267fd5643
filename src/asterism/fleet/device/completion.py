"""The runs that a device holds, and one commit for ends that come up together.

``HeldRun`` is what the device knows of a run while it holds it.

``CompletionBatch`` writes ends that come up together in one commit. A commit is all or nothing, so after a failed one
nothing is known of any of its ends: each is then written alone, through the ledger, which finds out whether it was
written after all.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from asterism.base.log_recorder import LogRecorder
from asterism.base.secret_mask import Mask
from asterism.core.attempt_log import LogUpdate
from asterism.core.errors import RunRefused
from asterism.core.run.run import COMPLETED, Grant, Progress, Run
from asterism.fleet.device.device_connection import DeviceConnection, End, OwnerStep
from asterism.store.protocol import ProgressReport, PutLog, StoredChunk
from asterism.store.store_errors import StoreError

log = logging.getLogger("asterism.device")

LARGEST_BATCH = 100
"""How many ends one commit writes at most."""

_NO_SECRETS = Mask()
_making_log = threading.Lock()


@dataclass(slots=True, eq=False)
class HeldRun:
    """A run that the device has claimed.

    ``since``         when it was received, by the device's own clock
    ``on_report``     called when there is new progress or output to report
    ``started``       whether its execution has begun; if not, it waits for a slot
    ``stopping``      why its execution is being stopped
    ``preempted_by``  the run for which it is being stopped
    ``ending``        whether the execution is over and only the write of its end is missing
    ``slot_freed``    whether its slot was given away before the end was written
    ``lost``          whether the device gave the run up, so that there is no result
    ``changed``       whether ``progress``, ``tail`` or the log is newer than the last report
    ``log``           what records its output, once it has printed something
    ``files``         the manifest of the files that it has made, once they are kept
    ``mask``          the secrets to hide in it
    """

    run: Run
    grant: Grant
    since: float
    on_report: Callable[[], None]
    started: bool
    progress: Progress | None
    make_log: Callable[[HeldRun], LogRecorder | None] | None = None
    tail: str = ""
    changed: bool = False
    stopping: str | None = None
    preempted_by: str | None = None
    ending: bool = False
    slot_freed: bool = False
    lost: bool = False
    task: asyncio.Task[None] | None = None
    log: LogRecorder | None = None
    files: str | None = None
    mask: Mask = _NO_SECRETS
    log_writes: Sequence[PutLog] = ()
    """The last part of its log, which is written with its end."""
    _unconfirmed: LogUpdate | None = None

    def set_files(self, manifest: str) -> None:
        self.files = manifest

    def report(self) -> ProgressReport:
        log = None if self.log is None else self._take_log()
        return ProgressReport(self.run.id, self.grant.epoch, self.progress, self.tail, log)

    def recorder(self) -> LogRecorder | None:
        """What records its output, made when it is first asked for; None if output is not kept. In any thread."""
        if self.log is None:
            with _making_log:  # several threads may print for the first time
                if self.log is None and self.make_log is not None:
                    self.log = self.make_log(self)
        return self.log

    def close_log(self) -> None:
        """The execution is over. What it prints from now on is dropped."""
        self.make_log = None
        if self.log is not None:
            self.log.close()

    def _take_log(self) -> PutLog | None:
        assert self.log is not None
        self._unconfirmed = self.log.take()
        return None if self._unconfirmed is None else put_log(self.grant, self._unconfirmed)

    def report_written(self, written: bool) -> None:
        """The report was written, or it is unknown whether it was."""
        if not written:
            self.changed = True
            self._give_back_log()
        self._unconfirmed = None

    def _give_back_log(self) -> None:
        if self.log is not None and self._unconfirmed is not None:
            self.log.give_back(self._unconfirmed)
            self._unconfirmed = None

    def last_log(self) -> PutLog | None:
        """The rest of the log, with what a report that is under way may not write."""
        self._give_back_log()
        return self._take_log()

    def printed(self) -> None:
        """There is new output."""
        if not self.changed and self.make_log is not None:
            self.changed = True
            self.on_report()

    def set_progress(self, progress: Progress) -> None:
        self.progress, self.changed = progress, True
        self.on_report()

    def set_output(self, tail: str) -> None:
        self.tail, self.changed = tail, True
        self.on_report()


def put_log(grant: Grant, update: LogUpdate) -> PutLog:
    chunks = [StoredChunk(grant.epoch, chunk.first, chunk.line_count, chunk.to_json()) for chunk in update.chunks]
    return PutLog(grant.run, grant.epoch, chunks, update.drop)


# -- one commit for many -----------------------------------------------------------------------------------------------


class HeldEnd(NamedTuple):
    """``after`` is what ``step`` made of the run that is held."""

    held: HeldRun
    step: OwnerStep
    after: Run


class CompletionBatch:
    """``on_written`` is called for each end that was written, ``write_alone`` for each of a commit that failed,
    ``on_dropped`` for each that was not written because the device is ending."""

    def __init__(
        self,
        connection: DeviceConnection,
        on_written: Callable[[HeldEnd], None],
        write_alone: Callable[[HeldEnd], None],
        on_dropped: Callable[[HeldEnd], None],
    ) -> None:
        self._connection = connection
        self._on_written, self._write_alone, self._on_dropped = on_written, write_alone, on_dropped
        self._open: list[HeldEnd] = []
        self._task: asyncio.Task[None] | None = None

    def add(self, held: HeldRun, step: OwnerStep) -> bool:
        """Write the end with all others that come up before the event loop is free again; the task that writes them
        becomes the task of the held run. Returns False if the end has consequences and must be written alone."""
        run = held.run
        try:
            after = step.apply(run, self._connection.end_time())
        except RunRefused:
            return False
        if after.status is not COMPLETED:
            return False
        held.ending = True
        if self._task is None or len(self._open) >= LARGEST_BATCH:
            self._task = self._begin()
        held.task = self._task
        self._open.append(HeldEnd(held, step, after))
        return True

    def _begin(self) -> asyncio.Task[None]:
        ends: list[HeldEnd] = []
        self._open = ends
        task = asyncio.create_task(self._write(ends))
        task.add_done_callback(lambda task: self._written(task, ends))
        return task

    async def _write(self, ends: list[HeldEnd]) -> None:
        if ends is self._open:  # close the batch: nothing is added to it any more
            self._open, self._task = [], None
        try:
            await self._connection.end_together(
                [End(end.held.run, end.after, end.step, end.held.log_writes) for end in ends]
            )
        except (StoreError, ValueError) as error:
            log.info("%d ends could not be written together and are written one by one: %s", len(ends), error)
            for end in ends:
                self._write_alone(end)
        else:
            for end in ends:
                self._on_written(end)

    def _written(self, task: asyncio.Task[None], ends: list[HeldEnd]) -> None:
        if task is self._task:  # it was cancelled before its first step
            self._task = None
        if not task.cancelled():
            error = task.exception()
            if error is None:
                return
            log.error("a bug in Asterism", exc_info=error)
        for end in ends:
            if end.held.task is task:
                self._on_dropped(end)
