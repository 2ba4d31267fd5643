"""How many requests one ``sync`` of a repository on GitHub takes, by kind: as the local GitHub of the tests counts,
which answers 304 to what has not changed, as GitHub does."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.cli.local_github import GitHubServer, cycles, scenes


@dataclass(frozen=True)
class Calls:
    """``requests`` of one sync, and how many of them ``counted`` against the limit; the same with ``--cache``."""

    kind: str
    requests: int
    counted: int
    cached_requests: int
    cached_counted: int


def measure() -> list[Calls]:
    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        for cache in (None, Path(folder) / "cache.json"):
            with GitHubServer(scenes.world_of()) as server:
                figures[cache is not None] = cycles.figures(server, cache)
    return [Calls(kind, *figures[False][kind], *figures[True][kind]) for kind in figures[False]]
