"""The size of the package may only fall: lines of code, without blanks, comments and docstrings, and modules."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from bench.size import sizes

CEILING = {"modules": 435, "lines of code": 76_911}
"""Lower a figure in the commit that lowers the size. Do not raise one: what is new takes the place of something."""

SLACK = 0.01
"""By how much a ceiling may be above the size."""


def size_problems(size: dict[str, int], ceiling: dict[str, int]) -> list[str]:
    problems = []
    for name, most in ceiling.items():
        now = size[name]
        if now > most:
            problems.append(
                f"src/asterism has {now:,} {name}, and the ceiling is {most:,}: remove as much as you add, such as a "
                "second answer to a question that the package answers already"
            )
        elif most > now * (1 + SLACK):
            problems.append(
                f"src/asterism has {now:,} {name}, and the ceiling is {most:,}: set it to {now} in tests/test_size.py"
            )
    return problems


def total(counts: tuple[Counter[str], Counter[str]]) -> dict[str, int]:
    modules, lines = counts
    return {"modules": modules.total(), "lines of code": lines.total()}


def test_the_package_does_not_grow() -> None:
    assert size_problems(total(sizes(Path(__file__).parents[1] / "src" / "asterism")), CEILING) == []


@pytest.mark.parametrize(("ceiling", "said"), [(999, "remove as much as you add"), (1011, "set it to 1000 in")])
def test_a_size_that_grows_and_a_ceiling_that_is_left_behind_are_noticed(ceiling: int, said: str) -> None:
    [problem] = size_problems({"modules": 1000}, {"modules": ceiling})
    assert said in problem
    assert size_problems({"modules": 1000}, {"modules": 1000}) == []


def test_comments_and_docstrings_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "thing.py").write_text('"""A thing."""\n\n# why\nx = [\n    1,\n]\n', "utf-8")
    assert total(sizes(tmp_path)) == {"modules": 1, "lines of code": 3}
