"""Operations on devices: list, show, invite, drain, revoke, and the scores by which one is chosen for a run."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated

from asterism.api import documents
from asterism.api.documents import Doc
from asterism.api.operation import Limit, Name, Operation, Reason
from asterism.api.quick_dataclass import Request


class ListDevices(Request):
    """All devices that are there, or were lately."""


class OneDevice(Request):
    device: Name


class ChangeDevice(Request):
    device: Name
    reason: Reason = ""


class InviteDevice(Request):
    name: Annotated[str, Limit(min_length=1, max_length=100), Doc("Its name, or a pattern of names such as lab-*.")]
    can: Annotated[list[str], Limit(max_length=1000), Doc("What it may declare; by default any capability.")] = field(
        default_factory=list
    )
    reason: Reason = ""


class ScoreDevices(Request):
    subject: Annotated[Name, Doc("A workflow, by its name or NAME@VERSION, or a run, by its id or a part of it.")]


class DeviceOperations:
    list_devices = Operation(ListDevices, documents.Page[documents.Device], "List devices.", "GET /devices")
    show_device = Operation(OneDevice, documents.DeviceDetails, "A device and its runs.", "GET /devices/{device}")
    drain_device = Operation(
        ChangeDevice,
        documents.Device,
        "Ask a device to finish its runs, take no more, and leave.",
        "POST /devices/{device}/drain",
    )
    invite_device = Operation(
        InviteDevice,
        documents.DeviceInvitation,
        "Make a code with which one device joins through the server, once.",
        "POST /devices/invitations",
        needs="admin",
        status=201,
        secret=True,
    )
    revoke_device = Operation(
        ChangeDevice,
        documents.RevokedDevice,
        "Revoke the key of a device that joined through the server.",
        "POST /devices/{device}/revoke",
        needs="admin",
    )
    score_devices = Operation(
        ScoreDevices, documents.DeviceScores, "Which device would get a run, and why.", "GET /scores"
    )
