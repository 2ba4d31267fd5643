"""What a service of series counts, as a file of JSON and as the text that Prometheus reads.

Each file is written whole or not at all; a link is followed, and what is no file, such as a pipe or ``/dev/stdout``, is
written to as it is. Beside the counts of one run stand those of all runs that wrote to the same file (``total``). Two
runs that write to one file at the same time are not added up: the later one wins.
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

STREAMS = (1, 2)
"""Our own output, and where errors go."""

MEANINGS = {
    "promotion_events": "Issues that a sync made active, also the first of a series, or that came from the queue.",
    "duplicate_prevented": "Issues that were queued, since another of their series was active.",
    "retries": "Changes of a state that were tried again.",
    "conflicts": "Changes of a state that somebody else forestalled.",
    "unsure": "Changes whose reply was lost.",
    "contended": "Series that were given up for this run, since others were first each time.",
    "assigned": "Assignments that were made and read back.",
    "unassigned": "Assignments that were taken back.",
    "duplicates_found": "Issues that were assigned beside the active one of their series.",
    "duplicates_preventable": "The same, found while only observing: to enforce would have prevented it.",
    "completed": "Issues that left, closed by a merge or a commit.",
    "abandoned": "Issues that left, closed otherwise.",
    "departed": "Issues that left, transferred, deleted or renamed.",
    "rebuilt": "States that could not be read, and were made anew from the open issues.",
    "problems": "Series that could not be brought in step.",
    "api_requests": "Requests to GitHub.",
    "api_not_modified": "Requests that were answered from what was known, and cost nothing.",
    "rate_limited": "Times that GitHub asked to wait.",
}


@dataclass
class Metrics:
    """``counts`` are those of this run; ``gauges`` say, for each series, how it stands."""

    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(MEANINGS, 0))
    gauges: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    _written: dict[str, int] = field(default_factory=dict)
    """What of the counts is in the totals of the file already."""
    _observed: dict[str, set[int]] = field(default_factory=dict)
    """By series, what was found assigned beside the active issue when it was last observed."""

    def recall(self, path: Path) -> None:
        """Know what the run before has found, which wrote to this file: it is not to be counted again."""
        series = _whole(path).get("series")
        for name, gauges in series.items() if isinstance(series, dict) else ():
            found = gauges.get("duplicate_issues") if isinstance(gauges, dict) else None
            numbers = found if isinstance(found, list) else []
            self.newly_observed(name, [number for number in numbers if type(number) is int])

    def newly_observed(self, series: str, duplicates: Iterable[int]) -> int:
        """How many of these were not there when this was last asked."""
        before = self._observed.get(series, set())
        self._observed[series] = set(duplicates)
        return len(self._observed[series] - before)

    def add(self, name: str, number: int = 1) -> None:
        self.counts[name] += number

    def to_json(self, total: Mapping[str, int]) -> dict[str, Any]:
        return {**self.facts, **self.counts, "total": dict(total), "series": dict(self.gauges)}

    def write(self, path: Path | None, prometheus: Path | None = None) -> None:
        """Where a file is named. Without one for JSON the totals are those of this run. Raises OSError."""
        total = dict(self.counts)
        if path is not None:
            before = _totals(path)
            total = {
                name: before.get(name, 0) + count - self._written.get(name, 0) for name, count in self.counts.items()
            }
            write_whole(path, json.dumps(self.to_json(total), indent=2) + "\n")
            self._written = dict(self.counts)
        if prometheus is not None:
            write_whole(prometheus, self.to_prometheus(total))

    def to_prometheus(self, total: Mapping[str, int]) -> str:
        lines = []
        for name, meaning in MEANINGS.items():
            full = f"asterism_series_{name}_total"
            lines += [f"# HELP {full} {meaning}", f"# TYPE {full} counter", f"{full} {total.get(name, 0)}"]
        for gauge, meaning in (
            ("active", "Whether an issue of the series is active."),
            ("queue_length", "Issues of the series that wait."),
            ("duplicates", "Issues of the series that are assigned beside the active one."),
            ("paused", "Whether the series is paused."),
        ):
            full = f"asterism_series_{gauge}"
            lines += [f"# HELP {full} {meaning}", f"# TYPE {full} gauge"]
            lines += [
                f'{full}{{series="{_label(name)}"}} {int(one[gauge])}' for name, one in sorted(self.gauges.items())
            ]
        return "\n".join(lines) + "\n"


def write_whole(path: Path, text: str) -> None:
    """Nobody ever reads half of it. What is no file is only written to: to put a file in its place would take it from
    everybody. Raises OSError."""
    if not _is_file(path):
        with _opened(path) as stream:
            stream.write(text)
        return
    path = Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(name, 0o644)  # others read metrics: a temporary file is for its owner only
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _is_file(path: Path) -> bool:
    """Whether it is one, or will be when it is there. What standard output goes to is none, also if that is a file: to
    replace it would lose what else is written there. Raises OSError."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return True
    return stat.S_ISREG(found.st_mode) and not any(_goes_to(found, stream) for stream in STREAMS)


def _opened(path: Path) -> TextIO:
    """What is no file, to write to. Our own output goes on where it is: opened by its name a second time, what we write
    next would be written over this."""
    found = os.stat(path)
    for stream in STREAMS:
        if _goes_to(found, stream):
            return os.fdopen(os.dup(stream), "w", encoding="utf-8")
    return path.open("a", encoding="utf-8")


def _goes_to(found: os.stat_result, stream: int) -> bool:
    try:
        return os.path.samestat(found, os.fstat(stream))
    except OSError:  # it is closed
        return False


def _totals(path: Path) -> dict[str, int]:
    """Of the file that is there; nothing of one that cannot be read, and of what is none."""
    total = _whole(path).get("total")
    found = total.items() if isinstance(total, dict) else ()
    return {str(name): count for name, count in found if type(count) is int and count >= 0}


def _whole(path: Path) -> dict[str, Any]:
    """What the file says; nothing if it cannot be read, or is none."""
    try:
        data = json.loads(path.read_text("utf-8")) if _is_file(path) else None
    except (OSError, ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def _label(name: str) -> str:
    return name.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
