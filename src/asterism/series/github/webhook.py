"""Deliveries of GitHub's webhook: check the signature, detect replays, find the affected series.

The signature covers only the body, so a delivery is remembered by its body as well as by its id: a replay under a new
id is ignored. The memory is bounded and lasts as long as the process; a replay that gets through costs one sync that
finds nothing to do.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, NamedTuple

from asterism.series.github.discovery import SeriesMatcher, has_label

MAX_REMEMBERED = 10_000
"""Deliveries that are remembered."""
EVENTS = frozenset({"issues", "pull_request"})


class AffectedSeries(NamedTuple):
    """The series to sync: None for all, empty for none. ``why`` is for the log."""

    series: frozenset[str] | None
    why: str


def is_signed(secret: bytes, body: bytes, signature: str | None) -> bool:
    """Whether ``X-Hub-Signature-256`` is right for this body, compared in constant time."""
    expected = "sha256=" + hmac.new(secret, body, hashlib.sha256).hexdigest()
    return hmac.compare_digest(expected.encode(), (signature or "").encode("utf-8", "replace"))


class SeenDeliveries:
    """The deliveries that were received before."""

    def __init__(self, limit: int = MAX_REMEMBERED) -> None:
        self._limit = limit
        self._seen: OrderedDict[str, None] = OrderedDict()

    def add(self, delivery: str, body: bytes) -> bool:
        """Remember a delivery. Returns whether it is new."""
        marks = [f"id {delivery}", f"body {hashlib.sha256(body).hexdigest()}"]
        known = any(mark in self._seen for mark in marks)
        for mark in marks:
            self._seen[mark] = None
            self._seen.move_to_end(mark)
        while len(self._seen) > 2 * self._limit:
            self._seen.popitem(last=False)
        return not known


def affected_series(event: str, body: bytes, repository: str, matcher: SeriesMatcher) -> AffectedSeries:
    """The series that an event affects. Raises ValueError for a body that GitHub does not send."""
    if event not in EVENTS:
        return AffectedSeries(frozenset(), f"the event {event or '(none)'} changes no series")
    payload = json.loads(body)
    if not isinstance(payload, Mapping):
        raise ValueError("the payload is not an object")
    about = payload.get("repository")
    if not isinstance(about, Mapping) or str(about.get("full_name", "")).lower() != repository.lower():
        return AffectedSeries(frozenset(), "another repository")
    action = str(payload.get("action", ""))
    if event == "pull_request":
        # the payload does not say which issues the pull request closes
        ended = action in ("closed", "reopened")
        return AffectedSeries(None if ended else frozenset(), f"pull request {action}")
    return AffectedSeries(_series_of_issue(payload, matcher), f"issue {action}")


def _series_of_issue(payload: Mapping[str, Any], matcher: SeriesMatcher) -> frozenset[str]:
    """The series of the issue now, and before the event: a series that it left has to promote another issue."""
    issue = payload.get("issue")
    if not isinstance(issue, Mapping) or type(issue.get("number")) is not int:
        raise ValueError("the payload has no issue")
    labels = issue.get("labels") or []
    if not isinstance(labels, list):
        raise ValueError("the labels of the issue are not a list")
    forms = [dict(issue)]
    changes = payload.get("changes")
    title = changes.get("title") if isinstance(changes, Mapping) else None
    if isinstance(title, Mapping):
        forms.append({**issue, "title": title.get("from")})
    label = payload.get("label")
    if isinstance(label, Mapping) and payload.get("action") == "unlabeled":
        forms.append({**issue, "labels": [label, *labels]})
    if isinstance(label, Mapping) and payload.get("action") == "labeled":
        others = [other for other in labels if not has_label({"labels": [other]}, str(label.get("name")))]
        forms.append({**issue, "labels": others})
    return frozenset(found.series for form in forms if (found := matcher.match(form)) is not None)
