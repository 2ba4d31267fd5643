"""How many requests one ``sync`` of a repository on GitHub takes, by kind: as the local GitHub of the tests counts,
which answers 304 to what has not changed, as GitHub does."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.cli.local_github import GitHubServer, cycles, scenes

ASSIGNED = [1, 2]
"""The issues that are assigned in the end: the first, which is merged, and the second, but not the third, which was
assigned by hand."""


@dataclass(frozen=True)
class Calls:
    """``requests`` of one sync, and how many of them ``counted`` against the limit; the same with ``--cache``."""

    kind: str
    requests: int
    counted: int
    cached_requests: int
    cached_counted: int


def measure() -> list[Calls]:
    with tempfile.TemporaryDirectory() as folder:
        plain, cached = _figures(None), _figures(Path(folder) / "cache.json")
    return [Calls(kind, *plain[kind], *cached[kind]) for kind in plain]


def _figures(cache: Path | None) -> dict[str, tuple[int, int]]:
    """Raises AssertionError unless the syncs did their work: the right issues are assigned."""
    with GitHubServer(scenes.world_of()) as server:
        figures: dict[str, tuple[int, int]] = cycles.figures(server, cache)
        assigned = server.call(lambda world: [number for number in world.issues if world.issue(number).assignees])
    assert assigned == ASSIGNED, f"the issues {assigned} are assigned, not {ASSIGNED}"
    return figures
