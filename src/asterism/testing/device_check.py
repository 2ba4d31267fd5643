"""``check_device``: whether a device of one's own keeps what the ``Device`` protocol promises."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

from asterism.core.errors import DeviceLost, DeviceUnavailable
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.task import Task
from asterism.core.record import replace
from asterism.orchestrator.devices import Device, Work
from asterism.orchestrator.orchestrator import Orchestrator
from asterism.orchestrator.result import Result

SECONDS = 60.0
"""How long each part of the check may take."""

COPIES = 3
"""How many tasks are executed at once on a device with as many slots."""


async def check_device(device: Device, *, completes: Task, fails: Task, lasts: Task, seconds: float = SECONDS) -> None:
    """Execute three tasks on ``device``: one that completes, one that fails, and one that goes on until it is stopped.

    Raises AssertionError with the promise that the device does not keep, also if it takes longer than ``seconds``. It
    takes real time, since a device may use processes or a network."""
    watched = _WatchedDevice(device)
    watched.check_properties()
    await _check_completion(watched, completes, seconds)
    await _check_failure(watched, fails, seconds)
    await _check_cancellation(watched, lasts, seconds)
    await _check_completion(watched, completes, seconds)


class _WatchedDevice:
    """Passes everything on to a device, and sees how each execution ends."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.begun = asyncio.Event()
        self.running = 0
        self.ends: list[BaseException | None] = []

    @property
    def id(self) -> str:
        return self.device.id

    @property
    def can(self) -> frozenset[str]:
        return self.device.can

    @property
    def slots(self) -> int | None:
        return self.device.slots

    def check_properties(self) -> None:
        assert isinstance(self.id, str), f"id must be a text, not {self.id!r}"
        assert self.id, "id must not be empty"
        assert isinstance(self.can, frozenset), f"can must be a frozenset of texts, not {self.can!r}"
        assert self.slots is None or (type(self.slots) is int and self.slots >= 1), (
            f"slots must be None or a number, 1 or more, not {self.slots!r}"
        )

    async def execute(self, work: Work) -> Any:
        self.running += 1
        self.begun.set()
        end: BaseException | None = None
        try:
            execution: Awaitable[Any] = self.device.execute(work)
            return await execution
        except BaseException as error:
            end = error
            raise
        finally:
            self.running -= 1
            self.ends.append(end)


def _plan_of(task: Task, copies: int) -> Constellation:
    plan = Constellation("check")
    for number in range(copies):
        plan.add(replace(task, id=f"{task.id}-{number}"))
    return plan


async def _result_of(device: _WatchedDevice, task: Task, copies: int, seconds: float) -> Result:
    orchestrator = Orchestrator([device], no_device_timeout=0)
    try:
        async with asyncio.timeout(seconds):
            return await orchestrator.run(_plan_of(task, copies))
    except TimeoutError:
        raise AssertionError(f"{task.id!r} did not end within {seconds:g} s") from None


async def _check_completion(device: _WatchedDevice, task: Task, seconds: float) -> None:
    copies = min(COPIES, device.slots or COPIES)
    device.ends.clear()
    result = await _result_of(device, task, copies, seconds)
    for view in result:
        assert view.status == "completed", f"{view.id!r} must complete, but it {view.status}: {view.error}"
    lost = next((end for end in device.ends if end is not None), None)
    assert lost is None, f"{task.id!r} must complete at the first execution, but execute raised {lost!r}"


async def _check_failure(device: _WatchedDevice, task: Task, seconds: float) -> None:
    device.ends.clear()
    await _result_of(device, task, 1, seconds)
    end = device.ends[-1]
    assert end is not None, f"execute must raise if a task fails, but it returned for {task.id!r}"
    assert isinstance(end, Exception), f"a failure of {task.id!r} must be an Exception, not {end!r}"
    assert not isinstance(end, DeviceLost | DeviceUnavailable), (
        f"a failure of {task.id!r} is a failure of the work, but execute raised {end!r}, which blames the device"
    )


async def _check_cancellation(device: _WatchedDevice, task: Task, seconds: float) -> None:
    device.ends.clear()
    device.begun.clear()
    running = asyncio.create_task(Orchestrator([device], grace=seconds).run(_plan_of(task, 1)))
    await asyncio.wait([running, asyncio.create_task(device.begun.wait())], return_when=asyncio.FIRST_COMPLETED)
    running.cancel()
    await asyncio.wait([running], timeout=2 * seconds)
    assert device.running == 0, f"execute must end within {seconds:g} s when it is cancelled, but {task.id!r} goes on"
    end = device.ends[-1]
    assert isinstance(end, asyncio.CancelledError), (
        f"{task.id!r} must go on until it is cancelled, and then raise CancelledError, but it ended with {end!r}"
    )
