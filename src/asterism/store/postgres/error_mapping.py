"""What the server, the driver and the network say, in the words of the store.

Whether a commit happened is not known after StoreUnavailable itself; after the kinds below it nothing did. A server
that takes no writes counts as unavailable, not as read-only, once the store is open: in a failover that passes, and
the next connection looks for the server that takes them. ValueError is for what cannot be stored at all, such as a
name with a NUL in it: that is the caller's mistake.
"""

from __future__ import annotations

import asyncpg

from asterism.store.store_errors import (
    Conflict,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreMissing,
    StoreReadOnly,
    StoreUnavailable,
)

CONFLICT = "AS001"
"""Raised by our own functions, with what has changed as the message."""

COLLISIONS = frozenset({"40P01", "40001"})
"""Two commits stood in each other's way. Nothing happened, and it may be tried again at once."""

_KINDS: dict[str, tuple[type[StoreError], str]] = {
    "25006": (StoreUnavailable, "it takes no writes just now: a failover may be under way, or it was set to read-only"),
    "25P03": (StoreUnavailable, "it ended a transaction that had been idle for too long"),
    "28": (StoreMissing, "it refuses the login"),
    "3D000": (StoreMissing, "there is no such database"),
    "3F000": (StoreMissing, "the store's schema is gone"),
    "40": (StoreBusy, "others changed the same records again and again"),
    "42501": (StoreReadOnly, "the user of the store may not do this"),
    "42883": (StoreMissing, "the store's functions are gone"),
    "42P01": (StoreMissing, "the store's tables are gone"),
    "53100": (StoreFull, "its disk is full"),
    "53300": (StoreUnavailable, "it has too many connections"),
    "55P03": (StoreBusy, "a record was locked by another process for too long"),
    "57014": (StoreBusy, "a statement took too long and was stopped"),
    "57P": (StoreUnavailable, "it is starting, or shutting down"),
    "XX001": (StoreCorrupt, "its data are damaged"),
    "XX002": (StoreCorrupt, "an index is damaged"),
}
"""By SQLSTATE, or the beginning of one."""

_UNSTORABLE = ("22", "54")


def translated(error: Exception, shown: str) -> Exception:
    """The error to raise instead; ``shown`` is the address in messages."""
    if isinstance(error, StoreError):
        return error
    if isinstance(error, asyncpg.PostgresError):
        return _from_server(error, shown)
    if isinstance(error, ValueError | OverflowError) and not isinstance(error, OSError):
        return error if not isinstance(error, asyncpg.InterfaceError) else ValueError(f"cannot be stored: {error}")
    if isinstance(error, asyncpg.TargetServerAttributeNotMatched):
        return StoreReadOnly(f"{shown}: it is a standby, or set to read-only; a store needs a server that takes writes")
    if isinstance(error, TimeoutError):
        return StoreUnavailable(f"{shown}: no answer in time")
    if isinstance(error, OSError):
        return StoreUnavailable(f"{shown}: it cannot be reached: {error.strerror or error or type(error).__name__}")
    if isinstance(error, EOFError | asyncpg.InterfaceError | asyncpg.InternalClientError):
        return StoreUnavailable(f"{shown}: {error or type(error).__name__}")
    return error


def _from_server(error: asyncpg.PostgresError, shown: str) -> Exception:
    state = error.sqlstate or ""
    if state == CONFLICT:
        return Conflict(str(error))
    if state.startswith(_UNSTORABLE):
        return ValueError(f"cannot be stored: {error}")
    for length in (5, 3, 2):
        if state[:length] in _KINDS:
            kind, words = _KINDS[state[:length]]
            return kind(f"{shown}: {words} ({error})")
    return StoreUnavailable(f"{shown}: {error} ({state})")


def own_copy(error: Exception) -> Exception:
    """For one of several who meet the same error: one that all of them raise would collect the traces of all."""
    try:
        copy = type(error)(*error.args)
    except TypeError:
        return error
    if str(copy) != str(error):
        return error
    copy.__cause__ = error.__cause__
    return copy


def storable(text: str) -> bool:
    """Whether PostgreSQL can hold it as text; what it cannot hold is the name of nothing in it."""
    return (text.isascii() and "\0" not in text) or _encodes(text)


def _encodes(text: str) -> bool:
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False


def is_collision(error: Exception) -> bool:
    return _state_behind(error) in COLLISIONS


def is_about_one(error: Exception) -> bool:
    """Whether a group failed because of one of its members: what cannot be stored, or is locked by another."""
    return isinstance(error, ValueError | OverflowError) or _state_behind(error) in {"55P03", *COLLISIONS}


def _state_behind(error: Exception) -> str | None:
    return error.__cause__.sqlstate if isinstance(error.__cause__, asyncpg.PostgresError) else None


def spoils(error: BaseException) -> bool:
    """Whether the connection that met this error should not be used again."""
    if isinstance(error, asyncpg.PostgresError):
        state = error.sqlstate or ""
        return state.startswith(("08", "57P")) or state in ("25006", "25P03")
    return not isinstance(error, StoreError | ValueError)
