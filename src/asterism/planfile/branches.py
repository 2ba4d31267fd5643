"""Branches of a plan: finds the tasks that an if/else above them always skips.

Two conditions on one task exclude each other if it would have to succeed and to fail, or if their expressions can never
hold both: ``result.ok`` and ``!result.ok``, ``result.kind == "a"`` and ``result.kind == "b"``, ``result > 5`` and
``result <= 5``. A task that needs both, through the tasks above it, never starts. That is almost always a join after an
if/else, which should start after the branch that runs.

Conditions that this module does not understand exclude nothing, so every report is certain.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

from asterism.core.lazy_dataclass import dataclass

Terms = tuple[str, str | None]
"""``on`` and ``when`` of a dependency."""

Edges = Mapping[str, Mapping[str, Terms]]
"""The dependencies of each task, by source."""

MAX_CONDITIONS = 2000
"""A plan with more conditions is not examined: the cost grows with tasks times conditions."""


def always_skipped(order: Sequence[str], edges: Edges, any_joins: frozenset[str]) -> Iterator[tuple[str, str]]:
    """The tasks that can never start, each with the reason and the remedy. ``order`` has sources first; ``any_joins``
    are the tasks with ``join: any``."""
    conditions = _Conditions()
    for targets in edges.values():
        for source, condition in targets.items():
            conditions.add(source, condition)
    if not conditions.exclude_each_other():
        return
    needs: dict[str, int] = {}  # the conditions that have to hold for a task to start, as bits
    skipped: set[str] = set()
    for task in order:
        paths = {
            source: 0 if condition[0] == "always" else needs[source] | conditions.bit(source, condition)
            for source, condition in edges[task].items()
            if source not in skipped or condition[0] == "always"
        }
        if task in any_joins:
            needs[task] = _common(paths.values())
            continue
        needs[task] = _all(paths.values())
        if len(paths) < len(edges[task]):
            skipped.add(task)  # the task above it is reported
        elif len(paths) > 1 and (contradiction := conditions.contradiction(needs[task])) is not None:
            skipped.add(task)
            yield task, _explanation(task, paths, conditions, contradiction)


_NO_CONDITION = (("completion", None), ("teardown", None))


def skipped_cleanups(edges: Edges) -> Iterator[tuple[str, str]]:
    """The tasks that are to run however others end, but not if these never start, each with the remedy."""
    for task, sources in edges.items():
        if any(on not in ("completion", "always") for on, _ in sources.values()):
            continue  # it is to be skipped if that does not hold
        for source, condition in sources.items():
            above = next(
                (parent for parent, (on, _) in edges[source].items() if on not in ("always", "teardown")), None
            )
            if condition == ("completion", None) and above is not None:
                yield (
                    task,
                    f"runs when {source!r} has completed or failed, but not if {source!r} never starts, for example "
                    f"because {above!r} does not succeed; to run it in any case, write after: {{{source}: always}}",
                )
                break


def _explanation(task: str, paths: Mapping[str, int], conditions: _Conditions, numbers: Sequence[int]) -> str:
    names, texts = list(paths), []
    for number in sorted(numbers, key=lambda number: [bits >> number & 1 for bits in paths.values()], reverse=True):
        via = next(name for name in names if paths[name] >> number & 1)
        source, condition = conditions.known[number]
        texts.append(f"{(task if via == source else via)!r} needs {_description(source, condition)}")
    return (
        f"is always skipped: {texts[0]}, {texts[1]}, and both never hold together; "
        "to start it after the branch that runs, add join: any"
    )


def _description(source: str, condition: Terms) -> str:
    on, when = condition
    if when is not None:
        return f"{when!r} to hold for {source!r}"
    return f"{source!r} to {'fail' if on == 'failure' else 'succeed'}"


def _all(paths: Any) -> int:
    bits = 0
    for path in paths:
        bits |= path
    return bits


def _common(paths: Any) -> int:
    bits = -1
    for path in paths:
        bits &= path
    return max(bits, 0)  # -1 if there is no path


@dataclass(slots=True)
class _Conditions:
    """The conditions of a plan, each with a number, and which of them exclude each other."""

    known: list[tuple[str, Terms]] = field(default_factory=list)
    numbers: dict[tuple[str, Terms], int] = field(default_factory=dict)
    excluded: dict[int, int] = field(default_factory=dict)  # number -> bits

    def add(self, source: str, condition: Terms) -> None:
        if (source, condition) not in self.numbers and condition not in _NO_CONDITION and condition[0] != "always":
            self.numbers[source, condition] = len(self.known)
            self.known.append((source, condition))

    def exclude_each_other(self) -> bool:
        """Find the conditions that exclude each other, and forget all others. Returns whether there are any."""
        by_source: dict[str, list[Terms]] = {}
        for source, condition in self.known:
            by_source.setdefault(source, []).append(condition)
        pairs = [
            ((source, a), (source, b))
            for source, conditions in by_source.items()
            if 1 < len(conditions) <= MAX_CONDITIONS
            for index, a in enumerate(conditions)
            for b in conditions[index + 1 :]
            if _exclude(a, b)
        ]
        self.known = list(dict.fromkeys(known for pair in pairs for known in pair))
        self.numbers = {known: number for number, known in enumerate(self.known)}
        for a, b in pairs:
            for known, other in ((a, b), (b, a)):
                number = self.numbers[known]
                self.excluded[number] = self.excluded.get(number, 0) | 1 << self.numbers[other]
        return 0 < len(self.known) <= MAX_CONDITIONS

    def bit(self, source: str, condition: Terms) -> int:
        number = self.numbers.get((source, condition))
        return 0 if number is None else 1 << number

    def contradiction(self, bits: int) -> tuple[int, int] | None:
        """Two of these conditions that exclude each other."""
        rest = bits
        while rest:
            number = (rest & -rest).bit_length() - 1
            rest &= rest - 1
            if clash := self.excluded[number] & bits:
                return number, (clash & -clash).bit_length() - 1
        return None


def _exclude(a: Terms, b: Terms) -> bool:
    if {a[0], b[0]} == {"success", "failure"}:
        return True
    if a[1] is None or b[1] is None:
        return False
    from asterism.planfile.exclusive_conditions import never_both  # most plans need no parser

    return never_both(a[1], b[1])
