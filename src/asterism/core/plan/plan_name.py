"""Names of plans that are made anew at every start: ``nightly-{date}-{time}`` becomes ``nightly-20261117-0300``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from itertools import count

from asterism.core.errors import PlanError

EACH_START = "{name}-{date}-{time}"
"""The pattern of a plan whose file has no id."""

EACH_TICK = "{name}-{date}T{time}{seconds}Z"
"""The pattern of the plans of a schedule, whose ticks are in UTC."""

PLACEHOLDERS = {"name": "", "date": "%Y%m%d", "time": "%H%M", "seconds": "%S"}
"""The placeholders, with their formats; ``name`` is the id of the plan file, or its name without the ending."""

_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")


def plan_name(pattern: str, name: str, at: datetime) -> str:
    """The name that a pattern gives to a start. Raises PlanError for an unknown placeholder."""

    def value(match: re.Match[str]) -> str:
        known = match[1]
        if known not in PLACEHOLDERS:
            names = ", ".join(f"{{{placeholder}}}" for placeholder in PLACEHOLDERS)
            raise PlanError(f"the name of a plan has no placeholder {match[0]!r}; the placeholders are {names}")
        return name if known == "name" else at.strftime(PLACEHOLDERS[known])

    return _PLACEHOLDER.sub(value, pattern)


def plan_names(pattern: str, name: str, at: datetime) -> Iterator[str]:
    """The names to try for a start, until one is free. A pattern without a time has one name: a second plan of that
    name is a mistake. Raises PlanError for an unknown placeholder."""
    first = plan_name(pattern, name, at)
    yield first
    if any(f"{{{placeholder}}}" in pattern for placeholder in PLACEHOLDERS if placeholder != "name"):
        yield from (f"{first}-{number}" for number in count(2))
