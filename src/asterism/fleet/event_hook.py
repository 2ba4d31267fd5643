"""A hook: lets a program that signs what it posts send the events of one name, and nothing else.

The name of the event is fixed, or has fields of the body after a fixed beginning: ``payment/{order}``. Three forms of
signature are known by their header; each is an HMAC-SHA256 with the secret of the hook:

- ``webhook-signature`` (Standard Webhooks) signs an id, a time and the body. The id is the key of the event.
- ``stripe-signature`` signs a time and the body. The key is the ``id`` in the body.
- ``x-hub-signature-256`` (GitHub) signs the body. The key is its hash, since a replay may have any delivery id.

A signature of one form is never right in another: the body is a JSON object, so what GitHub signs begins with a brace
or a space, and what the others sign has a brace, a space or a digit after its first full stop.

A replay within the window has the key of an event that is still kept, so it is no second event. After the window, its
time is refused. GitHub signs no time: its replays are known for as long as events are kept.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from asterism.base.http_limits import RequestRefused, is_signed, signed_as_github
from asterism.core.errors import AsterismError
from asterism.core.run.run_label import InvalidTemplate, TextTemplate, UnknownField
from asterism.core.schedule.schedule import event_name_problem

WINDOW = 300.0
"""How many seconds the time of a delivery may differ from the clock of the store."""

_NAME = re.compile(r"[a-z][a-z0-9-]{0,39}")
_ID = re.compile(r"[0-9A-Za-z_-]{1,200}")
_TIME = re.compile(r"[0-9]{1,12}", re.ASCII)


class InvalidHook(AsterismError, ValueError):
    """A hook with a name or an event that cannot be used."""


def check_hook_name(name: str) -> None:
    """Raises InvalidHook if a text is not the name of a hook: it is part of a path, of a file and of a variable."""
    if not _NAME.fullmatch(name):
        raise InvalidHook(
            f"{name[:60]!r} is not the name of a hook: up to 40 small letters, digits and hyphens, the first a letter"
        )


class Signed(NamedTuple):
    """What the headers of a delivery say: whether the signature ``is_right``, and the time and the id that were signed
    with the body. GitHub signs neither, Stripe no id."""

    is_right: bool
    at: str | None = None
    id: str | None = None

    def check_time(self, now: float) -> None:
        """Raises RequestRefused if the time that was signed is too far from now."""
        if self.at is not None and not (_TIME.fullmatch(self.at) and abs(now - int(self.at)) <= WINDOW):
            raise RequestRefused(
                401,
                f"the time of the delivery is missing, or more than {WINDOW / 60:.0f} minutes from that of this server",
            )


@dataclass(frozen=True)
class EventHook:
    """``event`` is the name of its events, perhaps with fields. Raises InvalidHook."""

    name: str
    event: str
    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        check_hook_name(self.name)
        try:
            template = TextTemplate(self.event)
        except InvalidTemplate as error:
            raise InvalidHook(f"hook {self.name!r}: {error}") from None
        if self.event.startswith("{") and template.fields:
            raise InvalidHook(
                f"hook {self.name!r}: {self.event!r} lets a sender choose the whole name: begin it with a text, such "
                f"as {self.name}/{self.event}"
            )
        problem = event_name_problem(self.event)
        if problem is not None:
            raise InvalidHook(f"hook {self.name!r}: {problem}")

    def signed(self, headers: Mapping[str, str], body: bytes) -> Signed:
        """What the headers say of this body. Raises RequestRefused with 401 if there is no signature."""
        if (header := headers.get("webhook-signature")) is not None:
            name, at = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
            if not _ID.fullmatch(name):
                raise RequestRefused(401, "the header webhook-id has 1 to 200 letters, digits, - and _")
            given = [each.removeprefix("v1,") for each in header.split() if each.startswith("v1,")]
            content = f"{name}.{at}.".encode() + body
            return Signed(is_signed(_decoded(self.secret), content, given, _base64), at, name)
        if (header := headers.get("stripe-signature")) is not None:
            pairs = [part.strip().partition("=") for part in header.split(",")]
            at = next((value for name, _, value in pairs if name == "t"), "")
            given = [value for name, _, value in pairs if name == "v1"]
            return Signed(is_signed(self.secret, f"{at}.".encode() + body, given), at)
        if (header := headers.get("x-hub-signature-256")) is not None:
            return Signed(signed_as_github(self.secret, body, header))
        raise RequestRefused(401, "the signature is missing")

    def event_name(self, data: Mapping[str, Any]) -> str:
        """The name of the event of a delivery. Raises RequestRefused with 400."""
        try:
            name = TextTemplate(self.event).fill(data)
        except UnknownField as error:
            raise RequestRefused(400, f"the body has no {error.field}, which the event {self.event!r} names") from None
        problem = event_name_problem(name)
        if problem is not None:
            raise RequestRefused(400, problem)
        return name

    def key(self, signed: Signed, data: Mapping[str, Any], body: bytes) -> str:
        """The key under which a delivery is one event, however often it comes: only what was signed is in it. Raises
        RequestRefused with 400."""
        if signed.id is not None:
            return f"{self.name}/{signed.id}"
        if signed.at is None:
            return f"{self.name}/{hashlib.sha256(body).hexdigest()}"
        its = data.get("id")
        if not (isinstance(its, str) and _ID.fullmatch(its)):
            raise RequestRefused(400, "the body has no id, as every event of Stripe has")
        return f"{self.name}/{its}"


def _decoded(secret: bytes) -> bytes:
    """The key of a secret as Standard Webhooks writes it, which is base64 after ``whsec_``; else the secret itself."""
    if secret.startswith(b"whsec_"):
        try:
            return base64.b64decode(secret.removeprefix(b"whsec_"), validate=True)
        except binascii.Error:
            pass
    return secret


def _base64(digest: bytes) -> str:
    return base64.b64encode(digest).decode()
