"""The JSON document of a series, read strictly: an unreadable one counts as taken, so no claim succeeds.

There are two forms of a state. The form for issues is also for people: ``active_issue``, times in ISO 8601. The form
for runs is what stores keep. Fields that are not set are left out: ``since``, ``claim``, ``by``, ``lease``,
``lease_until``, ``paused``, ``leases``, the leases that queued items asked for, as pairs of an item and seconds, and
``forced``, the items that somebody put there although their titles do not name this series.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from asterism.core.errors import AsterismError, safe_repr
from asterism.core.json_values import JsonObject

if TYPE_CHECKING:
    from asterism.core.series.machine import Series

SCHEMA = 1

SHORTEST_LEASE = 0.001
LONGEST_LEASE = 3650 * 86_400.0
"""Bounds of a lease, in seconds. A document cannot express less than a millisecond, nor a time without end."""

Item = str | int


class UnreadableSeries(AsterismError):
    """A document is not a valid state of a series. It counts as taken, never as free."""


class Form(NamedTuple):
    """The differences between the two forms: the key of the active item, its type, the form of a time."""

    active: str
    is_item: Callable[[object], bool]
    write_time: Callable[[float], Any]
    read_time: Callable[[Any], float | None]
    may_wait_unblocked: bool
    """Whether items may be queued while no item is active and the series is not paused. For runs never: the step that
    frees the series promotes the next."""


_KEYS = {"claim": "claim_id"}
"""Keys of a document whose field has another name, beside ``series`` and the active item."""

_TIMES = ("since", "lease_until")
_TEXTS = ("claim", "by", "paused")
_SOMETIMES = {*_TIMES, *_TEXTS, "lease", "leases", "forced"}


def encode(series: Series, form: Form) -> JsonObject:
    """The document of a series."""
    sometimes = {
        key: getattr(series, _KEYS.get(key, key)) for key in ("since", "claim", "by", "lease", "lease_until", "paused")
    }
    sometimes["leases"] = [list(pair) for pair in series.leases] or None
    sometimes["forced"] = list(series.forced) or None
    return {
        "series": series.name,
        form.active: series.active,
        "queue": list(series.queue),
        **{
            key: form.write_time(value) if key in _TIMES else value
            for key, value in sometimes.items()
            if value is not None
        },
        "updated_at": form.write_time(series.updated_at),
        "version": SCHEMA,
        "revision": series.revision,
    }


def decode(data: object, form: Form) -> JsonObject:
    """The fields of a series. Raises UnreadableSeries for anything that ``encode`` would not write: a missing field
    must not read as a free series, and an unknown field would be lost with the next change."""
    if not isinstance(data, Mapping):
        raise UnreadableSeries(f"the state of a series is an object, not {safe_repr(data)}")
    version = data.get("version")
    if type(version) is not int or version != SCHEMA:
        raise UnreadableSeries(
            f"the state has version {safe_repr(version)}, and this version of Asterism reads version {SCHEMA}"
        )
    always = {"series", form.active, "queue", "updated_at", "version", "revision"}
    if not always <= set(data) <= always | _SOMETIMES:
        raise UnreadableSeries(f"the state of a series has {', '.join(sorted(always))}, not {safe_repr(data)}")
    if not _are_right(data, form) or not _fit(data, form):
        raise UnreadableSeries(f"the state of series {safe_repr(data['series'])} contradicts itself: {safe_repr(data)}")
    fields = {_KEYS.get(key, key): data[key] for key in _SOMETIMES & set(data)}
    fields |= {key: form.read_time(data[key]) for key in (*_TIMES, "updated_at") if key in data}
    if "leases" in data:
        fields["leases"] = tuple((item, seconds) for item, seconds in data["leases"])
    if "forced" in data:
        fields["forced"] = tuple(data["forced"])
    shared = {"name": data["series"], "active": data[form.active], "queue": tuple(data["queue"])}
    return {**fields, **shared, "revision": data["revision"]}


def _are_right(data: Mapping[str, Any], form: Form) -> bool:
    """Whether every field has a valid type."""
    active, queue = data[form.active], data["queue"]
    return (
        isinstance(data["series"], str)
        and (active is None or form.is_item(active))
        and isinstance(queue, list)
        and all(form.is_item(item) for item in queue)
        and type(data["revision"]) is int
        and all(form.read_time(data[key]) is not None for key in (*_TIMES, "updated_at") if key in data)
        and all(isinstance(data[key], str) and data[key] for key in _TEXTS if key in data)
        and ("lease" not in data or (_finite(data["lease"]) or 0) > 0)
        and ("leases" not in data or _are_leases(data["leases"], queue))
        and ("forced" not in data or _are_forced(data["forced"], [active, *queue]))
    )


def _are_leases(leases: Any, queue: list[Any]) -> bool:
    """Whether these are pairs of a queued item and seconds, in the order of the queue, at least one."""
    if not isinstance(leases, list) or not leases:
        return False
    if not all(isinstance(pair, list) and len(pair) == 2 for pair in leases):
        return False
    named = [item for item, _ in leases]
    if not all(type(item) in (int, str) for item in named):
        return False
    right = all(SHORTEST_LEASE <= (_finite(seconds) or 0) <= LONGEST_LEASE for _, seconds in leases)
    among = set(named)
    return right and named == [item for item in queue if item in among]


def _are_forced(forced: Any, items: list[Any]) -> bool:
    """Whether these are items of the series, in its order, at least one."""
    if not isinstance(forced, list) or not forced or not all(type(item) in (int, str) for item in forced):
        return False
    among = set(forced)
    return forced == [item for item in items if item in among]


def _fit(data: Mapping[str, Any], form: Form) -> bool:
    """Whether the fields are consistent."""
    active, queue, revision = data[form.active], data["queue"], data["revision"]
    if revision < 1:  # an unused series
        return revision == 0 and active is None and not queue and not _SOMETIMES & set(data)
    if active is not None:
        return len({active, *queue}) == len(queue) + 1 and ("lease_until" not in data or "lease" in data)
    queue_allowed = not queue or form.may_wait_unblocked or "paused" in data
    return queue_allowed and len(set(queue)) == len(queue) and not {"since", "claim", "by", "lease_until"} & set(data)


def parse_text(text: str, name: str) -> Any:
    """The JSON data in a text. Raises UnreadableSeries."""
    try:
        return json.loads(text, object_pairs_hook=_each_once)
    except (ValueError, RecursionError):
        raise UnreadableSeries(f"the state of series {name} is not JSON: {safe_repr(text)}") from None


def _each_once(pairs: list[tuple[str, Any]]) -> JsonObject:
    """Refuse a duplicate key: readers would differ about its value."""
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a key occurs twice")
    return fields


def is_issue(value: object) -> bool:
    return type(value) is int and value > 0


def _is_run(value: object) -> bool:
    return isinstance(value, str) or type(value) is int


def _finite(value: Any) -> float | None:
    return value if type(value) in (int, float) and abs(value) < float("inf") else None


_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{3})?Z", re.ASCII)


def _to_iso(seconds: float) -> str:
    at = _BEGINNING + timedelta(milliseconds=round(seconds * 1000))
    return at.isoformat(timespec="milliseconds" if at.microsecond else "seconds").replace("+00:00", "Z")


def _from_iso(text: Any) -> float | None:
    if not isinstance(text, str) or not _TIME.fullmatch(text):
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    seconds = ((at - _BEGINNING) // timedelta(milliseconds=1)) / 1000
    return seconds if _to_iso(seconds) == text else None  # 12:00:00.000 is 12:00:00


RUNS = Form("active", _is_run, float, _finite, may_wait_unblocked=False)
ISSUES = Form("active_issue", is_issue, _to_iso, _from_iso, may_wait_unblocked=True)
