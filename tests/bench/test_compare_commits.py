"""Two checkouts are measured turn by turn by the same work, and the table has medians, ratios and noise."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.compare_commits import __main__ as command
from bench.compare_commits import workload
from bench.compare_commits.__main__ import Part, compare, measure, page
from bench.measure import Sample

ROOT = Path(__file__).parents[2]


def _samples(*seconds: float) -> list[Sample]:
    return [Sample(10, 10 * one, 5 * one) for one in seconds]


def test_medians_ratios_and_noise_are_those_of_the_rounds() -> None:
    part = Part("durable-wide", _samples(1.0, 2.0, 4.0), _samples(1.0, 3.0, 2.0))
    assert part.medians("wall") == (2.0, 2.0)
    assert part.medians("cpu") == (1.0, 1.0)
    assert part.ratios("wall") == [0.5, 1.0, 1.5]
    assert part.noise("wall") == 0.5
    text = page([part])
    assert "| durable wide | 10 | wall | 2.00 s | 2.00 s | 1.000 (0.500 to 1.500) | ±50.0% |" in text
    assert "| durable wide | 10 | cpu | 1.00 s | 1.00 s | 1.000 (0.500 to 1.500) | ±50.0% |" in text


def test_the_order_changes_from_round_to_round(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def measured(checkout: Path, part: str, scale: float) -> Sample:
        order.append(checkout.name)
        return Sample(1, {"old": 1.0, "new": 2.0}[checkout.name], 1.0)

    monkeypatch.setattr(command, "measure", measured)
    [part] = compare(Path("old"), Path("new"), ["durable-chain"], 3, 1.0)
    assert order == ["old", "new", "new", "old", "old", "new"]
    assert part.ratios("wall") == [2.0, 2.0, 2.0]


@pytest.mark.parametrize("name", workload.PARTS)
def test_every_part_does_its_work(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workload, "REPEATS", 1)
    monkeypatch.setattr(workload, "_tune_gc", lambda: None)  # this process belongs to the tests
    sample = workload.PARTS[name][1](0.02)
    assert sample.tasks >= 10
    assert sample.cpu_per_task > 0
    assert sample.wall_per_task > 0


@pytest.mark.long
def test_a_checkout_is_measured_with_its_own_environment(tmp_path: Path) -> None:
    if not (ROOT / ".venv" / "bin" / "python").exists():
        pytest.skip("there is no environment in this checkout: make test")
    assert measure(ROOT, "cost-chain", 0.01).tasks == 20
    (tmp_path / ".venv").symlink_to(ROOT / ".venv")
    with pytest.raises(RuntimeError, match="which is not in"):
        measure(tmp_path, "cost-chain", 0.01)
    with pytest.raises(RuntimeError, match="exits with 1"):
        measure(ROOT, "nothing", 1.0)
