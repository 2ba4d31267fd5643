"""Runs one page of the documentation as a reader would: ``python docs_pages.py README.md``, in an empty directory. A
second argument is the socket of a server of forked commands.

The blocks of a page run from top to bottom. What the fence says decides what happens to a block:

=============================  =====================================================================================
``python``                     executed; the blocks of a page share one namespace
``python no-run``              not executed, only compiled
``python file=plan.py``        written to a file, for the blocks below it; so is a block of any other language
``text output``                what the ``python`` block above it has printed
``console``                    lines with ``$`` are commands; the lines below one are what it prints
``yaml file=plan.yaml``        a plan: ``asterism run`` below it shows its results, which are compared
``yaml file=… no-run``         a plan that cannot run here, or must not
``… example=moved/cron/…``     the end of that file of examples, which other tests run
``console exit=64``            the same, and the last command ends with that exit code instead of 0
=============================  =====================================================================================

In expected output ``...`` stands for anything, as in doctest; blanks do not count, and neither does the time in front
of an event (``0.35  a started``). Of the commands, ``asterism``, ``touch``,
``python FILE`` and ``python -m MODULE`` are executed, with ``NAME=value`` in front of them in their environment;
``make`` must name a target of the Makefile, and ``pip install .`` writes the metadata of the project of the page;
others (``git``, ``cd``) are not looked at.

``export NAME=value`` holds for the rest of the page, and so does ``NAME=$(command)``: from then on ``$NAME`` is what
the command printed. A command that ends in ``< FILE`` reads that file, and one that ends in ``> FILE`` writes its
output there. ``cat FILE`` waits until the file has what the page shows. A command that ends in ``&``, also after
``< FILE``, is left running: the page continues when it has printed the expected text. At the end of the page it gets
SIGTERM and has to exit with 0.

Three things differ from the page. Programs that test machines may lack are replaced by those in ``stand_ins``. A page
that names the server ``DATABASE`` gets a real server. A page that listens at ``PLACE`` gets a free port instead.
"""

from __future__ import annotations

import ast
import contextlib
import doctest
import importlib
import io
import os
import random
import re
import shlex
import signal
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
if __name__ == "__main__":  # readers do not have this folder: only the tests themselves are imported from there
    sys.path[0] = str(ROOT)
    importlib.import_module("tests")
    del sys.path[0]

from tests.forked_commands import ForkedCommand, Server  # noqa: E402
from tests.process_scenes import soon  # noqa: E402

DATABASE = "postgresql://asterism@db.example.org/fleet"
PLACE = "127.0.0.1:7420"
_RESULT = re.compile(r"^Results\n +\S+ +(?!\.\.\.)\S|\"value\": (?!\.\.\.)\S", re.MULTILINE)
"""The results of a run, at its end or in JSON, with what the first of them is."""

_FENCE = re.compile(r"^(?P<indent> *)```(?P<info>.*)$")


@dataclass(frozen=True)
class Block:
    """``line`` is that of the first line of the text, counted from 1."""

    language: str
    options: dict[str, str]
    text: str
    line: int


@dataclass(frozen=True)
class Command:
    variables: dict[str, str]
    words: list[str]
    line: int
    expected: str = ""
    kept_as: str = ""
    """The variable that gets what it prints."""


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
        options = dict(word.partition("=")[::2] for word in words[1:])
        yield Block(words[0] if words else "", options, "".join(f"{row}\n" for row in inside), number + 1)


def commands(block: Block) -> list[Command]:
    """The commands of a console block, each with what it prints."""
    several: list[Command] = []
    for offset, line in enumerate(block.text.splitlines()):
        if line.startswith("$ "):
            kept = re.fullmatch(r"(\w+)=\$\((.*)\)", line[2:].strip())
            text, name = (kept[2], kept[1]) if kept is not None else (line[2:], "")
            several.append(replace(_command(shlex.split(text, comments=True), block.line + offset), kept_as=name))
        elif several:
            several[-1] = replace(several[-1], expected=f"{several[-1].expected}{line}\n")
    return several


def _command(words: list[str], line: int) -> Command:
    count = next((n for n, word in enumerate(words) if not re.match(r"[A-Za-z_]\w*=", word)), len(words))
    return Command(dict(word.split("=", 1) for word in words[:count]), words[count:], line)


def plans(markdown: str) -> Iterator[Block]:
    """The plan files of a page."""
    for block in blocks(markdown):
        if block.language == "yaml" and re.search(r"^tasks:", block.text, re.MULTILINE) and "asterism:" in block.text:
            yield block


def unseen_plans(markdown: str) -> Iterator[Block]:
    """The plans of a page whose effect is not compared: no command of the page runs them and shows a result."""
    seen = {
        word
        for block in blocks(markdown)
        if block.language == "console"
        for command in commands(block)
        if command.words[:2] == ["asterism", "run"] and _RESULT.search(command.expected)
        for word in command.words
    }
    for block in plans(markdown):
        if "no-run" not in block.options and block.options.get("file") not in {*seen, None}:
            yield block


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))


def at_home(folder: Path) -> dict[str, str]:
    """The environment of a reader whose home is ``folder``."""
    stand_ins = str(Path(__file__).parent / "stand_ins")
    own = {
        "HOME": str(folder),
        "XDG_DATA_HOME": str(folder / ".local" / "share"),
        "XDG_STATE_HOME": str(folder / ".local" / "state"),
        "PATH": os.pathsep.join([stand_ins, os.environ.get("PATH", os.defpath)]),
        "COLUMNS": "100",
        "NO_COLOR": "1",
    }
    return {name: value for name, value in {**os.environ, **own}.items() if name != "ASTERISM_STORE"}


class Page:
    """One page on its way from top to bottom. ``database`` is what ``DATABASE`` stands for, ``server`` starts the
    commands of ``asterism``."""

    def __init__(self, path: Path, database: str = DATABASE, server: Server | None = None) -> None:
        self.path, self.database, self.server = path, database, server
        self.namespace: dict[str, Any] = {"__name__": "__main__"}
        self.printed = ""
        self._left_running: list[tuple[Command, subprocess.Popen[str]]] = []

    def run(self) -> None:
        with contextlib.ExitStack() as stack:
            stack.callback(self._kill)
            self._play()
            self._stop()

    def _play(self) -> None:
        text = self.path.read_text("utf-8").replace(DATABASE, self.database)
        for block in blocks(text.replace(PLACE, _free_place()) if PLACE in text else text):
            if "file" in block.options:
                self._write(block)
            elif block.language == "python":
                self._execute(block)
            elif block.language == "text" and "output" in block.options:
                self._compare(block.line, block.text, self.printed)
            elif block.language == "console":
                self._console(block)

    def _fail(self, line: int, message: str) -> None:
        raise SystemExit(f"{self.path}:{line}: {message}")

    def _compare(self, line: int, expected: str, got: str) -> None:
        if not _matches(expected, got):
            self._fail(line, f"the page says\n{expected}\nand it printed\n{got}")

    def _write(self, block: Block) -> None:
        if block.language == "python":
            ast.parse(block.text, block.options["file"])
        path = Path(block.options["file"])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text, encoding="utf-8")

    def _execute(self, block: Block) -> None:
        code = compile("\n" * (block.line - 1) + block.text, str(self.path), "exec")
        if "no-run" in block.options:
            return
        sys.path[:0] = [] if os.getcwd() in sys.path else [os.getcwd()]
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(code, self.namespace)
        self.printed = out.getvalue()

    def _console(self, block: Block) -> None:
        several = commands(block)
        for number, command in enumerate(several):
            code = int(block.options.get("exit", "0")) if number == len(several) - 1 else 0
            program, *arguments = (_filled(word) for word in command.words)
            if program == "export":
                os.environ.update((name, value) for name, _, value in (word.partition("=") for word in arguments))
            elif program == "touch":
                for name in arguments:
                    Path(name).touch()
            elif program == "cat" and command.expected:
                self._file(Path(arguments[0]), command)
            elif program == "asterism":
                self._command([program, *arguments], command, code)
            elif program in ("python", "python3") and (arguments[0].endswith(".py") or arguments[0] == "-m"):
                self._command([sys.executable, *arguments], command, code)
            elif [program, *arguments] == ["pip", "install", "."]:
                _install()
            elif program == "make" and arguments and arguments[0] not in make_targets():
                self._fail(command.line, f"the Makefile has no target {arguments[0]!r}")

    def _command(self, argv: list[str], command: Command, code: int) -> None:
        if argv[-1] == "&":
            self._leave_running(argv[:-1], command)
            return
        argv, stdin, into = _redirected(argv)
        with _started(argv, command, self.server, apart=bool(command.kept_as or into)) as process:
            printed, beside = process.communicate(stdin)
        if process.returncode != code:
            said = f"{printed}{beside or ''}"
            self._fail(command.line, f"{shlex.join(command.words)} exited with {process.returncode}:\n{said}")
        if command.kept_as:
            os.environ[command.kept_as] = printed.strip()
        if into:
            Path(into).write_text(printed, encoding="utf-8")
        if command.expected.strip():
            self._compare(command.line, command.expected, printed)

    def _file(self, path: Path, command: Command) -> None:
        """Goes on when the file has what the page says: another process may still write it."""
        try:
            soon(lambda: path.exists() and _matches(command.expected, path.read_text("utf-8")))
        except AssertionError:
            written = path.read_text("utf-8") if path.exists() else "nothing"
            self._fail(command.line, f"the page says\n{command.expected}\nand {path} has\n{written}")

    # -- what is left running ----------------------------------------------------------------------------------------

    def _leave_running(self, argv: list[str], command: Command) -> None:
        """Goes on when it has printed what the page says."""
        argv, stdin, _ = _redirected(argv)
        process = _started(argv, command, self.server)
        self._left_running.append((command, process))
        if stdin:
            assert process.stdin is not None
            process.stdin.write(stdin)
            process.stdin.close()
            process.stdin = None
        printed = ""
        assert process.stdout is not None
        while command.expected.strip() and not _matches(command.expected, printed):
            line = process.stdout.readline()
            if not line:
                self._fail(command.line, f"the page says\n{command.expected}\nand it ended with\n{printed}")
            printed += line

    def _stop(self) -> None:
        while self._left_running:
            command, process = self._left_running.pop()
            process.send_signal(signal.SIGTERM)
            printed, _ = process.communicate()
            if process.returncode != 0:
                self._fail(command.line, f"{shlex.join(command.words)} ended with {process.returncode}:\n{printed}")

    def _kill(self) -> None:
        """Whatever is left if the page has failed."""
        for _, process in self._left_running:
            process.kill()
            process.communicate()


def _install() -> None:
    """What an installer leaves of the project in this folder, which is on the path: its metadata."""
    project = tomllib.loads(Path("pyproject.toml").read_text("utf-8"))["project"]
    metadata = Path(f"{project['name']}-{project['version']}.dist-info")
    metadata.mkdir()
    lines = ["Metadata-Version: 2.1", f"Name: {project['name']}", f"Version: {project['version']}"]
    (metadata / "METADATA").write_text("\n".join(lines), encoding="utf-8")
    groups = project["entry-points"].items()
    text = [f"[{group}]\n{name} = {value}" for group, entries in groups for name, value in entries.items()]
    (metadata / "entry_points.txt").write_text("\n".join(text), encoding="utf-8")


def _free_place() -> str:
    """Below the ports that the system assigns to outgoing connections."""
    while True:
        place = ("127.0.0.1", random.randrange(10_000, 32_000))
        with contextlib.suppress(OSError), socket.create_server(place):
            return f"{place[0]}:{place[1]}"


_EVENT_TIME = re.compile(r"^ *\d+\.\d\d(?=  \S)", re.MULTILINE)


def _matches(expected: str, got: str) -> bool:
    expected, got = (_EVENT_TIME.sub("0.00", text) for text in (expected, got))  # seconds since the start
    return doctest.OutputChecker().check_output(expected, got, doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)


def _redirected(argv: list[str]) -> tuple[list[str], str, str]:
    """The words of a command without ``< FILE`` or ``> FILE`` at its end; what it reads, and where its output goes."""
    match argv:
        case [*words, "<", file]:
            return words, Path(file).read_text("utf-8"), ""
        case [*words, ">", file]:
            return words, "", file
    return argv, "", ""


def _started(argv: list[str], command: Command, server: Server | None, *, apart: bool = False) -> subprocess.Popen[str]:
    """``apart`` is whether what it says beside its output is kept apart from that."""
    options: dict[str, Any] = {
        "env": {**os.environ, "PYTHONWARNINGS": "error", "PYTHONUNBUFFERED": "1", **command.variables},
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE if apart else subprocess.STDOUT,
    }
    if argv[0] == "asterism":
        return ForkedCommand(argv[1:], server=server, strict=True, **options)
    return subprocess.Popen(argv, text=True, **options)


def _filled(word: str) -> str:
    """With the variables that are known; what looks like another is left alone."""
    return re.sub(r"\$([A-Z]+)\b", lambda match: os.environ.get(match[1], match[0]), word)


def main() -> None:
    os.environ.update(at_home(Path.cwd()))
    os.environ.pop("ASTERISM_STORE", None)
    page, *sockets = sys.argv[1:]
    run(Path(page), Server(sockets[0]) if sockets else None)


def run(path: Path, server: Server | None) -> None:
    if DATABASE not in path.read_text("utf-8"):
        Page(path, server=server).run()
        return
    from tests.store.postgres_server import running_server

    with running_server() as address:
        Page(path, address, server).run()


if __name__ == "__main__":
    main()
