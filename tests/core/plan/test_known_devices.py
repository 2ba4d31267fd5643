"""Edits that name devices: an unknown name is a mistake."""

from __future__ import annotations

from asterism.core.plan.constellation import Constellation
from asterism.core.plan.edit_rules import MOST_NAMES, KnownDevices, device_violations, names_devices
from asterism.core.plan.edits import AddTask, EditBatch, RemoveTask, UpdateTask
from asterism.core.plan.task import Task

KNOWN = KnownDevices(frozenset({"attic", "kitchen"}), lambda name: name.startswith("lab-"))


def violations(*edits: AddTask | UpdateTask | RemoveTask, known: KnownDevices = KNOWN) -> list[tuple[int | None, str]]:
    plan = Constellation("p")
    plan.add(Task("a", shell="true", device="to-come"))
    return [(violation.edit, violation.message) for violation in device_violations(EditBatch(edits), plan, known)]


def added(device: str | None) -> AddTask:
    return AddTask(Task("b", shell="true", device=device))


def test_a_device_that_is_known_invited_or_named_by_the_plan_may_be_named() -> None:
    assert not violations(added("attic"), added("lab-7"), added("to-come"), added(None))
    assert not violations(UpdateTask("a", device="kitchen"), UpdateTask("a", device=None), UpdateTask("a", shell="no"))
    assert not violations(RemoveTask("a"), added("{item.host}"))
    assert not violations(AddTask("no task"))  # type: ignore[arg-type]


def test_any_other_is_a_violation_of_its_edit_and_the_message_names_those_that_there_are() -> None:
    text = "no device 'atic' has joined, and none was invited; the devices are: attic, kitchen"
    assert violations(RemoveTask("a"), added("atic")) == [(1, text)]
    assert violations(UpdateTask("a", device="atic")) == [(0, text)]


def test_the_message_stays_short() -> None:
    many = KnownDevices(frozenset(f"device-{number:03}" for number in range(MOST_NAMES + 5)))
    [(_, text)] = violations(added("nowhere"), known=many)
    assert text.endswith("device-019 and 5 more")
    [(_, text)] = violations(added("nowhere"), known=KnownDevices(frozenset()))
    assert text.endswith("the devices are: none")


def test_only_an_edit_that_names_a_device_needs_to_know_them() -> None:
    assert names_devices(EditBatch((RemoveTask("a"), added("attic"))))
    assert not names_devices(EditBatch((RemoveTask("a"), added(None), UpdateTask("a", shell="no"))))
