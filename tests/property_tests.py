"""A pytest plugin for the tests with Hypothesis: how many examples they try, and which.

=========  ============================  ===========================================================
profile    examples                      used by
=========  ============================  ===========================================================
quick      an eighth, the same each run  ``make test``: no test passes or fails by luck
random     all, new ones each run        ``make test-long``, which prints their seed
=========  ============================  ===========================================================

``pytest --hypothesis-profile=random --hypothesis-seed=N`` tries the examples of seed N again.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings, strategies
from hypothesis.internal.conjecture import providers

_FEWEST = 10

# How fast an example is made and tried depends on the machine, not on what is tested.
settings.register_profile("random", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", settings.get_profile("random"), derandomize=True)
settings.load_profile("quick")

# By default, Hypothesis mixes in constants from all modules loaded so far, so that examples depend on the order of the
# tests.
assert hasattr(providers, "_get_local_constants")
providers._get_local_constants = lambda: providers._local_constants


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With the profile ``quick``, let each test try an eighth of its examples."""
    if settings.get_current_profile_name() != "quick":
        return
    tests = {item.obj for item in items if isinstance(item, pytest.Function) and is_hypothesis_test(item.obj)}
    machines = {test.__self__.__class__ for test in tests if hasattr(test, "_hypothesis_state_machine_class")}
    for machine in machines:
        machine.settings = _fewer(machine.settings)
    for test in tests:
        if not hasattr(test, "_hypothesis_state_machine_class"):
            function: Any = getattr(test, "__func__", test)
            function._hypothesis_internal_use_settings = _fewer(function._hypothesis_internal_use_settings)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Look up which characters UTF-8 has before the workers are forked: in a fresh checkout that takes seconds of
    processor time, in each of them."""
    if any(isinstance(item, pytest.Function) and is_hypothesis_test(item.obj) for item in session.items):
        strategies.characters(codec="utf-8").validate()


def _fewer(options: settings) -> settings:
    return settings(options, max_examples=min(options.max_examples, max(_FEWEST, options.max_examples // 8)))
