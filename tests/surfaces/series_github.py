"""The local GitHub of tests/series, for the tests of what stands in front of it."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

HERE = str(Path(__file__).parents[1] / "series")
if HERE not in sys.path:
    sys.path.append(HERE)

scenes = import_module("github_scenes")
GitHubServer = import_module("github_server").GitHubServer
World = import_module("github_world").World
Refusal = import_module("github_world").Refusal
Limit = import_module("github_server").Limit
cycles = import_module("github_cycles")
