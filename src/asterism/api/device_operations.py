"""Operations on devices: list, show, drain, and the scores by which one is chosen for a run."""

from __future__ import annotations

from typing import Annotated

from asterism.api import documents
from asterism.api.documents import Doc
from asterism.api.operation import Name, Operation, Reason
from asterism.api.quick_dataclass import dataclass


@dataclass(frozen=True)
class ListDevices:
    """All devices that are there, or were lately."""


@dataclass(frozen=True)
class OneDevice:
    device: Name


@dataclass(frozen=True)
class DrainDevice:
    device: Name
    reason: Reason = ""


@dataclass(frozen=True)
class ScoreDevices:
    subject: Annotated[Name, Doc("A workflow, by its name or NAME@VERSION, or a run, by its id or a part of it.")]


list_devices = Operation("list_devices", ListDevices, documents.Page[documents.Device], "List devices.", "GET /devices")
show_device = Operation(
    "show_device", OneDevice, documents.DeviceDetails, "A device and its runs.", "GET /devices/{device}"
)
drain_device = Operation(
    "drain_device",
    DrainDevice,
    documents.Device,
    "Ask a device to finish its runs, take no more, and leave.",
    "POST /devices/{device}/drain",
    needs="operate",
)
score_devices = Operation(
    "score_devices", ScoreDevices, documents.DeviceScores, "Which device would get a run, and why.", "GET /scores"
)
