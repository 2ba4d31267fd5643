"""The same pipeline for Asterism and for Prefect, from ``examples/moved/prefect``, as a user starts it.

A list that is known at run time, a shell command for each element that writes a file, a task that counts the rows of
all files, and an alarm. Each is a process of its own, from its start to its end, with the store of a run before: what
it prints is compared with the number of rows that there must be. The cost of an element is what more of them take in
addition, so neither start nor server are in it. The two take turns.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median

from bench.durable.peers.prefect_steps import DURABLE
from bench.peers import prefect_peer

EXAMPLES = Path(__file__).parents[2] / "examples" / "moved" / "prefect"
SOURCES = {"Asterism": EXAMPLES / "sales.yaml", "Prefect": EXAMPLES / "sales_flow.py"}

HEAD = """# Benchmarks: pipelines

Written by `python -m bench pipelines`; every figure on this page was measured in one run, side by side. Times vary from
machine to machine and from hour to hour: read the ratios. Airflow is not beside
them: there was no package of it where this was measured.
"""


@dataclass(frozen=True)
class Sizes:
    few: int = 3
    many: int = 53
    rounds: int = 3


@dataclass(frozen=True)
class Figures:
    """``first`` is the time from the start of the command to its end with few elements, ``task`` the time that each
    further element takes, in seconds; None if that is lost in the variation of the start."""

    lines: int
    first: float
    task: float | None


def measure(sizes: Sizes | None = None) -> Mapping[str, Figures]:
    sizes = sizes or Sizes()
    took: dict[tuple[str, int], list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        for name in SOURCES:
            timed_command(name, 1, folder)  # makes the store
        for _ in range(sizes.rounds):
            for number in (sizes.few, sizes.many):
                for name in SOURCES:
                    took.setdefault((name, number), []).append(timed_command(name, number, folder))
    return {name: _figures(name, took, sizes) for name in SOURCES}


def _figures(name: str, took: Mapping[tuple[str, int], Sequence[float]], sizes: Sizes) -> Figures:
    few, many = median(took[name, sizes.few]), median(took[name, sizes.many])
    least, most = max(took[name, sizes.few]), min(took[name, sizes.many])
    each = (many - few) / (sizes.many - sizes.few) if least < most else None
    return Figures(lines_of(SOURCES[name]), few, each)


def lines_of(path: Path) -> int:
    """The lines of a file, without blank ones, comments and its docstring."""
    lines = [line.strip() for line in path.read_text("utf-8").splitlines()]
    return sum(1 for line in lines if line and not line.startswith(("#", '"""')))


def timed_command(name: str, number: int, folder: str) -> float:
    """The seconds that a pipeline with so many elements takes. Raises AssertionError unless it counts their rows."""
    words, settings = _asterism(number, folder) if name == "Asterism" else _prefect(number, folder)
    began = time.perf_counter()
    done = subprocess.run(
        words, cwd=folder, env={**os.environ, **settings}, capture_output=True, text=True, check=False
    )
    took = time.perf_counter() - began
    assert done.stdout.splitlines()[-1:] == [str(number)], f"{name}: {done.stdout}{done.stderr}"
    return took


def _asterism(number: int, folder: str) -> tuple[list[str], dict[str, str]]:
    words = ["run", str(SOURCES["Asterism"]), "--set", f"shops={number}", "--result", "report"]
    return [sys.executable, "-m", "asterism", *words, "--store", f"sqlite:///{folder}/fleet.db"], {}


def _prefect(number: int, folder: str) -> tuple[list[str], dict[str, str]]:
    own = prefect_peer._own_files(Path(folder)) | {"PREFECT_LOCAL_STORAGE_PATH": f"{folder}/storage", "TMPDIR": folder}
    return [sys.executable, str(SOURCES["Prefect"]), str(number)], prefect_peer.QUIET | DURABLE | own


def page(figures: Mapping[str, Figures], sizes: Sizes | None = None) -> str:
    sizes = sizes or Sizes()
    ours, theirs = figures["Asterism"], figures["Prefect"]
    table = [
        f"| lines, without blank ones and comments | {ours.lines} | {theirs.lines} | {theirs.lines / ours.lines:.1f} |",
        f"| from the command to the result of {sizes.few} elements | {ours.first:.1f} s | {theirs.first:.1f} s "
        f"| {theirs.first / ours.first:.1f} |",
    ]
    if ours.task is not None and theirs.task is not None:
        own, other = f"{ours.task * 1e3:.0f} ms", f"{theirs.task * 1e3:.0f} ms"
        table.append(f"| each further element, of {sizes.many} | {own} | {other} | {theirs.task / ours.task:.1f} |")
    else:
        table += ["", f"What each of {sizes.many} elements adds is lost in the variation of the start."]
    return "\n".join(
        [
            "## One pipeline beside Prefect",
            "",
            "A list that is known at run time, a shell command with retries and a timeout for each element, which",
            "writes a file, a task that counts the rows of all files, and an alarm if there is no report:",
            "[for Asterism and for Prefect](how-to/from-prefect.md).",
            "",
            f"Prefect {version('prefect')} persists results and states. No server of it runs before, so the command",
            "starts one on SQLite, whose database is there already. Asterism stores the plan in a SQLite file that is",
            "there already, and keeps the files by their hashes; with Prefect they lie in a folder. Both count all",
            "rows.",
            "",
            "| | Asterism | Prefect | ratio |",
            "| --- | ---: | ---: | ---: |",
            *table,
            "",
            f"An element includes its process and its file. Medians of {sizes.rounds} rounds, in turn.",
            "",
        ]
    )


if __name__ == "__main__":
    print(page(measure()))
