"""Errors of the server, the driver and the network as StoreErrors.

After StoreUnavailable itself it is unknown whether a commit happened; after its subclasses nothing happened. Once the
store is open, a server that refuses writes counts as unavailable, not as read-only: that passes after a failover, and
the next connection looks for the server that takes writes. ValueError is for a value that cannot be stored, such as a
name with a NUL in it, which is an error of the caller.
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
"""The SQLSTATE of our own functions for a conflict. The message names the record."""

COLLISIONS = frozenset({"40P01", "40001"})
"""SQLSTATEs of deadlocks and serialization failures: nothing happened, and an immediate retry may succeed."""

_KINDS: dict[str, tuple[type[StoreError], str]] = {
    "25006": (StoreUnavailable, "the server refuses writes: a failover may be in progress, or it was set to read-only"),
    "25P03": (StoreUnavailable, "the server ended a transaction that was idle for too long"),
    "28": (StoreMissing, "the server refuses the login"),
    "3D000": (StoreMissing, "the database does not exist"),
    "3F000": (StoreMissing, "the schema of the store is missing"),
    "40": (StoreBusy, "other writers changed the same records repeatedly"),
    "42501": (StoreReadOnly, "the database user lacks a privilege"),
    "42883": (StoreMissing, "the functions of the store are missing"),
    "42P01": (StoreMissing, "the tables of the store are missing"),
    "53100": (StoreFull, "the disk of the server is full"),
    "53300": (StoreUnavailable, "the server has too many connections"),
    "55P03": (StoreBusy, "another process locked a record for too long"),
    "57014": (StoreBusy, "a statement took too long and was cancelled"),
    "57P": (StoreUnavailable, "the server is starting up or shutting down"),
    "XX001": (StoreCorrupt, "the data of the server is damaged"),
    "XX002": (StoreCorrupt, "an index is damaged"),
}
"""By SQLSTATE, or the beginning of one."""

_UNSTORABLE = ("22", "54")


def translated(error: Exception, shown: str) -> Exception:
    """Return the error to raise instead. ``shown`` is the address for messages."""
    if isinstance(error, StoreError):
        return error
    if isinstance(error, asyncpg.PostgresError):
        return _from_server(error, shown)
    if isinstance(error, ValueError | OverflowError) and not isinstance(error, OSError):
        return error if not isinstance(error, asyncpg.InterfaceError) else ValueError(f"cannot be stored: {error}")
    if isinstance(error, asyncpg.TargetServerAttributeNotMatched):
        return StoreReadOnly(f"{shown}: the server is a standby or read-only; a store needs a server that takes writes")
    if isinstance(error, TimeoutError):
        return StoreUnavailable(f"{shown}: the server did not answer in time")
    if isinstance(error, OSError):
        return StoreUnavailable(f"{shown}: cannot reach the server: {error.strerror or error or type(error).__name__}")
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
    """Return a copy for one of several callers: an error that all of them raise would collect the tracebacks of all."""
    try:
        copy = type(error)(*error.args)
    except TypeError:
        return error
    if str(copy) != str(error):
        return error
    copy.__cause__ = error.__cause__
    return copy


def storable(text: str) -> bool:
    """Whether PostgreSQL can hold a text. No record has a name that it cannot hold."""
    return (text.isascii() and "\0" not in text) or _encodes(text)


def _encodes(text: str) -> bool:
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False


def is_collision(error: Exception) -> bool:
    return _state_behind(error) in COLLISIONS


def is_about_one(error: Exception) -> bool:
    """Whether a group failed because of one member: a value that cannot be stored, or a locked record."""
    return isinstance(error, ValueError | OverflowError) or _state_behind(error) in {"55P03", *COLLISIONS}


def _state_behind(error: Exception) -> str | None:
    return error.__cause__.sqlstate if isinstance(error.__cause__, asyncpg.PostgresError) else None


def spoils(error: BaseException) -> bool:
    """Whether the connection that met this error should not be used again."""
    if isinstance(error, asyncpg.PostgresError):
        state = error.sqlstate or ""
        return state.startswith(("08", "57P")) or state in ("25006", "25P03")
    return not isinstance(error, StoreError | ValueError)
