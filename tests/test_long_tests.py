"""The plugin for long tests: which of them run without the marker ``long``, and with which seeds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.long_tests import is_in_part, slow_first

ROOT = Path(__file__).resolve().parents[1]

TESTS = """
import pytest

@pytest.mark.long
def test_long():
    pass

@pytest.mark.hunt(few=2, many=13)
def test_hunt(seeds):
    assert seeds in (range(2), range(2, 13), range(2, 13, 2))
"""


@pytest.mark.parametrize(
    ("marks", "every", "selected"),
    [
        ("not long", "1", ["test_hunt[2 seeds]"]),
        pytest.param("long", "1", ["test_long", "test_hunt[11 more seeds]"], marks=pytest.mark.long),
        pytest.param("long", "2", ["test_long", "test_hunt[6 more seeds]"], marks=pytest.mark.long),
    ],
)
def test_a_hunt_goes_on_in_make_test_long_where_make_test_ends(
    marks: str, every: str, selected: list[str], tmp_path: Path
) -> None:
    (tmp_path / "test_some.py").write_text(TESTS, encoding="utf-8")
    if marks == "long":
        (tmp_path / "test_without.py").write_text("assert False, 'a file without long tests is imported'")
    words = ["-q", "-rA", "-p", "no:cacheprovider", "-p", "tests.long_tests", "-c", "/dev/null", "-m", marks]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words, "--rootdir", str(tmp_path), str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "EVERY_SEED": every, "LONG_PART": "1/1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    passed = [line.partition("::")[2] for line in done.stdout.splitlines() if line.startswith("PASSED")]
    assert passed == selected, done.stdout


class Named:
    """A test; a slow one has a capital letter."""

    def __init__(self, name: str) -> None:
        self.name = name

    def get_closest_marker(self, name: str) -> str | None:
        return name if name == "slow" and self.name.isupper() else None


@pytest.mark.parametrize(("collected", "ordered"), [("abCdEfgHij", "CEHabdfgij"), ("ABC", "ABC"), ("", "")])
def test_slow_tests_are_the_first(collected: str, ordered: str) -> None:
    items: list[Any] = [Named(name) for name in collected]
    assert "".join(item.name for item in slow_first(items)) == ordered


def test_every_test_is_in_one_part() -> None:
    names = [f"tests/test_some.py::test_{number}" for number in range(100)]
    for name in names:
        assert [is_in_part(name, f"{part}/4") for part in range(1, 5)].count(True) == 1
    assert 10 < sum(is_in_part(name, "1/4") for name in names) < 40
