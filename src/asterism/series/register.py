"""A register keeps the state of series, each as one text, and changes it only by compare-and-swap.

``read`` returns the text and a token that stands for exactly this state. ``swap`` writes a new text if the state is
still the one that the token stands for, and nothing otherwise. A token is never used twice, even if two write the same
text: who holds an old one always learns that it is old. There is no way to delete: a series is released by a change.

What can go wrong::

    SeriesError
    ├── Moved                  somebody else changed it meanwhile: nothing was written
    ├── Unsure                 the reply was lost: it may have been written or not, and the caller has to look
    ├── RegisterUnavailable    out of reach, or the credentials are refused: nothing was written
    │   ├── RegisterBusy       others keep it busy: another try may well succeed
    │   └── RateLimited        asked too often; carries how long to wait
    ├── BadSeriesName          no series can have this name
    ├── NotClaimable           there is no such issue, or it is closed: nothing was written
    └── Contended              (series/compare_and_swap.py) others were first at every try: nothing was written

Registers on git, whether through the ``git`` program or through a forge's interface, keep a series in the same place
and form, so that they can be used side by side: a ref of its own, whose commit has one file, and the state that was
read as its parent.
"""

from __future__ import annotations

import re
from typing import NamedTuple, Protocol
from urllib.parse import unquote

from asterism.core.errors import AsterismError

REF_PREFIX = "refs/asterism/series/"
STATE_FILE = "series.json"
LONGEST_NAME = 180
"""Bytes of an encoded name: a git server keeps it as the name of a file, with a few letters added."""


class Snapshot(NamedTuple):
    """The state of a series; None and None if there is nothing yet."""

    text: str | None
    token: str | None


class Change(NamedTuple):
    """One change of a series: when, what was said about it, the state it made, and its token."""

    at: float
    message: str
    text: str
    token: str


class SeriesError(AsterismError):
    """The root of the tree."""


class Moved(SeriesError):
    """Somebody else changed it meanwhile: nothing was written."""

    def __init__(self, name: str) -> None:
        super().__init__(f"series {name} has changed meanwhile")


class Unsure(SeriesError):
    """The reply was lost: it may have been written or not. Who asked reads again and looks whether it was."""


class RegisterUnavailable(SeriesError):
    """Out of reach, or the credentials are refused. Nothing was written."""


class RegisterBusy(RegisterUnavailable):
    """Others keep it busy. Nothing was written, and another try may well succeed."""


class RateLimited(RegisterUnavailable):
    """Asked too often. ``retry_after`` is how many seconds to wait."""

    def __init__(self, message: str, retry_after: float) -> None:
        self.retry_after = retry_after
        super().__init__(message)


class BadSeriesName(SeriesError):
    """No series can have this name."""


class NotClaimable(SeriesError):
    """The issue is closed, a pull request, in another repository by now, or there is none. Nothing was written."""


class SeriesRegister(Protocol):
    """See the module's docstring. ``url`` is how it is named in messages, without a password. Every method may raise
    RegisterUnavailable and RateLimited; those that take a name, BadSeriesName."""

    @property
    def url(self) -> str: ...

    def clock(self) -> float:
        """The time by which leases are judged: that of the register where it has one, ours where it has none."""
        ...

    async def read(self, name: str) -> Snapshot: ...

    async def swap(self, name: str, expected: str | None, text: str, message: str) -> str:
        """Write ``text`` if the state is the one of the token ``expected``, None for a series that must not be there
        yet. Returns the new token. Raises Moved and Unsure."""
        ...

    async def names(self) -> list[str]:
        """Of all series, in order."""
        ...

    async def history(self, name: str, limit: int) -> list[Change]:
        """The last changes, the newest first."""
        ...

    async def close(self) -> None: ...


async def read_all(register: SeriesRegister) -> dict[str, Snapshot]:
    """The state of every series, by name and in order. A register that has a quicker way to tell than one question for
    each has a method of this name."""
    at_once = getattr(register, "read_all", None)
    if at_once is not None:
        found: dict[str, Snapshot] = await at_once()
        return dict(sorted(found.items()))
    return {name: await register.read(name) for name in await register.names()}


# -- commits ----------------------------------------------------------------------------------------------------------

_NONCE = "\n\nasterism-nonce: "


def commit_message(message: str, nonce: str) -> str:
    """The message of a commit that no other commit has: two who write the same state must not make the same commit, or
    both would be told that it is there."""
    return f"{message.strip() or 'change'}{_NONCE}{nonce}\n"


def said_in(commit: str) -> str:
    """What was said about a change, given the message of its commit."""
    return commit.partition(_NONCE)[0].strip()


# -- names ---------------------------------------------------------------------------------------------------------


def checked_name(name: str) -> str:
    """The name itself. Raises BadSeriesName."""
    encoded(name)
    return name


def encoded(name: str) -> str:
    """The name in letters that git allows in a ref and everybody in a key: what is none of them is written as ``%XX``.
    No two names become the same. Raises BadSeriesName."""
    if not name or name != name.strip() or not name.isprintable():
        raise BadSeriesName(f"{name!r} is no name of a series: it takes letters that can be seen, such as RFC-093")
    dots = {found.start() for found in _DOT_THAT_GIT_REFUSES.finditer(name)}
    written = "".join(
        letter if letter in _PLAIN or (letter == "." and place not in dots) else _escaped(letter)
        for place, letter in enumerate(name)
    )
    if len(written) > LONGEST_NAME:
        raise BadSeriesName(f"{name[:40] + '…'!r} is too long for a series: {LONGEST_NAME} letters are the most")
    return written


def decoded(written: str) -> str | None:
    """The name; None for what ``encoded`` would not have written."""
    try:
        name = unquote(written, errors="strict")
        return name if encoded(name) == written else None
    except (UnicodeDecodeError, BadSeriesName):
        return None


def ref_of(name: str) -> str:
    """The git ref of a series. Raises BadSeriesName."""
    return REF_PREFIX + encoded(name)


def name_of(ref: str) -> str | None:
    """The series that a git ref belongs to; None if it belongs to none."""
    return decoded(ref.removeprefix(REF_PREFIX)) if ref.startswith(REF_PREFIX) else None


_PLAIN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")
_DOT_THAT_GIT_REFUSES = re.compile(r"^\.|\.$|\.(?=\.)|(?<=\.)\.|\.(?=lock$)")


def _escaped(letter: str) -> str:
    return "".join(f"%{byte:02X}" for byte in letter.encode())
