"""A process beside a measurement that ends with it, whatever happens."""

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

PATIENCE = 30.0
"""Seconds that it may take to end, before it is killed."""


@contextmanager
def child_process(
    command: Sequence[str], *, terminate: bool = False, **options: Any
) -> Iterator["subprocess.Popen[bytes]"]:
    """A command for as long as the block lasts: it is to end when its input does, or with ``terminate`` when it is
    asked to. ``options`` are those of ``Popen``."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **options) as process:
        assert process.stdin is not None
        try:
            yield process
        finally:
            process.stdin.close()
            if terminate:
                process.terminate()
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()


def first_line(process: "subprocess.Popen[bytes]") -> str:
    """What it prints first, without the end of the line. Raises RuntimeError if it ends before."""
    assert process.stdout is not None
    if not (line := process.stdout.readline()):
        raise RuntimeError(f"{process.args!r} ended with {process.wait()} and had printed nothing")
    return line.decode().strip()
