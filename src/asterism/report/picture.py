"""What is drawn: the tasks and dependencies of a constellation at one moment, as plain data."""

from __future__ import annotations

from dataclasses import dataclass

STATUSES = ("pending", "waiting", "running", "completed", "failed", "cancelled", "removed")


@dataclass(frozen=True, slots=True)
class Star:
    """One task. `note` is a short remark, such as the device or the reason of a failure."""

    id: str
    label: str
    status: str = "pending"
    note: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """One dependency. It is conditional when `when` holds the text of a condition, whatever `on` says."""

    source: str
    target: str
    on: str = "success"
    when: str | None = None

    @property
    def kind(self) -> str:
        """How the line is drawn: `success`, `failure`, `completion` or `condition`."""
        if self.when is not None:
            return "condition"
        return self.on if self.on in ("failure", "completion") else "success"

    @property
    def words(self) -> str:
        """What the line asks for, in words; empty for the usual `success`."""
        return {
            "condition": f"if {self.when}",
            "failure": "on failure",
            "completion": "on completion",
        }.get(self.kind, "")


@dataclass(frozen=True, slots=True)
class Picture:
    """A constellation to draw. Ids are unique, every line joins two stars, and the lines form no cycle.

    The drawing functions raise `ValueError` for a picture that breaks this.
    """

    title: str
    stars: tuple[Star, ...]
    lines: tuple[Line, ...]
