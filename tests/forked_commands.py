"""The command ``asterism`` as a process, without the time that Python takes to start and to import it.

A server has imported all of Asterism, and forks for each command; all workers of pytest-xdist share it.
``ForkedCommand`` is a ``subprocess.Popen`` whose process comes from there: it has its own streams, environment and
folder, gets signals, can be killed, and ends as a Python process ends, but for the release of all modules. What only an
interpreter of its own does (read the locale and most variables named ``PYTHON…``, import, release the modules) is
tested with a real ``Popen``.

Between the process that asks, the server and the command stands a keeper, the parent of the command: it waits for the
command, and passes its exit status on.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import pkgutil
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
_MOST = 200_000
"""The size of a request: arguments and environment, in bytes."""


def import_everything() -> None:
    import asterism

    for module in pkgutil.walk_packages(asterism.__path__, "asterism."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)


# -- the process that asks ---------------------------------------------------------------------------------------------


class Server:
    """Starts commands: ``path`` is the socket of a process that has called ``serve``. Processes may share it."""

    def __init__(self, path: str) -> None:
        self.path = path

    def start(self, request: dict[str, Any], streams: list[int]) -> tuple[int, int]:
        """The process id of a new command, and the descriptor of the pipe on which its exit status comes."""
        outcome, outcome_of_command = os.pipe()
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.connect(self.path)
            try:
                socket.send_fds(connection, [json.dumps(request).encode()], [*streams, outcome_of_command])
            finally:
                os.close(outcome_of_command)
            pid = os.read(outcome, 4)
        assert pid, "the server of forked commands is gone"
        return int.from_bytes(pid, "big"), outcome


@contextmanager
def new_server(*modules: str) -> Iterator[Server]:
    """A server whose commands have imported these modules, too. It imports when it is asked for its first command."""
    path = tempfile.mkdtemp(prefix="ast-fork-") + "/commands"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen(128)
        command = [sys.executable, __file__, str(listener.fileno()), *modules]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[listener.fileno()], cwd=ROOT)
    with process:  # the end of its input is its end, also if we are killed; then it removes the folder
        yield Server(path)


SERVERS = {
    "commands": ("tests.docs.docs_pages",),
    "commands of models": ("pydantic_ai.models.openai", "pydantic_ai.direct", "genai_prices"),
}
"""What the servers have imported beside Asterism. The clients of models take seconds."""

_started_elsewhere: dict[str, str] = {}


def use_servers(paths: dict[str, str]) -> None:
    """Use these servers, which another process has started: a worker of pytest-xdist those of the main process."""
    _started_elsewhere.update(paths)


@cache
def shared_server(name: str) -> Server:
    """One of ``SERVERS``, started when it is first asked for. A default name would be another key of the cache: each
    forked worker would start a second server."""
    if name in _started_elsewhere:
        return Server(_started_elsewhere[name])
    stack = ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(new_server(*SERVERS[name]))


class ForkedCommand(subprocess.Popen[str]):
    """``asterism`` with these arguments; ``strict`` makes its warnings errors. Another ``program`` is a module with a
    function ``main``."""

    def __init__(
        self,
        words: list[str],
        *,
        server: Server | None = None,
        strict: bool = False,
        program: str = "asterism.cli.main",
        **options: Any,
    ) -> None:
        self._server, self._strict, self._program = server or shared_server("commands"), strict, program
        super().__init__(words, text=True, **options)

    def _execute_child(self, words: Any, *arguments: Any) -> None:
        cwd, env = arguments[4:6]
        pipes = arguments[9:15]
        stdin, _, _, stdout, _, stderr = pipes
        request = {
            "words": words,
            "folder": str(cwd or os.getcwd()),
            "environment": dict(os.environ if env is None else env),
            "strict": self._strict,
            "program": self._program,
        }
        theirs = [stream if stream != -1 else own for own, stream in enumerate((stdin, stdout, stderr))]
        self.pid, self._outcome = self._server.start(request, theirs)
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        return self.returncode if self.returncode is not None or not self._has_ended(0) else self._read_outcome()

    def _wait(self, timeout: float | None) -> int:
        if self.returncode is None:
            if not self._has_ended(timeout):
                assert timeout is not None
                raise subprocess.TimeoutExpired(self.args, timeout)
            self._read_outcome()
        assert self.returncode is not None
        return self.returncode

    def _has_ended(self, timeout: float | None) -> bool:
        poll = select.poll()
        poll.register(self._outcome, select.POLLIN)
        return bool(poll.poll(None if timeout is None else max(0.0, timeout) * 1000.0))

    def _read_outcome(self) -> int:
        status = os.read(self._outcome, 4)
        assert status, "the keeper of the command is gone"
        os.close(self._outcome)
        self.returncode = os.waitstatus_to_exitcode(int.from_bytes(status, "big"))
        return self.returncode


class ForkedProgram(ForkedCommand):
    """A program of tests that uses Asterism, from its text: what ``python -c`` runs, without the time to import."""

    def __init__(self, text: str, *words: str, **options: Any) -> None:
        super().__init__([text, *words], program=__name__, **options)


def main() -> None:
    """The process of a ``ForkedProgram``."""
    text = sys.argv.pop(1)
    sys.argv[0] = "-c"
    exec(compile(text, "<string>", "exec"), {"__name__": "__main__"})


def run_command(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """``asterism`` with these arguments, to its end; its warnings are errors."""
    with ForkedCommand([*words], strict=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options) as process:
        output, errors = process.communicate()
    return subprocess.CompletedProcess(words, process.returncode, output, errors)


# -- the server, the keeper and the command ----------------------------------------------------------------------------


def serve(listener: socket.socket, modules: list[str]) -> None:
    """Fork for each request; returns only in the process that has become a command, when that has ended."""
    from tests import huge_pages, inherited_signals

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for a keeper
    inherited_signals.keep_to_ourselves()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # in a terminal it is for all processes of the tests
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    poll.register(0, select.POLLIN)
    while all(descriptor != 0 for descriptor, _ in poll.poll()):
        connection, _ = listener.accept()
        if modules:
            import_everything()
            for name in modules:
                importlib.import_module(name)
            modules.clear()
            gc.freeze()
            huge_pages.use_huge_pages()
        text, descriptors, _, _ = socket.recv_fds(connection, _MOST, 8)
        connection.close()
        if text and os.fork() == 0:
            listener.close()
            keep(json.loads(text), descriptors)
            return
        for descriptor in descriptors:
            os.close(descriptor)
    shutil.rmtree(Path(listener.getsockname()).parent)
    os._exit(0)


def keep(request: dict[str, Any], descriptors: list[int]) -> None:
    """Returns only in the process that has become a command, when that has ended."""
    from tests import inherited_signals

    *streams, outcome = descriptors
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the command hears it from its first moment on
    command = os.fork()
    if command == 0:
        os.close(outcome)
        inherited_signals.hear_again()
        _become(request, streams)
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for stream in streams:
        os.close(stream)
    os.write(outcome, command.to_bytes(4, "big"))
    _, status = os.waitpid(command, 0)
    os.write(outcome, status.to_bytes(4, "big"))
    os._exit(0)


def _become(request: dict[str, Any], streams: list[int]) -> None:
    """Run the command as a newly started interpreter would."""
    for own, stream in enumerate(streams):
        os.dup2(stream, own)
    for stream in streams:
        if stream >= len(streams):
            os.close(stream)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    at_once = bool(os.environ.get("PYTHONUNBUFFERED"))
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", closefd=False)  # type: ignore[misc]  # noqa: SIM115
    sys.stdout = sys.__stdout__ = _output(1, "strict", at_once)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _output(2, "backslashreplace", True)  # type: ignore[misc]
    if request["strict"]:
        warnings.simplefilter("error")
    sys.argv = ["asterism", *request["words"]]
    program = importlib.import_module(request["program"])
    try:
        program.main()
    except SystemExit as end:
        if isinstance(end.code, str):  # the interpreter prints it
            raise
        _end(end.code)
    else:
        _end(0)


def _end(code: Any) -> None:
    """End as a Python process does, but leave the modules to the operating system. The interpreter would release each
    object of theirs, which copies every page of memory that the command shares with the server: 0.1 s of processor
    time, where ``--version`` itself takes 0.015 s."""
    threading._shutdown()  # type: ignore[attr-defined]  # wait for threads
    atexit._run_exitfuncs()
    gc.collect()  # says what was not closed
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:  # the interpreter knows what to say about an output that is gone
        sys.exit(code)
    os._exit(code or 0)


def _output(descriptor: int, errors: str, at_once: bool) -> Any:
    lines = at_once or os.isatty(descriptor)
    stream: Any = open(descriptor, "w", encoding="utf-8", errors=errors, closefd=False)  # noqa: SIM115
    stream.reconfigure(line_buffering=lines, write_through=at_once)
    return stream


if __name__ == "__main__":
    sys.path[0] = ""  # as for ``python -c``
    serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])
