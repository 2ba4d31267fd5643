"""The command line of the simulator: checks the worlds of many seeds, or plays one seed and prints its log."""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tests.laboratory.simulator.checker import Violation
from tests.laboratory.simulator.simulation import COMMAND, WORLDS, simulate, world_named


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="number of worlds")
    parser.add_argument("--first", type=int, default=0, help="seed of the first world")
    parser.add_argument("--seed", type=int, help="play one world, and print its log")
    parser.add_argument("--seconds", type=float, help="stop after this many seconds")
    parser.add_argument("--world", default="fleet", help=f"kind of world: {', '.join(WORLDS)}, or module:Class")
    parser.add_argument("--arguments", default="{}", help="further arguments of the world, as a JSON object")
    options = parser.parse_args(words)
    try:
        world, arguments = world_named(options.world), json.loads(options.arguments)
        if not isinstance(arguments, dict):
            raise ValueError(f"--arguments must be a JSON object, not {options.arguments}")
    except ValueError as error:
        parser.error(str(error))
    play = partial(_broken, world, arguments)
    if options.seed is not None:
        return _one(options.seed, play)
    return _many(options.first, options.seeds, options.seconds, play)


Play = Callable[[int, list[Any]], str | None]
"""Plays a seed; see ``_broken``."""


def _broken(world: type[Any], arguments: dict[str, Any], seed: int, seen: list[Any]) -> str | None:
    """Return the promise that a world broke, with the command that replays it; None if it broke none. ``seen`` receives
    the world."""
    try:
        simulate(seed, seen, world, **arguments)
    except Violation as violation:
        return str(violation)
    except Exception as error:
        return "".join(traceback.format_exception(error)).rstrip()
    return None


def _one(seed: int, play: Play) -> int:
    worlds: list[Any] = []
    broken = play(seed, worlds)
    for world in worlds:
        print("\n".join(world.checker.log))
    print(f"\nseed {seed}: {broken or 'no promise was broken'}")
    return 1 if broken else 0


def _many(first: int, count: int, seconds: float | None, play: Play) -> int:
    began = time.monotonic()
    broken = played = 0
    for seed in range(first, first + count):
        violation = play(seed, [])
        if violation is not None:
            broken += 1
            print(f"seed {seed}: {violation}", flush=True)
        played += 1
        if seconds is not None and time.monotonic() - began > seconds:
            break
    took = time.monotonic() - began
    print(f"{played:,} worlds in {took:.0f} s, {broken} broke a promise", flush=True)
    return 1 if broken else 0


if __name__ == "__main__":
    logging.getLogger("asterism").addHandler(logging.NullHandler())  # failing devices log a lot
    logging.getLogger("asterism").propagate = False
    sys.exit(main())
