"""Running the command line: in this process, and as a real one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from click.testing import CliRunner, Result

from asterism.cli.main import commands

ASTERISM = [sys.executable, "-c", "from asterism.cli.main import main; main()"]


def asterism(*words: str) -> Result:
    """Run the command in this process."""
    result = CliRunner().invoke(commands, words)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    assert "Traceback" not in result.output
    return result


def write(folder: Path, text: str, name: str = "plan.yaml") -> str:
    path = folder / name
    path.write_text(f"asterism: 1\n{text}", encoding="utf-8")
    return str(path)


@contextmanager
def started(*words: str, command: Sequence[str] = ASTERISM) -> Iterator[subprocess.Popen[str]]:
    """The command as a process; whatever happens, it is gone afterwards."""
    process = subprocess.Popen(
        [*command, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def read_until(process: subprocess.Popen[str], words: str) -> list[str]:
    """The lines of a process up to the one that contains ``words``."""
    return lines_until(process.stdout, words)


def lines_until(stream: IO[str] | None, words: str) -> list[str]:
    assert stream is not None
    lines = []
    for line in stream:
        lines.append(line)
        if words in line:
            return lines
    raise AssertionError(f"{words!r} never came; all that came: {lines}")
