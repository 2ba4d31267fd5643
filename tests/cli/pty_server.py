"""Runs commands in pseudo-terminals: a process that has imported everything, and forks for each command.

It reads a line of JSON for each command and answers with one: what came out of the terminal, and the exit code. A
command that goes on for ever is interrupted when it has said what it is waited for.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import pty
import select
import signal
import struct
import sys
import termios
import time
import traceback
from typing import Any

PATIENCE = 30.0
SIZE = (50, 250)  # lines, columns


def run(words: list[str], folder: str, environment: dict[str, str], interrupt_on: str | None) -> dict[str, Any]:
    child, terminal = pty.fork()
    if child == 0:
        _become(words, folder, environment)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", *SIZE, 0, 0))
    told, over = b"", time.monotonic() + PATIENCE
    while True:
        if not select.select([terminal], [], [], max(0.0, over - time.monotonic()))[0]:
            os.kill(child, signal.SIGKILL)
            told += b"\n(it did not end)\n"
        try:
            said = os.read(terminal, 65536)
        except OSError:  # nobody has the other end any more
            said = b""
        if not said:
            break
        told += said
        if interrupt_on is not None and interrupt_on.encode() in told:
            interrupt_on = None
            os.kill(child, signal.SIGINT)
    os.close(terminal)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return {"told": base64.b64encode(told).decode(), "code": code}


def _become(words: list[str], folder: str, environment: dict[str, str]) -> None:
    """The command, in the child: with the streams that Python has in a terminal."""
    code = 70
    try:
        settings = termios.tcgetattr(1)
        settings[1] &= ~termios.OPOST  # what is written is what comes out
        termios.tcsetattr(1, termios.TCSANOW, settings)
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(folder)
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stdout = open(1, "w", encoding="utf-8", buffering=1, closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", encoding="utf-8", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.argv = ["asterism", *words]
        from asterism.cli.main import main

        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


def import_everything() -> None:
    import importlib
    import pkgutil

    import asterism.cli

    for module in pkgutil.walk_packages(asterism.cli.__path__, "asterism.cli."):
        importlib.import_module(module.name)
    for name in ("asterism.fleet.device.agent", "asterism.durable.durable_orchestrator", "asterism.store.sqlite"):
        importlib.import_module(name)


def main() -> None:
    import_everything()
    for line in sys.stdin:
        print(json.dumps(run(**json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
