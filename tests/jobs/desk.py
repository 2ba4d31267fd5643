"""Somebody at a terminal: a folder, a store, and the commands that the documentation shows."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cli.command_scenes import Scene
from tests.forked_commands import ForkedCommand
from tests.process_scenes import ended, soon

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

    def apart(self, line: str, *, code: int = 0) -> str:
        """What ``asterism`` prints on standard output, as a process: it imports modules of the folder."""
        with self.process(*shlex.split(line)) as process:
            ended_with, output, self.said = ended(process)
        assert ended_with == code, output + self.said
        return output

    @contextmanager
    def beside(self, *lines: str) -> Iterator[list[subprocess.Popen[str]]]:
        """Commands as processes, such as devices; each has said that it is ready."""
        if not lines:
            yield []
            return
        with self.process(*shlex.split(lines[0])) as process, self.beside(*lines[1:]) as others:
            yield [process, *others]

    @contextmanager
    def terminal(self, *words: str) -> Iterator[Terminal]:
        """A command in a terminal of its own; whatever happens, it is gone afterwards."""
        screen, stream = os.openpty()
        env = {**os.environ, **self.env, "TERM": "xterm", "LINES": "50"}
        process = ForkedCommand([*words], stdin=stream, stdout=stream, stderr=stream, cwd=self.folder, env=env)
        os.close(stream)
        terminal = Terminal(process, screen)
        try:
            yield terminal
        finally:
            process.kill()
            process.wait()
            terminal.reader.join()
            os.close(screen)


class Terminal:
    """The screen of a command: everything that it has drawn."""

    def __init__(self, process: subprocess.Popen[str], screen: int) -> None:
        self.process, self.drawn = process, b""
        self.reader = threading.Thread(target=self._read, args=[screen])
        self.reader.start()

    def _read(self, screen: int) -> None:
        try:
            while part := os.read(screen, 65536):
                self.drawn += part
        except OSError:  # nobody has the other end
            pass

    def shows(self, pattern: str) -> None:
        """Wait until the command has drawn this, on one line."""
        soon(lambda: re.search(pattern, self.drawn.decode(errors="replace")))
