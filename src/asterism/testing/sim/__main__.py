"""Many worlds, or one with its log."""

from __future__ import annotations

import argparse
import logging
import sys
import time

from asterism.testing.sim.witness import Violation
from asterism.testing.sim.world import World, simulate


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m asterism.testing.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many worlds")
    parser.add_argument("--first", type=int, default=0, help="the seed of the first one")
    parser.add_argument("--seed", type=int, help="one world, with its log")
    parser.add_argument("--seconds", type=float, help="stop after so much time, whatever is left")
    given = parser.parse_args()
    logging.getLogger("asterism").addHandler(logging.NullHandler())  # devices in trouble have much to say
    logging.getLogger("asterism").propagate = False
    if given.seed is not None:
        return _one(given.seed)
    return _many(given.first, given.seeds, given.seconds)


def _one(seed: int) -> int:
    worlds: list[World] = []
    try:
        simulate(seed, seen=worlds)
    except Violation as violation:
        print("\n".join(worlds[0].witness.log))
        print(f"\nseed {seed}: {violation}")
        return 1
    print("\n".join(worlds[0].witness.log))
    print(f"\nseed {seed}: every promise was kept")
    return 0


def _many(first: int, count: int, seconds: float | None) -> int:
    began = time.monotonic()
    broken = played = 0
    for seed in range(first, first + count):
        try:
            simulate(seed)
        except Violation as violation:
            broken += 1
            print(f"seed {seed}: {violation}", flush=True)
        played += 1
        if seconds is not None and time.monotonic() - began > seconds:
            break
    took = time.monotonic() - began
    print(f"{played:,} worlds in {took:.0f} s, {broken} broke a promise", flush=True)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
