"""Runs one page of the documentation as a reader would: ``python docs_pages.py README.md``, in an empty directory.

The blocks of a page run from top to bottom. What the fence says decides what happens to a block:

=============================  =====================================================================================
``python``                     executed; the blocks of a page share one namespace
``python no-run``              not executed, only compiled
``python file=plan.py``        written to a file, for the blocks below it; so is a block of any other language
``text output``                what the ``python`` block above it has printed
``console``                    lines with ``$`` are commands; the lines below one are what it prints
``console exit=64``            the same, and the last command ends with that exit code instead of 0
=============================  =====================================================================================

In expected output ``...`` stands for anything, as in doctest, and blanks do not count. Of the commands, ``asterism``
and ``python FILE`` are executed, with ``NAME=value`` in front of them in their environment; ``make`` must name a target
of the Makefile; others (``git``, ``pip``, ``cd``) are not looked at.
"""

from __future__ import annotations

import ast
import contextlib
import doctest
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-c", "import sys; sys.argv[0] = 'asterism'; from asterism.surfaces.cli import main; main()"]
_FENCE = re.compile(r"^(?P<indent> *)```(?P<info>.*)$")


@dataclass(frozen=True)
class Block:
    """``line`` is that of the first line of the text, counted from 1."""

    language: str
    terms: dict[str, str]
    text: str
    line: int


@dataclass(frozen=True)
class Command:
    variables: dict[str, str]
    words: list[str]
    line: int
    expected: str = ""


def blocks(markdown: str) -> Iterator[Block]:
    """The fenced blocks of a page."""
    lines = iter(enumerate(markdown.splitlines(), 1))
    for number, line in lines:
        opening = _FENCE.match(line)
        if opening is None:
            continue
        indent, words, inside = opening["indent"], opening["info"].split(), []
        for _, content in lines:
            if content.strip() == "```":
                break
            inside.append(content.removeprefix(indent))
        else:
            raise ValueError(f"the block that begins in line {number} has no end")
        terms = dict(word.partition("=")[::2] for word in words[1:])
        yield Block(words[0] if words else "", terms, "".join(f"{one}\n" for one in inside), number + 1)


def commands(block: Block) -> list[Command]:
    """The commands of a console block, each with what it prints."""
    found: list[Command] = []
    for offset, line in enumerate(block.text.splitlines()):
        if line.startswith("$ "):
            found.append(_command(shlex.split(line[2:], comments=True), block.line + offset))
        elif found:
            found[-1] = replace(found[-1], expected=f"{found[-1].expected}{line}\n")
    return found


def _command(words: list[str], line: int) -> Command:
    count = next((n for n, word in enumerate(words) if not re.match(r"[A-Za-z_]\w*=", word)), len(words))
    return Command(dict(word.split("=", 1) for word in words[:count]), words[count:], line)


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))


class Page:
    """One page on its way from top to bottom."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.namespace: dict[str, Any] = {"__name__": "__main__"}
        self.printed = ""

    def run(self) -> None:
        for block in blocks(self.path.read_text("utf-8")):
            if "file" in block.terms:
                self._write(block)
            elif block.language == "python":
                self._execute(block)
            elif block.language == "text" and "output" in block.terms:
                self._compare(block.line, block.text, self.printed)
            elif block.language == "console":
                self._console(block)

    def _fail(self, line: int, message: str) -> None:
        raise SystemExit(f"{self.path}:{line}: {message}")

    def _compare(self, line: int, expected: str, got: str) -> None:
        flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        if not doctest.OutputChecker().check_output(expected, got, flags):
            self._fail(line, f"the page says\n{expected}\nand it printed\n{got}")

    def _write(self, block: Block) -> None:
        if block.language == "python":
            ast.parse(block.text, block.terms["file"])
        path = Path(block.terms["file"])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text, encoding="utf-8")

    def _execute(self, block: Block) -> None:
        code = compile("\n" * (block.line - 1) + block.text, str(self.path), "exec")
        if "no-run" in block.terms:
            return
        sys.path[:0] = [] if os.getcwd() in sys.path else [os.getcwd()]
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(code, self.namespace)
        self.printed = out.getvalue()

    def _console(self, block: Block) -> None:
        found = commands(block)
        for number, command in enumerate(found):
            code = int(block.terms.get("exit", "0")) if number == len(found) - 1 else 0
            program, *arguments = command.words
            if program == "asterism":
                self._command([*COMMAND, *arguments], command, code)
            elif program in ("python", "python3") and arguments[0].endswith(".py"):
                self._command([sys.executable, *arguments], command, code)
            elif program == "make" and arguments and arguments[0] not in make_targets():
                self._fail(command.line, f"the Makefile has no target {arguments[0]!r}")

    def _command(self, argv: list[str], command: Command, code: int) -> None:
        environment = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1", "PYTHONWARNINGS": "error", **command.variables}
        done = subprocess.run(
            argv, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        if done.returncode != code:
            self._fail(command.line, f"{shlex.join(command.words)} exited with {done.returncode}:\n{done.stdout}")
        if command.expected.strip():
            self._compare(command.line, command.expected, done.stdout)


if __name__ == "__main__":
    Page(Path(sys.argv[1])).run()
