"""The benchmark of pipelines: both count all rows, and a wrong result gives no figure."""

from __future__ import annotations

from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest

from bench import __main__ as command
from bench.pipelines import beside_prefect
from bench.pipelines.beside_prefect import Figures, Sizes


def test_the_pipeline_of_asterism_counts_its_rows(tmp_path: Path) -> None:
    assert beside_prefect.timed_command("Asterism", 2, str(tmp_path)) > 0.0


@pytest.mark.long
def test_a_pipeline_that_fails_gives_no_figure(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="Asterism: "):
        beside_prefect.timed_command("Asterism", -1, str(tmp_path))


@pytest.mark.long
@pytest.mark.skipif(find_spec("prefect") is None, reason="Prefect is in the environment of the benchmarks only")
def test_both_are_measured() -> None:
    sizes = Sizes(few=1, many=3, rounds=1)
    figures = beside_prefect.measure(sizes)
    assert figures["Prefect"].first > figures["Asterism"].first
    assert version("prefect") in beside_prefect.page(figures, sizes)


def test_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside_prefect, "version", lambda name: "3.8")
    figures = {"Asterism": Figures(20, 1.0, 0.02), "Prefect": Figures(40, 9.0, 0.05)}
    text = beside_prefect.page(figures)
    assert "| lines, without blank ones and comments | 20 | 40 | 2.0 |" in text
    assert "| from the command to the result of 3 elements | 1.0 s | 9.0 s | 9.0 |" in text
    assert "| each further element, of 53 | 20 ms | 50 ms | 2.5 |" in text
    figures["Prefect"] = Figures(40, 9.0, None)
    assert "is lost in the variation" in beside_prefect.page(figures)
    assert command.PAGES["pipelines"][2] == "benchmarks-pipelines.md"


def test_what_varies_more_than_it_grows_gives_no_cost() -> None:
    sizes = Sizes(few=3, many=13)
    steady = {("Asterism", 3): [1.0, 1.5, 2.0], ("Asterism", 13): [4.0, 2.5, 3.0]}
    assert beside_prefect._figures("Asterism", steady, sizes).task == 0.15
    noisy = {("Asterism", 3): [1.0, 1.5, 2.6], ("Asterism", 13): [4.0, 2.5, 3.0]}
    assert beside_prefect._figures("Asterism", noisy, sizes).task is None


def test_lines_are_counted_without_comments_and_blank_ones(tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").write_text("# a comment\n\ntasks:\n  one: {shell: x}\n")
    assert beside_prefect.lines_of(tmp_path / "plan.yaml") == 2
