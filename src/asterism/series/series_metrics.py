"""Metrics of series, as a JSON file and in the text format of Prometheus.

A file is replaced atomically. A symbolic link is followed; anything but a regular file, such as a pipe or
``/dev/stdout``, is written to directly. Besides the counts of one run, the JSON has the totals of all runs that wrote
to the file (``total``). Two runs that write to one file at the same time are not added up: the later one wins.
"""

from __future__ import annotations

import json
import os
import stat
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from asterism.core.json_values import JsonObject

STREAMS = (1, 2)
"""The file descriptors of standard output and standard error."""

DESCRIPTIONS = {
    "promotion_events": "Issues that became active: by a sync, or from the queue.",
    "duplicate_prevented": "Issues that were queued because another issue of their series was active.",
    "retries": "Changes of a state that were retried.",
    "conflicts": "Changes of a state that another writer made first.",
    "unsure": "Changes whose reply was lost.",
    "contended": "Series that a run gave up because other writers won every try.",
    "assigned": "Assignments that were made and verified.",
    "unassigned": "Assignments that were removed.",
    "duplicates_found": "Issues that were assigned besides the active one of their series.",
    "duplicates_preventable": "Duplicates found while observing, which enforcing would have prevented.",
    "completed": "Issues that left because a merge or a commit closed them.",
    "abandoned": "Issues that left because they were closed otherwise.",
    "departed": "Issues that left because they were transferred, deleted or evicted.",
    "rebuilt": "Unreadable states that were rebuilt from the open issues.",
    "problems": "Series that could not be synced.",
    "api_requests": "Requests to GitHub.",
    "api_not_modified": "Requests that were answered with 304, which are free.",
    "rate_limited": "Responses with an exceeded rate limit.",
}


@dataclass
class SeriesMetrics:
    """``counts`` are those of this run; ``gauges`` have the state of each series; ``facts`` describe the run."""

    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(DESCRIPTIONS, 0))
    gauges: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    facts: JsonObject = field(default_factory=dict)
    _written: dict[str, int] = field(default_factory=dict)
    """The counts that the totals of the file include already."""
    _observed: dict[str, set[int]] = field(default_factory=dict)
    """By series, the duplicates of the last observation."""

    def load_observed(self, path: Path) -> None:
        """Load the duplicates that an earlier run wrote to the file, so that they are not counted again."""
        series = _load(path).get("series")
        for name, gauges in series.items() if isinstance(series, dict) else ():
            issues = gauges.get("duplicate_issues") if isinstance(gauges, dict) else None
            numbers = issues if isinstance(issues, list) else []
            self.newly_observed(name, [number for number in numbers if type(number) is int])

    def newly_observed(self, series: str, duplicates: Iterable[int]) -> int:
        """How many of the duplicates are new since the last call."""
        before = self._observed.get(series, set())
        self._observed[series] = set(duplicates)
        return len(self._observed[series] - before)

    def add(self, name: str, number: int = 1) -> None:
        self.counts[name] += number

    def to_json(self, total: Mapping[str, int]) -> JsonObject:
        return {**self.facts, **self.counts, "total": dict(total), "series": dict(self.gauges)}

    def write(self, path: Path | None, prometheus: Path | None = None) -> None:
        """Write the files that are named. Without a JSON file the totals are those of this run. Raises OSError."""
        total = dict(self.counts)
        if path is not None:
            before = _totals(path)
            total = {
                name: before.get(name, 0) + count - self._written.get(name, 0) for name, count in self.counts.items()
            }
            write_atomically(path, json.dumps(self.to_json(total), indent=2) + "\n")
            self._written = dict(self.counts)
        if prometheus is not None:
            write_atomically(prometheus, self.to_prometheus(total))

    def to_prometheus(self, total: Mapping[str, int]) -> str:
        lines = []
        for name, description in DESCRIPTIONS.items():
            full = f"asterism_series_{name}_total"
            lines += [f"# HELP {full} {description}", f"# TYPE {full} counter", f"{full} {total.get(name, 0)}"]
        for gauge, description in (
            ("active", "Whether an issue of the series is active."),
            ("queue_length", "Issues of the series that wait in the queue."),
            ("duplicates", "Issues of the series that are assigned besides the active one."),
            ("paused", "Whether the series is paused."),
        ):
            full = f"asterism_series_{gauge}"
            lines += [f"# HELP {full} {description}", f"# TYPE {full} gauge"]
            lines += [
                f'{full}{{series="{_label(name)}"}} {int(values[gauge])}'
                for name, values in sorted(self.gauges.items())
            ]
        return "\n".join(lines) + "\n"


def write_atomically(path: Path, text: str) -> None:
    """Replace a file atomically. Anything but a regular file is written to, because replacing it would take it from its
    readers. Raises OSError."""
    if not _is_replaceable(path):
        with _open_for_output(path) as stream:
            stream.write(text)
        return
    path = Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(name, 0o644)  # a temporary file is readable only for its owner, but metrics are read by others
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _is_replaceable(path: Path) -> bool:
    """Whether the path is a regular file, or does not exist. A file that standard output goes to is not replaceable,
    because its other content would be lost. Raises OSError."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return True
    return stat.S_ISREG(status.st_mode) and not any(_is_stream(status, stream) for stream in STREAMS)


def _open_for_output(path: Path) -> TextIO:
    """Open something that is not replaceable. For standard output its descriptor is used: opened a second time by name,
    later output would overwrite this."""
    status = os.stat(path)
    for stream in STREAMS:
        if _is_stream(status, stream):
            return os.fdopen(os.dup(stream), "w", encoding="utf-8")
    return path.open("a", encoding="utf-8")


def _is_stream(status: os.stat_result, stream: int) -> bool:
    try:
        return os.path.samestat(status, os.fstat(stream))
    except OSError:  # the stream is closed
        return False


def _totals(path: Path) -> dict[str, int]:
    """The totals in a file; none if it cannot be read."""
    total = _load(path).get("total")
    entries = total.items() if isinstance(total, dict) else ()
    return {str(name): count for name, count in entries if type(count) is int and count >= 0}


def _load(path: Path) -> JsonObject:
    """The content of the file; empty if it cannot be read."""
    try:
        data = json.loads(path.read_text("utf-8")) if _is_replaceable(path) else None
    except (OSError, ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def _label(name: str) -> str:
    return name.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
