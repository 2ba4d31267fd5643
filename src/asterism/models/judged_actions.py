"""What an agent asks of its device: files, commands and permissions, judged by the device policy before they happen.

Everything is refused that the ``permissions`` of the device policy do not list; files must be in its ``directories``,
commands among its ``commands``, addresses among its ``hosts``. Each decision is a line in the output of the run, so
nothing is allowed silently. What an agent does in its own process, without asking, is not judged here.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from asterism.base.operating_system import PLAIN_FILE_ONLY
from asterism.base.text import clean, shorten
from asterism.core.errors import AsterismError, DeviceUnavailable
from asterism.execution.processes import CommandFailed
from asterism.fleet.device.agent_work import AgentWork
from asterism.fleet.policy.device_policy import PolicyForbids

LARGEST_FILE = 16 << 20
"""The largest file that an agent reads or writes, in bytes."""

MOST_COMMANDS = 32
"""How many commands of one execution may exist at once."""

OUTPUT_LIMIT = 1 << 20
"""How much of the output of a command is kept unless the agent asks for less, in bytes."""

_LONGEST_NOTE = 300
_FILES = ("read", "edit", "delete", "move", "search")
_FILE_KEYS = ("path", "file_path", "abs_path")
_PLACE = re.compile(r"path|file|dir|folder|dest|source|target|location|^(?:from|to|uri|cwd)$", re.IGNORECASE)
"""Names of terms that are places, whatever their text looks like."""

_CONTENT = frozenset(
    ("content", "text", "newtext", "oldtext", "newstring", "oldstring", "query", "regex", "description", "title")
)
"""Names of terms that are the content of a file, or words for a person, in small letters and without underscores."""

_OPTIONS = frozenset(("pattern", "glob", "include", "exclude", "mode", "outputmode", "encoding", "type"))
"""Names of terms that say how a file is read or which files are meant."""

_PARTS = frozenset(("", "edits", "changes", "operations", "options", "range"))
"""Names of terms that have terms of their own."""

_RELATIVE = re.compile(r"[^\s~$:\\]+")
_WORDS = frozenset(("description", "title", "explanation", "prompt", "timeout", "timeout_ms", "method", "format"))
_EXECUTE_TERMS = _WORDS | {"command", "args", "cwd"}
_FETCH_TERMS = _WORDS | {"url"}


class JudgedActions:
    """The actions of one execution."""

    def __init__(self, work: AgentWork) -> None:
        self._work, self._policy = work, work.policy
        self.commands: dict[str, RunningCommand] = {}
        self._started = 0
        self.ended = False

    def end(self) -> None:
        """Refuse everything from now on: the execution has ended or is being stopped."""
        self.ended = True

    def _judge_kind(self, kind: str) -> None:
        if self.ended:
            raise PolicyForbids("the execution has ended")
        self._policy.permission(kind)

    # -- permissions ---------------------------------------------------------------------------------------------------

    def permit(self, kind: str, title: str, paths: Sequence[str], parameters: Any) -> bool:
        """Whether an agent may do by itself what it asks for. ``parameters`` are the parameters of its tool."""
        try:
            self._judge_kind(kind)
            self._judge_terms(kind, paths, parameters if parameters is not None else {})
        except (PolicyForbids, DeviceUnavailable) as error:
            self._refused(f"{kind} {title}", error)
            return False
        self._allowed(f"{kind} {title}")
        return True

    def _judge_terms(self, kind: str, paths: Sequence[str], parameters: Any) -> None:
        """Judge what the tool names. A request that does not say what it is about, or that says it in a form that
        cannot be judged, is refused."""
        if not isinstance(parameters, Mapping):
            raise PolicyForbids("its terms are not an object")
        if kind in _FILES:
            named = [*paths, *(parameters[key] for key in _FILE_KEYS if _is_text(parameters.get(key)))]
            if not named:
                raise PolicyForbids("it names no file")
            for path in (*named, *_places(parameters, self._work.cwd)):
                self._policy.file(path)
        elif kind == "execute":
            self._judge_command(parameters)
        elif kind == "fetch":
            _refuse_others(parameters, _FETCH_TERMS)
            url = parameters.get("url")
            if not _is_text(url):
                raise PolicyForbids("it names no url")
            self._policy.url(url)

    def _judge_command(self, parameters: Mapping[str, Any]) -> None:
        _refuse_others(parameters, _EXECUTE_TERMS)
        command, args, cwd = parameters.get("command"), parameters.get("args"), parameters.get("cwd")
        if isinstance(command, list | tuple) and command and all(map(_is_text, command)):
            self._policy.command(command[0])
        elif _is_text(command) and isinstance(args, list | tuple):
            self._policy.command(str(command))
        elif _is_text(command):
            self._policy.shell()  # one line, which a shell reads
        else:
            raise PolicyForbids("it names no command")
        if cwd is not None and not isinstance(cwd, str):
            raise PolicyForbids("its directory is not a text")
        self._policy.directory(cwd or self._work.cwd)

    def _allowed(self, what: str) -> None:
        self._work.note(f"allowed: {shorten(clean(what), _LONGEST_NOTE)}")

    def _refused(self, what: str, error: Exception) -> None:
        self._work.note(f"refused: {shorten(clean(what), _LONGEST_NOTE)}: {error}")

    # -- files ---------------------------------------------------------------------------------------------------------

    async def read_file(self, path: str, line: int | None = None, limit: int | None = None) -> str:
        """The text of a file, or ``limit`` lines of it from ``line`` (the first is 1). Raises PolicyForbids, OSError,
        and AsterismError for a file that is too large."""
        place = self._judge_file("read", path)
        text = await asyncio.to_thread(_read, place)
        if line is None and limit is None:
            return text
        first = max((line or 1) - 1, 0)
        lines = text.splitlines(keepends=True)
        return "".join(lines[first : None if limit is None else first + max(limit, 0)])

    async def list_directory(self, path: str) -> list[str]:
        """The names in a directory, those of directories with a slash at the end. Raises PolicyForbids and OSError."""
        return await asyncio.to_thread(_names, self._judge_file("read", path))

    async def write_file(self, path: str, text: str) -> None:
        """Replace the text of a file, or create it. Raises PolicyForbids, OSError, and AsterismError if it is too
        large."""
        place = self._judge_file("edit", path)
        data = text.encode(errors="surrogatepass")
        if len(data) > LARGEST_FILE:
            raise AsterismError(f"a file of an agent has at most {LARGEST_FILE:,} bytes, not {len(data):,}")
        await asyncio.to_thread(_write, place, data)

    def _judge_file(self, kind: str, path: str) -> str:
        try:
            self._judge_kind(kind)
            place = self._policy.file(path)
        except PolicyForbids as error:
            self._refused(f"{kind} {path}", error)
            raise
        self._allowed(f"{kind} {path}")
        return place

    # -- commands ------------------------------------------------------------------------------------------------------

    def start_command(
        self,
        words: Sequence[str],
        variables: Mapping[str, str] | None = None,
        cwd: str | None = None,
        limit: int | None = None,
    ) -> str:
        """Start a command and return its id. Raises PolicyForbids, and DeviceUnavailable if it does not exist."""
        shown = " ".join(words)
        try:
            self._judge_kind("execute")
            program = self._policy.command(words[0])
            self._policy.variables(variables or ())
            place = self._policy.directory(cwd or self._work.cwd)
            if len(self.commands) >= MOST_COMMANDS:
                raise PolicyForbids(f"an agent has at most {MOST_COMMANDS} commands at once: release some")
        except (PolicyForbids, DeviceUnavailable) as error:
            self._refused(f"execute {shown}", error)
            raise
        self._allowed(f"execute {shown}")
        self._started += 1
        name = f"command-{self._started}"
        argv, executable = ([*words], None) if program is None else ([program.name, *words[1:]], program.file)
        environment = {**self._work.environment, **(variables or {})}
        self.commands[name] = RunningCommand(self._work, argv, executable, environment, place, limit)
        return name

    async def release(self, name: str) -> None:
        """Stop a command and forget it."""
        command = self.commands.pop(name, None)
        if command is not None:
            await command.stop()

    async def close(self) -> None:
        """Stop all commands, and start no more."""
        self.end()
        commands = list(self.commands.values())
        self.commands.clear()
        await asyncio.gather(*(command.stop() for command in commands))


class RunningCommand:
    """A command of an agent. The end of its output is kept."""

    def __init__(
        self,
        work: AgentWork,
        argv: Sequence[str],
        executable: str | None,
        environment: Mapping[str, str],
        cwd: str | None,
        limit: int | None,
    ) -> None:
        self._limit = min(OUTPUT_LIMIT if limit is None else max(limit, 0), OUTPUT_LIMIT)
        self._kept = bytearray()
        self.truncated = False
        self.exit_code: int | None = None
        self.signal: str | None = None
        self._mask = work.mask
        running = work.processes.run(argv, environment, cwd, executable=executable, heard=self._hear)
        self._task = asyncio.create_task(self._run(running))

    def _hear(self, _: int, data: bytes) -> None:
        self._kept += data
        if len(self._kept) > self._limit:
            del self._kept[: len(self._kept) - self._limit]
            self.truncated = True

    async def _run(self, running: Any) -> None:
        try:
            await running
            self.exit_code = 0
        except CommandFailed as error:
            if error.code < 0:
                self.signal = _signal_name(-error.code)
            else:
                self.exit_code = error.code
        except (OSError, AsterismError) as error:
            self._hear(2, f"{error}\n".encode(errors="replace"))
            self.exit_code = 127

    @property
    def ended(self) -> bool:
        return self._task.done()

    @property
    def output(self) -> str:
        """Its output, with secrets masked; a character that was cut in two is left out."""
        text = bytes(self._kept).decode(errors="ignore" if self.truncated else "replace")
        return self._mask.tail(text, cut=self.truncated, growing=not self.ended)

    async def wait(self) -> None:
        """Returns when it has ended."""
        await asyncio.wait([self._task])

    async def stop(self) -> None:
        if not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])
            self.signal = self.signal or "SIGTERM"


def _refuse_others(parameters: Mapping[str, Any], known: Collection[str]) -> None:
    """Refuse terms that mean something unknown, such as variables of a command or a second address."""
    others = [str(name) for name, value in parameters.items() if name not in known and value not in (None, "", [], {})]
    if others:
        raise PolicyForbids(f"its terms {clean(', '.join(sorted(others)))} cannot be judged")


def _places(parameters: Mapping[str, Any], cwd: str) -> Iterator[str]:
    """Every text of the terms of a tool that may be the place of a file, wherever it stands, as a name of an object
    too. Raises PolicyForbids for a text that cannot be judged, or whose name does not say what it means: it may be a
    command or an address, which the tool uses beside the file."""
    stack: list[tuple[str, Any]] = [("", parameters)]
    while stack:
        name, value = stack.pop()
        known = name.replace("_", "").lower()
        if isinstance(value, Mapping):
            stack += value.items()
            stack += [("path", key) for key in value if "/" in key]
            if not (known in _PARTS or _PLACE.search(name)):
                stack.append(("path", name))
        elif isinstance(value, list | tuple):
            stack += [(name, element) for element in value]
        elif _is_text(value) and known not in _CONTENT:
            if not (known in _OPTIONS or _PLACE.search(name)):
                raise PolicyForbids(f"its term {clean(name)!r} cannot be judged")
            if os.path.isabs(value):
                yield value
            elif known not in _OPTIONS or any(sign in value for sign in "/\\~\n"):
                if not _RELATIVE.fullmatch(value):
                    raise PolicyForbids(f"its term {clean(name)!r} cannot be judged: it is not a path")
                yield os.path.join(cwd, value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _open(path: str, flags: int) -> int:
    """Open a regular file. The path has no links: they were followed when it was judged."""
    file = os.open(path, flags | PLAIN_FILE_ONLY, 0o666)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise AsterismError(f"{path} is not a regular file")
    return file


def _read(path: str) -> str:
    with os.fdopen(_open(path, os.O_RDONLY), "rb") as source:
        data = source.read(LARGEST_FILE + 1)
    if len(data) > LARGEST_FILE:
        raise AsterismError(f"{path} has more than {LARGEST_FILE:,} bytes")
    return data.decode(errors="replace")


def _names(path: str) -> list[str]:
    with os.scandir(path) as entries:
        return sorted(f"{entry.name}/" if entry.is_dir(follow_symlinks=False) else entry.name for entry in entries)


def _write(path: str, data: bytes) -> None:
    with os.fdopen(_open(path, os.O_WRONLY | os.O_CREAT), "wb") as target:
        target.truncate()
        target.write(data)


def paths_in(locations: Iterable[Any] | None, content: Iterable[Any] | None) -> list[str]:
    """The files that a tool call of an agent names: its locations, and the files of its changes."""
    paths = [location.path for location in locations or ()]
    return [*paths, *(part.path for part in content or () if getattr(part, "type", None) == "diff")]
