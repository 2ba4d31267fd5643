"""Signatures of webhook deliveries: HMAC-SHA256 with a secret that both sides know, compared in constant time.

A comparison that ends at the first difference tells by its time how much of a forged signature is right.
"""

from __future__ import annotations

import hmac
import logging
import time
from collections.abc import Callable, Iterable

from asterism.base.http_limits import RequestRefused

REFUSAL_LOG_INTERVAL = 60.0
"""The least seconds between two lines in the log about a wrong signature: anybody can send one."""


def is_signed(
    secret: bytes, content: bytes, signatures: Iterable[str], text_of: Callable[[bytes], str] = bytes.hex
) -> bool:
    """Whether one of the signatures is right. It is computed once, however many a stranger sends."""
    expected = text_of(hmac.digest(secret, content, "sha256")).encode()
    return any(hmac.compare_digest(expected, signature.encode("utf-8", "replace")) for signature in signatures)


def signed_as_github(secret: bytes, body: bytes, header: str) -> bool:
    """Whether ``X-Hub-Signature-256`` is right for this body."""
    return header.startswith("sha256=") and is_signed(secret, body, [header.removeprefix("sha256=")])


class WrongSignatures:
    """Refuses wrong signatures, and logs them seldom. ``now`` is a monotonic clock in seconds."""

    def __init__(self, log: logging.Logger, now: Callable[[], float] = time.monotonic) -> None:
        self._log, self._now = log, now
        self._logged_at = -REFUSAL_LOG_INTERVAL

    def refusal(self) -> RequestRefused:
        now = self._now()
        if now - self._logged_at >= REFUSAL_LOG_INTERVAL:
            self._logged_at = now
            self._log.warning("refused a delivery with a wrong signature")
        return RequestRefused(401, "the signature is wrong")
