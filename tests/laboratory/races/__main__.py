"""``python -m tests.laboratory.races --seeds 10000`` hunts; ``--seed 17`` replays one."""

from __future__ import annotations

import argparse
import logging
import sys
import time

from tests.laboratory.races.holds import hold
from tests.laboratory.races.scenario import race
from tests.laboratory.races.wild import wild


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.laboratory.races", description=__doc__)
    parser.add_argument("--seeds", type=int, default=10_000, help="how many seeds to try")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="replay this one seed")
    chosen = parser.parse_args()
    seeds = range(chosen.first, chosen.first + chosen.seeds) if chosen.seed is None else [chosen.seed]
    logging.disable(logging.WARNING)  # broken editors are part of the game
    began, bad = time.monotonic(), 0
    for seed in seeds:
        problems = race(seed) + wild(seed) + hold(seed)
        if problems:
            bad += 1
            print(f"seed {seed}: {'; '.join(problems)}")
            print(f"  replay: python -m tests.laboratory.races --seed {seed}")
    print(f"{len(seeds)} seeds in {time.monotonic() - began:.1f} s, {bad} bad")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
