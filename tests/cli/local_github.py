"""The local GitHub of tests/series/github, for the tests of the commands in front of it."""

from tests.series.github import github_fixtures as scenes
from tests.series.github import sync_costs as cycles
from tests.series.github.github_server import GitHubServer, Limit
from tests.series.github.github_world import Refusal, World

__all__ = ["GitHubServer", "Limit", "Refusal", "World", "cycles", "scenes"]
