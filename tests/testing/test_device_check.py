"""``check_device`` accepts devices that keep the protocol, and names the promise that another breaks."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from asterism import DeviceLost, LocalDevice, Task, Work
from asterism.testing import check_device

pytestmark = pytest.mark.virtual_time


class Arm:
    """A device that keeps the protocol. Each broken one below overrides one thing."""

    id: Any = "arm"
    can: Any = frozenset()
    slots: Any = 2

    async def execute(self, work: Work) -> Any:
        return await {"lift": self.lift, "drop": self.drop, "wait": self.wait}[work.task.id.split("-")[0]]()

    async def lift(self) -> Any:
        return "lifted"

    async def drop(self) -> Any:
        raise RuntimeError("dropped")

    async def wait(self) -> Any:
        await asyncio.Event().wait()


class ArmWithoutName(Arm):
    id = 7


class ArmWithListOfAbilities(Arm):
    can = ("lift",)


class ArmWithoutSlots(Arm):
    slots = 0


class ArmThatNeverLifts(Arm):
    async def lift(self) -> Any:
        raise RuntimeError("too heavy")


class ArmThatHangs(Arm):
    async def lift(self) -> Any:
        await asyncio.sleep(1000)


class ArmThatLiftsAtTheSecondTry(Arm):
    lifted = False

    async def lift(self) -> Any:
        if not self.lifted:
            self.lifted = True
            raise DeviceLost("asleep")


class ArmThatHidesFailures(Arm):
    async def drop(self) -> Any:
        return "fine"


class ArmThatBlamesItself(Arm):
    async def drop(self) -> Any:
        raise DeviceLost("no power")


class ArmThatDoesNotWait(Arm):
    async def wait(self) -> Any:
        return "already here"


class ArmThatCannotBeStopped(Arm):
    async def wait(self) -> Any:
        clock = asyncio.get_running_loop().time
        end = clock() + 500
        while clock() < end:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(1)


class ArmThatSwallowsCancellation(Arm):
    async def wait(self) -> Any:
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            return "stopped"


class ArmThatIsStuckAfterwards(Arm):
    stopped = False

    async def lift(self) -> Any:
        if self.stopped:
            await asyncio.sleep(1000)

    async def wait(self) -> Any:
        try:
            await asyncio.sleep(100)
        finally:
            self.stopped = True


async def check(device: Any) -> None:
    tasks = {name: Task(id) for name, id in (("completes", "lift"), ("fails", "drop"), ("lasts", "wait"))}
    await check_device(device, **tasks, seconds=60)


@pytest.mark.parametrize("slots", [1, 2, None])
async def test_a_device_that_keeps_the_protocol_is_accepted(slots: int | None) -> None:
    arm = Arm()
    arm.slots = slots
    await check(arm)
    await check(LocalDevice("here", slots, run=Arm().execute))


@pytest.mark.parametrize(
    ("device", "broken"),
    [
        (ArmWithoutName(), "id must be a text, not 7"),
        (ArmWithListOfAbilities(), "can must be a frozenset of texts"),
        (ArmWithoutSlots(), "slots must be None or a number, 1 or more, not 0"),
        (ArmThatNeverLifts(), "'lift-0' must complete, but it failed: too heavy"),
        (ArmThatHangs(), "'lift' did not end within 60 s"),
        (ArmThatLiftsAtTheSecondTry(), "'lift' must complete at the first execution"),
        (ArmThatHidesFailures(), "execute must raise if a task fails"),
        (ArmThatBlamesItself(), "blames the device"),
        (ArmThatDoesNotWait(), "'wait' must go on until it is cancelled"),
        (ArmThatCannotBeStopped(), "execute must end within 60 s when it is cancelled"),
        (ArmThatSwallowsCancellation(), "and then raise CancelledError, but it ended with None"),
        (ArmThatIsStuckAfterwards(), "'lift' did not end within 60 s"),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_a_broken_promise_is_named(device: Any, broken: str) -> None:
    with pytest.raises(AssertionError) as failure:
        await check(device)
    assert broken in str(failure.value)
