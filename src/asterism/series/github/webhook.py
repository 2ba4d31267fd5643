"""What GitHub's webhook delivers: whether it is GitHub's, whether it was here before, and which series it is about.

The signature covers the body and nothing else, so a delivery is remembered by its body as well as by its id: who sends
an old one again under a new id is not heard. What is remembered is bounded and lasts as long as the process; a replay
that gets through costs a sync that finds everything in step.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, NamedTuple

from asterism.series.github.discovery import Finder, has_label

REMEMBERED = 10_000
EVENTS = frozenset({"issues", "pull_request"})


class Concern(NamedTuple):
    """Which series to bring in step: those that are named, all if it is None, none if it is empty. ``why`` is for the
    log."""

    series: frozenset[str] | None
    why: str


def is_signed(secret: bytes, body: bytes, signature: str | None) -> bool:
    """Whether ``X-Hub-Signature-256`` is right for this body. To compare takes the same time wherever they differ."""
    expected = "sha256=" + hmac.new(secret, body, hashlib.sha256).hexdigest()
    return hmac.compare_digest(expected.encode(), (signature or "").encode("utf-8", "replace"))


class Memory:
    """What was delivered before."""

    def __init__(self, most: int = REMEMBERED) -> None:
        self._most = most
        self._seen: OrderedDict[str, None] = OrderedDict()

    def is_new(self, delivery: str, body: bytes) -> bool:
        """Also remembers it."""
        marks = [f"id {delivery}", f"body {hashlib.sha256(body).hexdigest()}"]
        known = any(mark in self._seen for mark in marks)
        for mark in marks:
            self._seen[mark] = None
            self._seen.move_to_end(mark)
        while len(self._seen) > 2 * self._most:
            self._seen.popitem(last=False)
        return not known


def concern_of(event: str, body: bytes, repository: str, finder: Finder) -> Concern:
    """What an event is about. Raises ValueError for a body that is not what GitHub sends."""
    if event not in EVENTS:
        return Concern(frozenset(), f"{event or 'no event'} changes no series")
    payload = json.loads(body)
    if not isinstance(payload, Mapping):
        raise ValueError("the payload is not an object")
    about = payload.get("repository")
    if not isinstance(about, Mapping) or str(about.get("full_name", "")).lower() != repository.lower():
        return Concern(frozenset(), "another repository")
    action = str(payload.get("action", ""))
    if event == "pull_request":
        # Which issues it closed is not in the payload, and GitHub closes them when it is merged.
        ended = action in ("closed", "reopened")
        return Concern(None if ended else frozenset(), f"pull request {action}")
    return Concern(_series_of(payload, finder), f"issue {action}")


def _series_of(payload: Mapping[str, Any], finder: Finder) -> frozenset[str]:
    """Those that the issue is in by what it says now, and by what it said before: one that it left has to promote."""
    issue = payload.get("issue")
    if not isinstance(issue, Mapping) or type(issue.get("number")) is not int:
        raise ValueError("there is no issue in the payload")
    labels = issue.get("labels") or []
    if not isinstance(labels, list):
        raise ValueError("the labels of the issue are no list")
    forms = [dict(issue)]
    changes = payload.get("changes")
    title = changes.get("title") if isinstance(changes, Mapping) else None
    if isinstance(title, Mapping):
        forms.append({**issue, "title": title.get("from")})
    label = payload.get("label")
    if isinstance(label, Mapping) and payload.get("action") == "unlabeled":
        forms.append({**issue, "labels": [label, *labels]})
    if isinstance(label, Mapping) and payload.get("action") == "labeled":
        others = [one for one in labels if not has_label({"labels": [one]}, str(label.get("name")))]
        forms.append({**issue, "labels": others})
    return frozenset(found.series for form in forms if (found := finder.find(form)) is not None)
