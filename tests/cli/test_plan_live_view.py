"""The live view of a plan: its content, its size, its cost."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from rich.console import Console

from asterism import (
    ApprovalRule,
    Constellation,
    ConstellationView,
    EditBatch,
    EditWaits,
    Event,
    LocalDevice,
    Orchestrator,
    Result,
    Task,
    edits,
)
from asterism.cli.plan.plan_live_view import OutputTail, Progress, frame, watched
from asterism.cli.screen import Screen
from asterism.core.plan.group_elements import LARGE
from asterism.core.plan.status import COMPLETED
from asterism.orchestrator.plan_mask import PlanMask
from asterism.testing.virtual_time import run as in_virtual_time


def drawn(progress: Progress, now: float, width: int = 100, height: int = 24) -> list[str]:
    console = Console(width=width, height=height, file=io.StringIO(), color_system=None)
    with console.capture() as capture:
        console.print(frame(progress, now, width, height))
    return [line.rstrip() for line in capture.get().splitlines()]


class Scene:
    """A run that takes pictures of itself, from inside its tasks and its editor."""

    def __init__(self, plan: Constellation, devices: Sequence[LocalDevice], **options: Any) -> None:
        self.plan, self.orchestrator = plan, Orchestrator(devices, **options)
        self.progress = Progress(self.orchestrator, plan, PlanMask(plan))
        self.pictures: list[list[str]] = []

    async def picture(self, **size: int) -> list[str]:
        await self.orchestrator.events.drain(10.0)
        self.pictures.append(drawn(self.progress, self.orchestrator.now(), **size))
        return self.pictures[-1]

    def run(self) -> Result:
        async def body() -> Result:
            self.orchestrator.events.subscribe(self.progress.observe)
            return await self.orchestrator.run(self.plan)

        return in_virtual_time(body())


def test_a_resumed_plan_shows_its_running_tasks() -> None:
    plan = Constellation("nightly")
    plan.add(Task("one"))
    plan.begin(0.0)
    plan.start(plan.node("one"), "kitchen", 0.0)
    progress = Progress(Orchestrator(), plan, PlanMask(plan))
    assert [node.id for node in progress.running_nodes(10)] == ["one"]
    assert progress.on_device == {"kitchen": {"one": None}}


def line_with(words: str, lines: list[str]) -> str:
    [line] = [line for line in lines if words in line]
    return line


async def nothing() -> None:
    """A task that does nothing."""


def two_branches(look: Callable[[], Any]) -> Constellation:
    """`one` and `two` begin, `both` waits for the two; `one` ends only after `look`."""
    plan = Constellation("release")

    async def look_first() -> None:
        await look()

    plan.add(Task("one", call=look_first))
    plan.add(Task("two", call=nothing))
    plan.add(Task("both", call=nothing), ["one", "two"])
    plan.add(Task("moon", call=nothing, needs=["rocket"]))
    plan.add(Task("spare", call=nothing))
    return plan


def test_running_tasks_waiting_tasks_and_their_holders() -> None:
    async def look() -> None:
        await scene.picture()
        scene.orchestrator.join(LocalDevice("pad", can=["rocket"]))

    scene = Scene(two_branches(look), [LocalDevice("laptop", slots=1)])
    scene.run()
    [lines] = scene.pictures
    assert lines[0].startswith("release  executing  version 0  0.")
    assert "1 running, 4 pending" in lines[1]
    assert line_with("◐  one", lines).split() == ["◐", "one", "running", "laptop", "0.0", "s"]
    assert line_with("both", lines).endswith("for one, two")
    assert line_with("spare", lines).endswith("busy: laptop (1)")
    assert line_with("moon", lines).endswith("no device can rocket")
    assert line_with("laptop  ■", lines) == "laptop  ■  1/1  one"


def test_held_tasks_name_their_cycle_and_open_cycles_their_age() -> None:
    plan = Constellation("release")
    plan.add(Task("build", call=nothing))
    plan.add(Task("pack", call=nothing), "build")
    pictures: list[list[str]] = []

    async def maintainer(view: ConstellationView, events: Sequence[Event]) -> EditBatch | None:
        pictures.append(await scene.picture())
        return EditBatch((edits.AddTask(Task("extra", call=nothing)),)) if "extra" not in view else None

    scene = Scene(plan, [LocalDevice("laptop", slots=2)], editor=maintainer)
    scene.run()
    first, second = pictures[:2]
    assert line_with("pack", first).split() == ["○", "pack", "held", "by", "cycle", "1"]
    assert line_with("cycle 1  open", first).startswith("cycle 1  open for 0.0 s by maintainer: build")
    assert line_with("build", first[:6]).startswith("●  build  completed")
    assert "edit by maintainer applied: add task 'extra'" in second


def test_a_task_whose_edit_waits_for_a_person_is_shown_as_held() -> None:
    plan = Constellation("release")
    plan.add(Task("build", call=nothing))
    plan.add(Task("pack", call=nothing), "build")
    waiting: list[list[str]] = []

    async def decide() -> None:
        with pytest.raises(EditWaits):
            scene.orchestrator.edit("release", EditBatch((edits.RemoveTask("pack"),), author="robot"))
        await asyncio.sleep(1)  # of virtual time: the first task has ended
        waiting.append(await scene.picture())
        scene.orchestrator.refuse(1, "ann")

    scene = Scene(plan, [LocalDevice("laptop")], approvals=[ApprovalRule.parse("destructive")])

    async def body() -> Result:
        scene.orchestrator.events.subscribe(scene.progress.observe)
        running = asyncio.create_task(scene.orchestrator.run(plan))
        await asyncio.sleep(0)
        await decide()
        return await running

    assert in_virtual_time(body()).state == "completed"
    assert line_with("○  pack", waiting[0]).split() == ["○", "pack", "held", "by", "approval", "1"]


def test_a_failure_says_why_and_a_retry_says_so() -> None:
    plan = Constellation("release")
    tries: list[int] = []

    async def flaky() -> None:
        tries.append(1)
        if len(tries) == 1:
            raise RuntimeError("the moon is full")
        await scene.picture()
        raise RuntimeError("the moon is new")

    async def last() -> None:
        await scene.picture()

    plan.add(Task("flaky", call=flaky, retries=1, backoff=0.0))
    plan.add(Task("last", call=last), {"flaky": "completion"})
    scene = Scene(plan, [LocalDevice("laptop")])
    scene.run()
    again, failed = scene.pictures
    assert "running" in line_with("flaky", again[:4])
    assert line_with("✗  flaky", failed).endswith("RuntimeError: the moon is new")
    assert "laptop  1/∞  last" in failed


def test_a_place_that_stands_for_a_fleet_has_no_slots_to_count() -> None:
    plan = Constellation("p")

    async def only() -> None:
        await scene.picture()

    plan.add(Task("only", call=only))
    scene = Scene(plan, [LocalDevice("fleet", slots=1000)])
    scene.run()
    [picture] = scene.pictures
    assert picture[-1] == "fleet  1 running  only"


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (40, 10), (20, 5), (80, 1), (200, 60)])
def test_a_picture_never_outgrows_its_terminal(width: int, height: int) -> None:
    plan = Constellation("a-name-that-is-longer-than-any-name-of-a-plan-should-be")

    async def look() -> None:
        await scene.picture(width=width, height=height)

    plan.add(Task("first", call=look, description="x" * 300))
    for number in range(300):
        plan.add(Task(f"a-rather-long-name-for-a-task-{number}", call=nothing), "first")
    for number in range(40):
        plan.add(Task(f"free-{number}", call=nothing))
    scene = Scene(plan, [LocalDevice(f"device-{number}", slots=1) for number in range(9)])
    scene.run()
    [lines] = scene.pictures
    assert len(lines) <= height
    assert all(len(line) <= width for line in lines)


def test_a_picture_of_a_large_plan_looks_at_little_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Constellation("large")

    async def look() -> None:
        asked.clear()
        await scene.picture(height=24)

    plan.add(Task("first", call=look))
    for number in range(2_000):
        plan.add(Task(f"t{number}", call=nothing), "first")
    plan.add(Task("join", call=nothing), [f"t{number}" for number in range(2_000)])
    for number in range(100):
        plan.add(Task(f"free-{number}", call=nothing, priority="low"))
    scene = Scene(plan, [LocalDevice("laptop", slots=1)])
    asked: list[str] = []
    why = scene.orchestrator.why

    def counted(task_id: str, plan_id: str | None = None) -> Any:
        asked.append(task_id)
        return why(task_id, plan_id)

    monkeypatch.setattr(scene.orchestrator, "why", counted)
    scene.run()
    assert 0 < len(asked) <= 24


def test_two_thousand_tasks_are_readable_in_thirty_lines() -> None:
    """Every pending task is counted, by what holds it."""
    plan = Constellation("large")

    async def look() -> None:
        await asyncio.sleep(1.0)
        await scene.picture(height=29)

    for number in range(3):
        plan.add(Task(f"first-{number}", call=look, priority="critical"))
    for number in range(400):
        plan.add(Task(f"free-{number}", call=nothing))
    for number in range(30):
        plan.add(Task(f"moon-{number}", call=nothing, needs=["rocket"]))
    for number in range(1_567):
        plan.add(Task(f"later-{number}", call=nothing), "first-0")
    scene = Scene(plan, [LocalDevice("laptop", slots=3)], no_device_timeout=5.0)
    scene.progress.newest_output = lambda: OutputTail("first-1", ["one", "two", "three", "x" * 300])
    scene.run()
    lines = scene.pictures[0]
    assert len(lines) <= 29
    assert all(len(line) <= 100 for line in lines)
    assert "3 running, 1,997 pending" in lines[1]
    assert " ".join(line_with("400 tasks", lines).split()).startswith("○ 400 tasks ready busy: laptop (3): free-0, ")
    assert " ".join(line_with("30 tasks", lines).split()).startswith("○ 30 tasks ready no device can rocket: moon-0, ")
    assert " ".join(line_with("1,567 tasks", lines).split()) == "◌ 1,567 tasks waiting for tasks before them"
    assert lines[-3:-1] == ["first-1 │ two", "first-1 │ three"]
    assert lines[-1].startswith("first-1 │ xxx")


def test_the_end_of_the_newest_output_is_shown() -> None:
    plan = Constellation("release")

    async def noisy() -> None:
        for number in range(5):
            print(f"line {number}")

    async def look() -> None:
        await scene.picture()

    plan.add(Task("quiet", call=nothing))
    plan.add(Task("noisy", call=noisy), "quiet")
    plan.add(Task("look", call=look), "noisy")
    scene = Scene(plan, [LocalDevice("laptop", slots=1)])
    scene.run()
    assert scene.pictures[0][-3:] == ["noisy │ line 2", "noisy │ line 3", "noisy │ line 4"]


def test_held_tasks_without_room_are_counted_for_their_cycle() -> None:
    plan = Constellation("release")
    plan.add(Task("build", call=nothing))
    for number in range(50):
        plan.add(Task(f"pack-{number}", call=nothing), "build")

    async def maintainer(view: ConstellationView, events: Sequence[Event]) -> None:
        await scene.picture()

    scene = Scene(plan, [LocalDevice("laptop", slots=2)], editor=maintainer)
    scene.run()
    line = " ".join(line_with("50 tasks", scene.pictures[0]).split())
    assert line.startswith("○ 50 tasks held by cycle 1: pack-0, ")


def test_running_tasks_without_room_are_counted() -> None:
    plan = Constellation("wide")

    async def look() -> None:
        await asyncio.sleep(1.0)
        if not scene.pictures:
            await scene.picture()

    for number in range(60):
        plan.add(Task(f"t{number}", call=look))
    scene = Scene(plan, [LocalDevice("laptop", slots=60)])
    scene.run()
    lines = scene.pictures[0]
    shown = sum("  running  laptop" in line for line in lines)
    assert 10 < shown < 24
    assert " ".join(line_with(" more ", lines[:-2]).split()) == f"◐ {60 - shown} more running"


def test_a_task_below_very_many_others_is_counted_not_listed() -> None:
    plan = Constellation("join")
    parents = [f"t{number}" for number in range(200)]

    async def look() -> tuple[str, str]:
        return scene.progress.holder(plan.nodes["join"])

    for name in parents:
        plan.add(Task(name, call=nothing))
    plan.add(Task("look", call=look, priority="critical"))
    plan.add(Task("join", call=nothing), [*parents, "look"])
    scene = Scene(plan, [LocalDevice("laptop", slots=1)])
    assert scene.run()["look"].value == ("waiting", "for 201 of 201 tasks")


async def test_the_view_is_drawn_in_a_terminal_and_ends_with_the_end() -> None:
    plan = Constellation("release")
    plan.add(Task("a", call=nothing))
    output = io.StringIO()
    console = Screen(file=output, force_terminal=True, width=80, height=24, color_system=None)
    orchestrator = Orchestrator([LocalDevice("laptop")])
    async with watched(orchestrator, plan, console):
        await orchestrator.run(plan)
    last = output.getvalue().rpartition("release  ")[2]
    assert last.startswith("completed  version 0")
    assert "●  a  completed  laptop" in last


def test_plain_lines_where_there_is_no_terminal_or_on_demand() -> None:
    for console, plain in [
        (Console(file=io.StringIO()), False),
        (Console(file=io.StringIO(), force_terminal=True), True),
    ]:
        plan = Constellation("release")
        plan.add(Task("a", call=nothing))

        async def body(plan: Constellation = plan, console: Console = console, plain: bool = plain) -> None:
            orchestrator = Orchestrator([LocalDevice("laptop")])
            async with watched(orchestrator, plan, console, plain=plain):
                await orchestrator.run(plan)

        asyncio.run(body())
        assert isinstance(console.file, io.StringIO)
        lines = console.file.getvalue().splitlines()
        assert [line[10:].split(" after ")[0] for line in lines] == [
            "release started with 1 task",
            "a started on laptop",
            "a completed",
            "release ended: completed, version 0",
        ]


async def test_another_plan_of_the_same_orchestrator_is_not_shown() -> None:
    plan, other = Constellation("release"), Constellation("other")
    plan.add(Task("a", call=nothing))
    other.add(Task("b", call=nothing))
    console = Console(file=io.StringIO())
    orchestrator = Orchestrator([LocalDevice("laptop")])
    async with watched(orchestrator, plan, console):
        await asyncio.gather(orchestrator.run(plan), orchestrator.run(other))
    assert isinstance(console.file, io.StringIO)
    assert "b started" not in console.file.getvalue()


async def test_a_plan_that_is_being_left_can_be_drawn() -> None:
    """The orchestrator has forgotten it and waits for its observers. Until they have ended, it is the owner."""
    plan = Constellation("nightly")
    plan.add(Task("one"))
    plan.begin(0.0)
    orchestrator = Orchestrator([LocalDevice("desk")])
    earlier = Constellation("earlier")
    earlier.add(Task("one", call=nothing))
    await orchestrator.run(earlier)  # it has a clock now
    plan.owner = orchestrator
    assert "nightly" in drawn(Progress(orchestrator, plan, PlanMask(plan)), 1.0)[0]


def test_a_plan_that_is_paused_or_being_cancelled_says_so() -> None:
    plan = Constellation("release")

    async def look() -> None:
        scene.orchestrator.pause("release")
        await scene.picture()
        scene.orchestrator.resume("release")
        await scene.picture()

    plan.add(Task("a", call=look))
    scene = Scene(plan, [LocalDevice("laptop")])
    scene.run()
    assert [lines[0].split()[1] for lines in scene.pictures] == ["paused", "executing"]


def large_group(look: Callable[[], Any], fail: Callable[[], Any]) -> Constellation:
    """A group of 200 elements: the first one fails, and the 150th takes a picture."""
    plan = Constellation("nightly")
    calls = {0: fail, 149: look}
    names = [f"load[{number}]" for number in range(200)]
    for number, name in enumerate(names):
        plan.add(Task(name, call=calls.get(number, nothing)))
    plan.add(Task("load", foreach={"of": names}), dict.fromkeys(names, "completion"))
    return plan


async def failing() -> None:
    raise OSError("no such line")


def test_a_large_group_is_one_line_with_counts_and_its_failures() -> None:
    scene = Scene(large_group(lambda: scene.picture(), failing), [LocalDevice("laptop", slots=1)])
    scene.run()
    [picture] = scene.pictures
    line = line_with("200: ", picture)
    assert line.split()[1:3] == ["load", "running"]
    assert "200: 1 failed, 1 running, 148 completed, 50 pending" in line
    assert any(line.split()[1:3] == ["load[0]", "failed"] for line in picture)
    assert not any(" completed " in line and "load[" in line for line in picture)


async def test_lines_tell_of_each_hundredth_of_a_large_group_and_of_its_failures() -> None:
    plan = large_group(nothing, failing)
    file = io.StringIO()
    orchestrator = Orchestrator([LocalDevice("laptop", slots=1)])
    async with watched(orchestrator, plan, Screen(file=file)):
        await orchestrator.run(plan)
    lines = [line[10:] for line in file.getvalue().splitlines()]
    assert 100 <= len(lines) < 120
    assert "load: 1 failed, 3 completed of 200" in lines
    assert "load: 1 failed, 199 completed of 200" in lines
    assert [line.split()[:2] for line in lines if line.startswith("load[")] == [["load[0]", "failed"]]


def test_what_has_no_room_is_counted() -> None:
    plan = Constellation("wide")

    async def look() -> None:
        await asyncio.sleep(1.0)
        if not scene.pictures:
            await scene.picture(height=14)

    for number in range(4):
        plan.add(Task(f"t{number}", call=look))
    for number in range(6):
        plan.add(Task(f"ready{number}", call=look, needs={f"tool{number}"}))
        plan.add(Task(f"later{number}", call=look), f"ready{number}")
    devices = [LocalDevice(f"lab{number}", can={f"tool{number}"}) for number in range(6)]
    scene = Scene(plan, devices, concurrency=2)
    scene.run()
    waiting = line_with(" more ", scene.pictures[0])
    named = [line for line in scene.pictures[0] if " task" in line.partition("  ready")[0] and "  ready" in line]
    assert " ".join(waiting.split()) == f"○ {14 - sum(int(line.split()[1]) for line in named)} more pending"


def test_groups_without_room_are_counted() -> None:
    plan = Constellation("groups")

    async def look() -> None:
        if not scene.pictures:
            await scene.picture(height=9)

    for group in range(9):
        elements = [f"g{group}[{number}]" for number in range(LARGE + 1)]
        for element in elements:
            plan.add(Task(element, call=look))
        plan.add(Task(f"g{group}", foreach={"of": elements}), dict.fromkeys(elements, "completion"))
    scene = Scene(plan, [LocalDevice("laptop")])
    scene.run()
    lines = scene.pictures[0]
    shown = sum(line.lstrip("○◐◌ ").startswith("g") and ":" in line for line in lines)
    assert " ".join(line_with(" more groups", lines).split()) == f"○ {9 - shown} more groups"


def test_the_time_left_is_unknown_while_nothing_runs() -> None:
    plan = Constellation("waits")
    plan.add(Task("one", call=nothing))
    plan.add(Task("paid", wait_for={"until": "2100-01-01T00:00+00:00"}), "one")
    progress = Progress(Orchestrator(), plan, PlanMask(plan))
    plan.begin(0.0)
    plan.start(plan.node("one"), "laptop", 0.0)
    plan.finish(plan.node("one"), COMPLETED, 1.0)
    assert drawn(progress, 2.0)[0].endswith("  2.0 s  50 %")
