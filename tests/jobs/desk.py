"""Somebody at a terminal: a folder, a store, and the commands that the documentation shows."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cli.command_scenes import Scene

ROOT = Path(__file__).parents[2]


class Desk(Scene):
    """Commands are run in the test process, in its folder. ``$ASTERISM_STORE`` is a store that does not exist yet."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.env |= {"COLUMNS": "200", "ASTERISM_TOKEN": ""}

    def write(self, name: str, text: str) -> Path:
        """Write a file, a plan file with its version."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"asterism: 1\n{text}" if name.endswith(".yaml") else text)
        return path

    def git(self, folder: str, *words: str) -> None:
        """A command of git in a folder of this one."""
        name = ("-c", "user.name=ann", "-c", "user.email=ann@localhost")
        subprocess.run(["git", *name, *words], cwd=self.folder / folder, check=True)

    def sh(self, line: str, *, code: int = 0, stdin: str | None = None, **env: str) -> str:
        """What ``asterism`` prints on standard output, with these words, as in a shell."""
        result = self.run(*shlex.split(line), stdin=stdin, **env)
        assert result.exit_code == code, result.output
        self.said = result.output
        return result.stdout

    @contextmanager
    def beside(self, *lines: str) -> Iterator[list[subprocess.Popen[str]]]:
        """Commands as processes, such as devices; each has said that it is ready."""
        if not lines:
            yield []
            return
        with self.process(*shlex.split(lines[0])) as process, self.beside(*lines[1:]) as others:
            yield [process, *others]
