"""The key of a device at a gateway: made by the device, kept in a file that only its user can read.

The device shows the public half once, with a code that a person was given (``asterism device invite``). From then on it
proves who it is by signing challenges. The private half never leaves the machine.
"""

from __future__ import annotations

import hashlib
import json
import re
from base64 import b64decode, b64encode
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asterism.base.private_file import PrivateDocument
from asterism.base.startup import install_hint
from asterism.core.errors import AsterismError
from asterism.fleet.device.process_records import state_directory

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


_ADVICE = "remove it, and enrol the device with a new code"


def signed_bytes(words: tuple[str, ...]) -> bytes:
    """What is signed: no two lists of words have the same bytes."""
    return json.dumps(["asterism device", *words], separators=(",", ":")).encode()


class DeviceKey:
    """An Ed25519 key. ``public`` is its public half, as text."""

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self._private = private
        self.public = b64encode(private.public_key().public_bytes_raw()).decode()

    @classmethod
    def new(cls) -> DeviceKey:
        return cls(_ed25519().Ed25519PrivateKey.generate())

    @classmethod
    def from_text(cls, text: str) -> DeviceKey:
        """Raises ValueError."""
        return cls(_ed25519().Ed25519PrivateKey.from_private_bytes(b64decode(text, validate=True)))

    def to_text(self) -> str:
        return b64encode(self._private.private_bytes_raw()).decode()

    def sign(self, *words: str) -> str:
        return b64encode(self._private.sign(signed_bytes(words))).decode()


def is_signed(public: str, signature: str, *words: str) -> bool:
    """Whether the key with this public half has signed the words."""
    from cryptography.exceptions import InvalidSignature

    try:
        key = _ed25519().Ed25519PublicKey.from_public_bytes(b64decode(public, validate=True))
        key.verify(b64decode(signature, validate=True), signed_bytes(words))
    except (InvalidSignature, ValueError):
        return False
    return True


def _ed25519() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise AsterismError(f"devices of a gateway need cryptography: {install_hint('gateway')}") from None
    return ed25519


# -- files -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Enrolment:
    """What a device remembers of a server: its key, whether the server knows it, and the fingerprint of the server's
    certificate if it is not one that everybody trusts."""

    key: DeviceKey = field(repr=False)
    enrolled: bool = False
    fingerprint: str | None = None


class EnrolmentFile:
    """The file of one device at one server, and the folder of its outbox."""

    def __init__(self, url: str, device: str, root: Path | None = None) -> None:
        place = hashlib.sha256(f"{url}\0{device}".encode()).hexdigest()[:24]
        readable = re.sub(r"[^A-Za-z0-9.-]", "_", device)[:40]
        self.folder = (root or state_directory()) / "gateways" / f"{readable}-{place}"
        self.path, self.outbox = self.folder / "key.json", self.folder / "outbox"
        self._document = PrivateDocument(self.path, _enrolment, _ADVICE)

    def read(self) -> Enrolment | None:
        """None if the device has no key yet. Raises UnusableSecret."""
        return self._document.read()

    def write(self, enrolment: Enrolment) -> None:
        """Write it durably, or not at all."""
        with self._document.locked():
            self._document.write(
                {"key": enrolment.key.to_text(), "enrolled": enrolment.enrolled, "fingerprint": enrolment.fingerprint}
            )


def _enrolment(data: Any) -> Enrolment:
    return Enrolment(DeviceKey.from_text(data["key"]), data["enrolled"] is True, data.get("fingerprint"))
