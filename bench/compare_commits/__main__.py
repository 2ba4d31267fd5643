"""``python -m bench.compare_commits --before PATH --after PATH`` compares the speed of two checkouts of Asterism.

Each has an environment of its own (``.venv``) in which its Asterism is installed. In every round each part is measured
on both, in new processes, and the order changes from round to round (before, after; after, before), so that a slow
moment of the machine hits both alike. The work is the same for both: that of this checkout (``workload.py``).

The table has the median time per task of each commit, and of the ratios after/before of all rounds the median, the
least and the greatest. ``noise`` is the median deviation of a round from the median of its own commit: a ratio that is
nearer to 1 than that says nothing. On a machine that has other work to do, only the processor time (``cpu``) counts.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bench.compare_commits.workload import PARTS
from bench.measure import Sample
from bench.page import table, time_text

ROOT = Path(__file__).parents[2]
ROUNDS = 7
PATIENCE = 600.0
CLOCKS = ("wall", "cpu")


@dataclass(frozen=True)
class Part:
    """The samples of one part, a pair for each round."""

    name: str
    before: Sequence[Sample]
    after: Sequence[Sample]

    def medians(self, clock: str) -> tuple[float, float]:
        """Seconds per task: before, after."""
        return median(_per_task(self.before, clock)), median(_per_task(self.after, clock))

    def ratios(self, clock: str) -> list[float]:
        """After/before of each round, the least first."""
        pairs = zip(_per_task(self.before, clock), _per_task(self.after, clock), strict=True)
        return sorted(after / before for before, after in pairs)

    def noise(self, clock: str) -> float:
        """The median deviation of a round from the median of its own commit, as a share of that."""
        deviations = []
        for times in (_per_task(self.before, clock), _per_task(self.after, clock)):
            middle = median(times)
            deviations += [abs(time / middle - 1) for time in times]
        return median(deviations)


def _per_task(samples: Sequence[Sample], clock: str) -> list[float]:
    return [getattr(sample, f"{clock}_per_task") for sample in samples]


def measure(checkout: Path, part: str, scale: float) -> Sample:
    """One part on one checkout, in a process of its own. Raises RuntimeError with what it complained about."""
    python = checkout / ".venv" / "bin" / "python"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [python, "-m", "bench.compare_commits.workload", part, str(scale)],
        cwd=ROOT,  # this file's own workload, for both
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    if done.returncode:
        raise RuntimeError(f"{part} in {checkout} exits with {done.returncode}:\n{done.stderr[-4000:]}")
    measured = json.loads(done.stdout.splitlines()[-1])
    if not Path(measured["package"]).is_relative_to(checkout.resolve()):
        raise RuntimeError(f"{python} imports Asterism from {measured['package']}, which is not in {checkout}")
    return Sample(measured["tasks"], measured["wall"], measured["cpu"])


def compare(before: Path, after: Path, parts: Sequence[str], rounds: int, scale: float) -> list[Part]:
    samples_of: dict[str, tuple[list[Sample], list[Sample]]] = {part: ([], []) for part in parts}
    for number in range(rounds):
        for part in parts:
            print(f"round {number + 1} of {rounds}: {part}", file=sys.stderr, flush=True)
            for which in (0, 1) if number % 2 == 0 else (1, 0):
                samples_of[part][which].append(measure((before, after)[which], part, scale))
    return [Part(part, *samples) for part, samples in samples_of.items()]


def page(parts: Sequence[Part]) -> str:
    rows = []
    for part in parts:
        for clock in CLOCKS:
            before, after = part.medians(clock)
            ratios = part.ratios(clock)
            spread = f"{median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})"
            times = (time_text(before), time_text(after))
            what = (PARTS[part.name][0], f"{part.before[0].tasks:,}", clock)
            rows.append((*what, *times, spread, f"±{part.noise(clock):.1%}"))
    return table(("part", "tasks", "clock", "before, per task", "after", "after / before", "noise"), rows)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.compare_commits",
        description="Compare the speed of two checkouts of Asterism, turn by turn. Each needs its own .venv.",
    )
    parser.add_argument("--before", type=Path, required=True, metavar="PATH", help="the checkout of the old commit")
    parser.add_argument("--after", type=Path, required=True, metavar="PATH", help="the checkout of the new commit")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"rounds of each part ({ROUNDS})")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the size of all work (1)")
    parser.add_argument("--part", action="append", choices=PARTS, help="only this part; may be repeated")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample to this file")
    options = parser.parse_args(arguments)
    parts = compare(options.before, options.after, options.part or list(PARTS), options.rounds, options.scale)
    print(page(parts))
    if options.json is not None:
        samples = {part.name: {"before": _data(part.before), "after": _data(part.after)} for part in parts}
        options.json.write_text(json.dumps(samples, indent=1) + "\n", encoding="utf-8")
    return 0


def _data(samples: Sequence[Sample]) -> list[dict[str, float]]:
    return [{"tasks": sample.tasks, "wall": sample.wall, "cpu": sample.cpu} for sample in samples]


if __name__ == "__main__":
    sys.exit(main())
