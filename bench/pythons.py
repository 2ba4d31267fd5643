"""Tests and figures on several Pythons, side by side: ``python -m bench pythons``.

Each version of WANTED is looked for on PATH and under pyenv; BENCH_PYTHONS names further interpreters (paths, separated
as in PATH). Each gets an environment of its own, runs the tests of FOLDERS, and then takes its turns with the figures.
``python -m bench.pythons`` prints the figures of the interpreter that runs it.
"""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import cost, memory
from bench.durable import speed
from bench.page import table, time_text
from bench.peers.surroundings import scratch

ROOT = Path(__file__).parents[1]
WANTED = ("3.11", "3.13", "3.14", "3.14t")
"""A t is the free-threaded build."""

FOLDERS = ("core", "orchestrator", "durable", "store")
ROUNDS = 2
DURABLE_TASKS = 2000
LIMIT = 7200.0
"""Seconds for all: the tests run once on each."""

TESTS_LIMIT = 1500.0
FIGURES_LIMIT = 600.0
HEAD = """# Benchmarks on several Pythons

Written by `make bench ARGS=pythons`; every figure on this page was measured in one run, side by side. Times vary from
machine to machine and from hour to hour: read the ratios.
"""

_ASK = """
import sqlite3, ssl, sys, sysconfig  # without these the tests cannot run
assert sys.implementation.name == "cpython" and sys.version_info.releaselevel == "final"
print("%d.%d" % sys.version_info[:2] + "t" * bool(sysconfig.get_config_var("Py_GIL_DISABLED")))
"""


@dataclass(frozen=True)
class Tested:
    """One interpreter: what pytest said at the end, and the figures of each round."""

    tests: str
    figures: Sequence[Mapping[str, float | str]]


def interpreters(wanted: Sequence[str] = WANTED) -> dict[str, Path]:
    """By version, those that are here."""
    versions = Path.home() / ".pyenv" / "versions"
    named = [Path(path) for path in os.environ.get("BENCH_PYTHONS", "").split(os.pathsep) if path]
    present: dict[str, Path] = {}
    for version in wanted:
        on_path = shutil.which(f"python{version}")
        under_pyenv = [folder / "bin" / "python" for folder in sorted(versions.glob(f"{version.rstrip('t')}.*"))]
        for candidate in [*named, *([Path(on_path)] if on_path else []), *under_pyenv]:
            if version not in present and _version(candidate) == version:
                present[version] = candidate
    return present


def _version(interpreter: Path) -> str | None:
    asked = subprocess.run([interpreter, "-c", _ASK], capture_output=True, text=True)
    return asked.stdout.strip() if asked.returncode == 0 else None


def environment(interpreter: Path, folder: Path) -> Path:
    """A new environment with what the tests need; the path of its Python."""
    subprocess.run([interpreter, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "-qq", "--no-deps"]
    subprocess.run([*pip, "--require-hashes", "-r", "requirements/test.txt"], cwd=ROOT, check=True)
    subprocess.run([*pip, "--no-build-isolation", "-e", "."], cwd=ROOT, check=True)
    return python


def run_tests(python: Path, folders: Sequence[str] = FOLDERS) -> str:
    """The last line of pytest. A test that fails is part of what was found, and no error here."""
    words = [str(python), "-m", "pytest", "-q", "-m", "not long", "-p", "no:cacheprovider", "-n", "2"]
    ended = subprocess.run(
        [*words, *(f"tests/{folder}" for folder in folders)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TESTS_LIMIT,
    )
    lines = ended.stdout.strip().splitlines()
    for line in lines:
        if line.startswith(("FAILED", "ERROR")):
            print(f"{python}: {line}", file=sys.stderr, flush=True)
    if not lines or re.search(r"\d+ passed", lines[-1]) is None:
        raise AssertionError(f"the tests did not run on {python}:\n{ended.stdout[-2000:]}{ended.stderr[-2000:]}")
    return re.sub(r" in [\d.]+s.*", "", lines[-1].strip("= "))


def figures() -> dict[str, float | str]:
    """Of the interpreter that runs this; each part proves what it timed."""
    found: dict[str, float | str] = {
        "version": platform.python_version() + " free-threaded" * bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
        "compiled by": platform.python_compiler(),
    }
    for versus in cost.against_bare():
        found[f"{versus.shape}, processor time per task"] = versus.ours.cpu_per_task
        found[f"{versus.shape}, times bare asyncio"] = versus.ratio
    found["bytes per pending task"] = memory.bytes_per_task()
    durable = speed.compare(["asterism", "raw"], rounds=1, tasks=DURABLE_TASKS).speeds
    for shape in speed.SHAPES:
        found[f"durable {shape}, tasks per second"] = durable["asterism"].rate(shape)
        found[f"durable {shape}, share of raw commits"] = durable["asterism"].rate(shape) / durable["raw"].rate(shape)
    return found


def measure(
    wanted: Sequence[str] = WANTED, folders: Sequence[str] = FOLDERS, rounds: int = ROUNDS
) -> dict[str, Tested]:
    with scratch() as home:
        pythons: dict[str, Path] = {}
        for version, interpreter in interpreters(wanted).items():
            print(f"  environment of {version}", file=sys.stderr, flush=True)
            pythons[version] = environment(interpreter, home / version)
        tests = {version: run_tests(python, folders) for version, python in pythons.items()}
        turns: dict[str, list[Mapping[str, float | str]]] = {version: [] for version in pythons}
        for _ in range(rounds):
            for version, python in pythons.items():
                print(f"  figures of {version}", file=sys.stderr, flush=True)
                words = [str(python), "-m", "bench.pythons"]
                text = subprocess.run(words, cwd=ROOT, check=True, stdout=subprocess.PIPE, timeout=FIGURES_LIMIT).stdout
                turns[version].append(json.loads(text))
    return {version: Tested(tests[version], turns[version]) for version in pythons}


def page(tested: Mapping[str, Tested], wanted: Sequence[str] = WANTED) -> str:
    rounds = max(len(each.figures) for each in tested.values())
    text = f"""## Tests and figures

The tests of {", ".join(f"`tests/{folder}`" for folder in FOLDERS)} without the long ones, and the main figures: the
better of {rounds} rounds that took turns, on asyncio; durable plans have {DURABLE_TASKS:,} tasks. The interpreters were
compiled by different compilers with different options, so compare the multiples of bare asyncio and the shares of raw
commits, which each Python has beside itself, before the times.

"""
    versions = [str(each.figures[0]["version"]) for each in tested.values()]
    rows = [["tests", *(each.tests for each in tested.values())]]
    first = next(iter(tested.values())).figures[0]
    rows += [[name, *(_figure(name, each) for each in tested.values())] for name in first if name != "version"]
    text += table(["", *versions], rows)
    if missing := [version for version in wanted if version not in tested]:
        names = "; ".join(f"{name.rstrip('t')}, free-threaded" if name.endswith("t") else name for name in missing)
        text += f"\n**Not tried**, because there was no such interpreter: {names}.\n"
    return text


def _figure(name: str, tested: Tested) -> str:
    values = [turn[name] for turn in tested.figures]
    numbers = [value for value in values if isinstance(value, float)]
    if not numbers:
        return str(values[0])
    if name.startswith("durable"):
        best = max(numbers)
        return f"{best:.0%}" if "share" in name else f"{best:,.0f}"
    best = min(numbers)
    if "processor time" in name:
        return time_text(best)
    return f"{best:.2f}" if "times" in name else f"{best:,.0f}"


if __name__ == "__main__":
    print(json.dumps(figures()))
