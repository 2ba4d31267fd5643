"""Branches of a plan: finds the tasks that an if/else above them always skips.

A task never starts if it needs another to succeed and to fail, or a condition and its opposite (``result.ok`` and
``!result.ok``), itself or through the tasks above it. That is almost always a join after an if/else, which should start
after the branch that runs. Only a name is known to be the opposite of its negation, so every report is certain.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

Terms = tuple[str, str | None]
"""``on`` and ``when`` of a dependency."""

Edges = Mapping[str, Mapping[str, Terms]]
"""The dependencies of each task, by source."""


_NEGATED_NAME = re.compile(r"!([A-Za-z_][\w.]*)")


class _Need(NamedTuple):
    """What has to be true of a task: that it succeeds (``condition`` is None), or that a condition holds."""

    source: str
    condition: str | None
    holds: bool

    def opposite(self) -> _Need:
        return self._replace(holds=not self.holds)

    def __str__(self) -> str:
        if self.condition is None:
            return f"{self.source!r} to {'succeed' if self.holds else 'fail'}"
        return f"{('' if self.holds else '!') + self.condition!r} to hold for {self.source!r}"


Needs = frozenset[_Need]


def always_skipped(order: Sequence[str], edges: Edges, any_joins: frozenset[str]) -> Iterator[tuple[str, str]]:
    """The tasks that can never start, each with the reason and the remedy. ``order`` has sources first; ``any_joins``
    are the tasks with ``join: any``."""
    direct = {task: {source: _direct_needs(source, *terms) for source, terms in edges[task].items()} for task in order}
    named = {need for sources in direct.values() for needs in sources.values() for need in needs}
    decisive = frozenset(need for need in named if need.opposite() in named)
    if not decisive:
        return
    needs: dict[str, Needs] = {}
    skipped: set[str] = set()
    for task in order:
        paths = {
            source: Needs() if edges[task][source][0] == "always" else needs[source] | (own & decisive)
            for source, own in direct[task].items()
            if source not in skipped or edges[task][source][0] == "always"
        }
        if task in any_joins:
            needs[task] = Needs.intersection(*paths.values()) if paths else Needs()
            continue
        needs[task] = Needs().union(*paths.values())
        if len(paths) < len(edges[task]):
            skipped.add(task)  # the task above it is reported
        elif (
            need := next((need for need in needs[task] if need.holds and need.opposite() in needs[task]), None)
        ) is not None:
            skipped.add(task)
            yield task, _explanation(task, paths, need)


def _direct_needs(source: str, on: str, when: str | None) -> Needs:
    needs = {_Need(source, None, on == "success")} if on in ("success", "failure") else set()
    if when is not None:
        negated = _NEGATED_NAME.fullmatch(when)
        needs.add(_Need(source, negated[1] if negated else when, negated is None))
    return Needs(needs)


def _explanation(task: str, paths: Mapping[str, Needs], need: _Need) -> str:
    texts = []
    for part in (need, need.opposite()):
        via = next(source for source, needs in paths.items() if part in needs)
        texts.append(f"{(task if via == part.source else via)!r} needs {part}")
    return (
        f"is always skipped: {texts[0]}, {texts[1]}, and both never hold together; "
        "to start it after the branch that runs, add join: any"
    )


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
