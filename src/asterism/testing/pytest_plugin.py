"""A pytest plugin: the fixture ``run_plan`` and the marker ``plan_seeds``.

::

    pytest_plugins = ["asterism.testing.pytest_plugin"]     # in conftest.py

    @pytest.mark.plan_seeds(20)          # the test runs with each of the seeds 0 to 19
    def test_a_release_survives_a_broken_compiler(run_plan):
        result = run_plan(release(), takes={"build": 600}, fails={"build": 1})
        assert result.state == "completed"
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from asterism.orchestrator.result import Result

MARKER = (
    "plan_seeds(number): run the test with so many seeds: what happens at the same time in a plan changes its order"
)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    marker = metafunc.definition.get_closest_marker("plan_seeds")
    if marker is not None:
        metafunc.parametrize("run_plan", range(marker.args[0]), indirect=True, ids=lambda seed: f"seed{seed}")


@pytest.fixture
def run_plan(request: pytest.FixtureRequest) -> Callable[..., Result]:
    """``asterism.testing.run_plan``, with the seed of ``plan_seeds``."""
    from asterism.testing.pretended_device import run_plan

    return partial(run_plan, seed=getattr(request, "param", None))
