"""Where people read. A reader that has gone away (``| head``) ends neither a run nor its exit code."""

from __future__ import annotations

import contextlib
import os
from typing import IO

from rich.console import Console
from rich.text import Text


class Screen(Console):
    """A console that goes on in silence when nobody reads it any more; rich would leave the program."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        forget_output(self.file)

    def say(self, line: str | Text = "") -> None:
        """One line, as it is: nothing in it is markup, and the terminal wraps it where it ends."""
        self.print(line, markup=False, emoji=False, highlight=False, soft_wrap=True)


def forget_output(file: IO[str]) -> None:
    """What is still in the buffer goes nowhere, instead of failing again at exit."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, file.fileno())
        os.close(nowhere)
