"""The register protocol: keeps the state of each series as a text, changed by compare-and-swap.

``read`` returns the text and a token that identifies exactly this state. ``swap`` writes a new text if the token is
still that of the current state, and otherwise nothing. A token is never used twice, even if two writers write the same
text, so an old token is always recognised. A register has no delete: a series is released by a change.

Errors::

    SeriesError
    ├── RevisionConflict       another writer was faster: nothing was written
    ├── OutcomeUnknown         the reply was lost: read again to learn whether the change was written
    ├── RegisterUnavailable    not reachable, or credentials refused: nothing was written
    │   ├── RegisterBusy       other writers block it: another try may succeed
    │   └── RateLimited        too many requests; carries how long to wait
    ├── BadSeriesName          not a valid name of a series
    ├── UnknownSeries          no series has this name
    ├── NotClaimable           the issue does not exist, or is not open: nothing was written
    └── Contended              (series/compare_and_swap.py) other writers won every try: nothing was written

All registers on git, through the ``git`` program or through the API of a forge, use the same layout, so they can be
used side by side: a ref for each series, whose commit has one file, and the state that was read as its parent.
"""

from __future__ import annotations

import re
from typing import NamedTuple, Protocol
from urllib.parse import unquote

from asterism.core.errors import AsterismError
from asterism.core.json_values import JsonObject
from asterism.core.series.machine import Series

REF_PREFIX = "refs/asterism/series/"
STATE_FILE = "series.json"
MAX_ENCODED_NAME = 180
"""Bytes of an encoded name: a git server uses it as a file name, with a few characters added."""


class Snapshot(NamedTuple):
    """The state of a series and its token; both None for a series that does not exist."""

    text: str | None
    token: str | None


class Change(NamedTuple):
    """One change of a series: its time, its message, the state that it wrote, and the token of that state."""

    at: float
    message: str
    text: str
    token: str


class SeriesError(AsterismError):
    """The base class of all errors of series."""


class RevisionConflict(SeriesError):
    """Another writer changed the series first. Nothing was written."""

    def __init__(self, name: str) -> None:
        super().__init__(f"another writer changed series {name} first")


class OutcomeUnknown(SeriesError):
    """The reply was lost, so the change was written or not. Read the series again to find out."""


class RegisterUnavailable(SeriesError):
    """The register cannot be reached, or refuses the credentials. Nothing was written."""


class RegisterBusy(RegisterUnavailable):
    """Other writers block the register. Nothing was written, and another try may succeed."""


class RateLimited(RegisterUnavailable):
    """Too many requests. ``retry_after`` is how long to wait, in seconds."""

    def __init__(self, message: str, retry_after: float) -> None:
        self.retry_after = retry_after
        super().__init__(message)


class BadSeriesName(SeriesError):
    """Not a valid name of a series."""


class NotClaimable(SeriesError):
    """The issue does not exist, is closed, was transferred, is a pull request, or belongs to another series. Nothing
    was written."""


class UnknownSeries(SeriesError):
    """No series has this name."""


class AssignmentFailed(SeriesError):
    """The forge accepted the request but assigned nobody, or does not know the account."""


class SeriesRegister(Protocol):
    """See the docstring of the module.

    Every async method but ``close`` may raise RegisterUnavailable and RateLimited; methods that take a name,
    BadSeriesName."""

    @property
    def url(self) -> str:
        """The name of the register in messages, without a password."""

    def clock(self) -> float:
        """Returns the time that decides about leases: that of the register if it has a clock, otherwise of this
        machine, in seconds since 1970. Raises nothing."""

    async def read(self, name: str) -> Snapshot:
        """Returns the state of a series and its token; both None for a series that does not exist."""

    async def swap(self, name: str, expected: str | None, text: str, message: str) -> str:
        """Write ``text`` if ``expected`` is the token of the current state, and return the new token.

        :param expected: None for a series that must not exist yet.
        :param message: what people read about this change in the history.
        :raises RevisionConflict: the current state has another token.
        :raises OutcomeUnknown: the reply was lost.
        """

    async def names(self) -> list[str]:
        """Returns the names of all series, sorted."""

    async def history(self, name: str, limit: int) -> list[Change]:
        """Returns the last ``limit`` changes of a series, newest first; none for a series that does not exist."""

    async def close(self) -> None:
        """Release what the register holds: connections, processes, files. It is not used after it. Raises nothing."""


class RegisterOver:
    """A register over another one, which does the same unless a method is overridden."""

    def __init__(self, register: SeriesRegister) -> None:
        self.register = register

    @property
    def url(self) -> str:
        return self.register.url

    def clock(self) -> float:
        return self.register.clock()

    async def read(self, name: str) -> Snapshot:
        return await self.register.read(name)

    async def swap(self, name: str, expected: str | None, text: str, message: str) -> str:
        return await self.register.swap(name, expected, text, message)

    async def names(self) -> list[str]:
        return await self.register.names()

    async def history(self, name: str, limit: int) -> list[Change]:
        return await self.register.history(name, limit)

    async def close(self) -> None:
        await self.register.close()


class DryRunRegister(RegisterOver):
    """Reads from a register, and discards what is written."""

    async def swap(self, name: str, expected: str | None, text: str, message: str) -> str:
        return "not written"

    async def close(self) -> None:
        """The register belongs to the caller."""


async def read_all(register: SeriesRegister) -> dict[str, Snapshot]:
    """The state of every series by name, sorted. A register with a faster way has a method of this name."""
    at_once = getattr(register, "read_all", None)
    if at_once is not None:
        snapshots: dict[str, Snapshot] = await at_once()
        return dict(sorted(snapshots.items()))
    return {name: await register.read(name) for name in await register.names()}


# -- commits ----------------------------------------------------------------------------------------------------------

_NONCE = "\n\nasterism-nonce: "


def commit_message(message: str, nonce: str) -> str:
    """The commit message of a change. The nonce makes the commit unique.

    Without it, two writers of the same state would make the same commit, and both would believe they were first."""
    return f"{message.strip() or 'change'}{_NONCE}{nonce}\n"


def message_of_change(commit: str) -> str:
    """The message of a change, from the message of its commit."""
    return commit.partition(_NONCE)[0].strip()


# -- names ---------------------------------------------------------------------------------------------------------


def encode_name(name: str) -> str:
    """The name in characters that are valid in a git ref and in a key; others are written as ``%XX``.

    Different names have different encodings. Raises BadSeriesName."""
    if not name or name != name.strip() or not name.isprintable():
        raise BadSeriesName(
            f"{name!r} is not a valid name of a series: use printable characters, no outer spaces (example: RFC-093)"
        )
    dots = {match.start() for match in _DOT_REFUSED_BY_GIT.finditer(name)}
    encoded = "".join(
        letter
        if letter in _PLAIN or (letter == "." and place not in dots)
        else "".join(f"%{byte:02X}" for byte in letter.encode())
        for place, letter in enumerate(name)
    )
    if len(encoded) > MAX_ENCODED_NAME:
        raise BadSeriesName(
            f"{name[:40] + '…'!r} is too long for the name of a series: the limit is {MAX_ENCODED_NAME} characters"
        )
    return encoded


def decode_name(encoded: str) -> str | None:
    """The name; None for a text that ``encode_name`` does not write."""
    try:
        name = unquote(encoded, errors="strict")
        return name if encode_name(name) == encoded else None
    except (UnicodeDecodeError, BadSeriesName):
        return None


def name_of(ref: str) -> str | None:
    """The name of the series that a git ref belongs to; None if it belongs to none."""
    return decode_name(ref.removeprefix(REF_PREFIX)) if ref.startswith(REF_PREFIX) else None


_PLAIN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")
_DOT_REFUSED_BY_GIT = re.compile(r"^\.|\.$|\.(?=\.)|(?<=\.)\.|\.(?=lock$)")


# -- status ------------------------------------------------------------------------------------------------------------


def status_word(series: Series) -> str:
    if series.paused is not None:
        return "paused"
    return "active" if series.active is not None else "free"


def series_status(series: Series, now: float) -> JsonObject:
    """A series as JSON, with its status and age."""
    return {
        **series.to_document(),
        "status": status_word(series),
        "age": None if series.since is None else round(max(0.0, now - series.since), 3),
        "why_not_promoted": why_not_promoted(series, now),
    }


def why_not_promoted(series: Series, now: float) -> str | None:
    """Why the head of the queue is not active; None if no issue waits, or the active one has a right to be."""
    if series.active is not None:
        if series.lease_until is not None and series.lease_until <= now:
            return f"the lease of #{series.active} has expired: the next claim or promotion ends it"
        return None
    if not series.queue:
        return None
    if series.paused is not None:
        return f"paused {series.paused}"
    return f"not promoted yet: run `asterism series promote {series.name}`, or claim it"
