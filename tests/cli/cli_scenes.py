"""Running the command line in the test process and in processes of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from typing import IO

from click.testing import CliRunner, Result

from asterism.cli.main import commands
from tests.forked_commands import ForkedCommand
from tests.process_scenes import PATIENCE

ASTERISM = [sys.executable, "-c", "from asterism.cli.main import main; main()"]


def asterism(*words: str) -> Result:
    """Run the command in this process."""
    result = CliRunner().invoke(commands, words)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    assert "/asterism/" not in result.output or "Traceback" not in result.output, (
        result.output
    )  # ours; tasks have theirs
    return result


def write(folder: Path, text: str, name: str = "plan.yaml") -> str:
    """A plan file. It has an id, so that its plan has the same name at each start."""
    path = folder / name
    named = (
        text
        if text.startswith("id:") or "\nid:" in text or "tasks:" not in text
        else f"{text.rstrip()}\nid: {path.stem}\n"
    )
    path.write_text(f"asterism: 1\n{named}", encoding="utf-8")
    return str(path)


@contextmanager
def started(*words: str, command: Sequence[str] = ()) -> Iterator[subprocess.Popen[str]]:
    """The command as a process, or another one of a new interpreter; whatever happens, it is gone afterwards."""
    pipe = subprocess.PIPE
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    process = (
        subprocess.Popen([*command, *words], text=True, env=env, stdout=pipe, stderr=pipe)
        if command
        else ForkedCommand([*words], env=env, stdout=pipe, stderr=pipe)
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def read_until(process: subprocess.Popen[str], words: str) -> list[str]:
    """The lines on the standard output of a process, up to the one that contains ``words``."""
    return _lines_until(process, process.stdout, words)


def heard(process: subprocess.Popen[str], words: str) -> list[str]:
    """The lines on the standard error of a process, up to the one that contains ``words``."""
    return _lines_until(process, process.stderr, words)


def _lines_until(process: subprocess.Popen[str], stream: IO[str] | None, words: str) -> list[str]:
    """Kills the process if the words do not come: its streams end then, and the test fails instead of hanging."""
    assert stream is not None
    lines = []
    limit = Timer(PATIENCE, process.kill)
    limit.start()
    try:
        for line in stream:
            lines.append(line)
            if words in line:
                return lines
    finally:
        limit.cancel()
    raise AssertionError(f"{words!r} never came; all that came: {lines}")
