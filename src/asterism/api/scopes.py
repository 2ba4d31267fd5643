"""Scopes: what a credential allows, and what a request needs.

=================  ====================================================================================================
``observe``        read everything: plans, runs, devices, schedules, series, notices, metrics
``edit:PLAN``      read one plan, edit it, answer its edit cycles; ``*`` is any text, ``?`` one character
``operate``        ``observe``, edit every plan; submit, pause, resume, cancel and retry plans and runs; schedules
``series``         read series, and change them
``event``          send events that plans wait for, and nothing else
``admin``          everything except to act as a device
=================  ====================================================================================================

No token acts as a device: a device has a key of its own, and its access tokens are for the gateway and for its name
alone (``enrolment.py``).

A request needs one of: ``observe``, ``observe plan NAME``, ``observe series``, ``edit NAME``, ``operate``, ``series``,
``event``, ``admin``; ``known`` is satisfied by every credential.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from asterism.core.errors import AsterismError
from asterism.fleet.policy.rule_patterns import compile_pattern

PLAIN = ("observe", "operate", "series", "event", "admin")
MAX_LENGTH = 200

_INCLUDES = {
    "observe": ("observe",),
    "operate": ("observe", "edit", "operate", "event"),
    "series": ("series",),
    "event": ("event",),
    "admin": ("observe", "edit", "operate", "series", "event", "admin"),
}
"""The kinds of needs that each plain scope satisfies, whatever name they carry."""


class InvalidScope(AsterismError, ValueError):
    """A text that is not a scope."""


class ScopeMissing(AsterismError):
    """A credential does not allow what its caller asks for."""


def check_scopes(scopes: Iterable[str]) -> frozenset[str]:
    """The scopes as a set. Raises InvalidScope."""
    checked = frozenset(scopes)
    for scope in checked:
        kind, colon, name = scope.partition(":")
        plain = scope in PLAIN
        named = kind == "edit" and colon and name and name.isprintable() and len(name) <= MAX_LENGTH
        if kind == "device":
            raise InvalidScope(
                f"{scope!r} is not a scope of tokens: a device has a key of its own; enrol it with the code of: "
                "asterism device invite"
            )
        if not plain and not named:
            raise InvalidScope(f"{scope!r} is not a valid scope; the scopes are: {', '.join(PLAIN)} and edit:PLAN")
    if not checked:
        raise InvalidScope(f"at least one scope is needed: {', '.join(PLAIN)} or edit:PLAN")
    return checked


def allows(scopes: Collection[str], need: str) -> bool:
    """Whether one of the scopes satisfies the need of a request."""
    kind, _, name = need.partition(" ")
    return kind == "known" or any(_satisfies(scope, kind, name) for scope in scopes)


def _satisfies(scope: str, kind: str, name: str) -> bool:
    if scope in _INCLUDES:
        return kind in _INCLUDES[scope] or (scope == "series" and (kind, name) == ("observe", "series"))
    pattern = scope.removeprefix("edit:")
    what, _, plan = name.partition(" ")
    if kind == "observe":
        return what == "plan" and compile_pattern(pattern).fullmatch(plan) is not None
    return kind == "edit" and compile_pattern(pattern).fullmatch(name) is not None


def shown_need(need: str) -> str:
    """The scope that satisfies a need and no more."""
    kind, _, name = need.partition(" ")
    if kind == "observe" and name.startswith("plan "):
        return f"observe or edit:{name.removeprefix('plan ')}"
    if kind == "observe":
        return "observe or series" if name else "observe"
    return f"{kind}:{name}" if name else kind
