"""A process with limits that evaluates expressions: one that is not bounded ends it. ``python cel_child.py WHAT``.

Each line of its input is an expression and its steps as JSON, and each line of its output what came of it. ``metered``
is the real thing, ``unmetered`` the same with endless steps, ``library`` the library that was used before.
"""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SECONDS = 3.0
"""The processor time that one expression may take: far more than any should, so that a slow machine changes nothing."""

STATM = Path("/proc/self/statm")
MEGABYTES = 256
"""The memory that it may take beyond what the process has at the start."""

NAMES: dict[str, Any] = {
    "result": {
        "items": list(range(2000)),
        "text": "ab" * 5000,
        "words": [f"word{index}" for index in range(500)],
        "map": {f"key{index}": index for index in range(500)},
        "rows": [{"id": index, "tags": ["a", "b"], "ok": index % 2 == 0} for index in range(300)],
        "nothing": None,
    },
    "status": "completed",
}


def main(what: str) -> None:
    evaluate = {"metered": _metered, "unmetered": _unmetered, "library": _library}[what]()
    print("ready", flush=True)
    if STATM.exists():  # elsewhere the time is the only limit
        used = int(STATM.read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (MEGABYTES << 20),) * 2)
    for line in sys.stdin:
        text, steps = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, SECONDS)  # which ends the process
        try:
            said = evaluate(text, steps)
        except ValueError as error:
            said = str(error)
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(said.replace("\n", " ")[:500], flush=True)


def _metered() -> Any:
    from asterism.base import expressions

    def evaluate(text: str, steps: int) -> str:
        expressions.check(text)
        expressions.select(text, NAMES, steps)
        return "evaluated"

    return evaluate


def _unmetered() -> Any:
    from asterism.base import expressions
    from asterism.base.cel import cel_program

    cel_program.CONSTANT_STEPS = 10**18
    return lambda text, steps: str(expressions.select(text, NAMES, 10**18))[:100]


def _library() -> Any:
    import cel

    return lambda text, steps: str(cel.compile(text).execute(NAMES))[:100]


class Child:
    """The process, as a test has it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def evaluate(self, text: str, steps: int = 100_000) -> str:
        """What came of an expression; fails if the process was ended by its limits."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps([text, steps]) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass
        said = self.process.stdout.readline()
        assert said, f"ended with {self.process.wait()} by {text[:500]!r}"
        return said.strip()


@contextmanager
def child(what: str) -> Iterator[Child]:
    command = [sys.executable, __file__, what]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            yield Child(process)
        finally:
            process.kill()


if __name__ == "__main__":
    main(sys.argv[1])
