"""Many processes that run the command ``asterism series`` at the same moment.

The commands are run by children of one process that has imported everything, so what they cost is what they do. Each is
a process of its own, with nothing in common with the others but the register. They are all there before the first of
them begins.

As a program: ``series_processes.py COMMANDS.json``: a list of lists of words. Prints a JSON list of outcomes, in order.
Beside those of the command line, the words may be ``series-claims URL SERIES NUMBER…``, for many claims of one process
on a store; and anywhere ``--killed-after SECONDS``, after which the process is killed wherever it is.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple


class Ended(NamedTuple):
    """How a command ended: its code, what it printed, and when, in seconds after all of them began."""

    code: int
    out: str
    err: str
    after: float


def all_at_once(commands: Sequence[Sequence[str]], folder: Path, **environment: str) -> list[Ended]:
    """Run ``asterism`` with each of these words, all at the same moment, and wait for all of them."""
    file = folder / "commands.json"
    file.write_text(json.dumps([list(words) for words in commands]))
    done = subprocess.run(
        [sys.executable, "-W", "error", __file__, str(file)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env={**os.environ, "TMPDIR": str(folder), **environment},  # who is killed leaves something there
    )
    return [Ended(*load) for load in json.loads(done.stdout)]


def _main(file: str) -> None:
    # imported here, once, and not by those who only ask for the processes
    import asterism.cli.series.series_commands
    import asterism.series.git_register
    import asterism.series.store_register
    import asterism.store.url

    commands = json.loads(Path(file).read_text())
    if any("--github" in words for words in commands):
        import asterism.series.github.github_register  # noqa: F401
    with tempfile.TemporaryDirectory() as folder:
        go, start = os.pipe()
        children = [_child(words, go, start, Path(folder) / str(place)) for place, words in enumerate(commands)]
        began = time.monotonic()
        os.close(start)  # which is what all of them wait for
        ended: dict[int, tuple[int, float]] = {}
        while len(ended) < len(children):
            child, status = os.wait()
            ended[child] = (os.waitstatus_to_exitcode(status), time.monotonic() - began)
        answers: list[Any] = []
        for place, child in enumerate(children):
            out, err = (Path(folder) / f"{place}.{name}" for name in ("out", "err"))
            answers.append([ended[child][0], out.read_text(), err.read_text(), ended[child][1]])
    print(json.dumps(answers))


def _child(words: list[str], go: int, start: int, output: Path) -> int:
    child = os.fork()
    if child:
        return child
    code, after = 70, 0.0
    try:
        os.close(start)
        for stream, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{output}.{name}", os.O_WRONLY | os.O_CREAT, 0o600), stream)
        if "--killed-after" in words:
            place = words.index("--killed-after")
            after = float(words[place + 1])
            del words[place : place + 2]
            signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        os.read(go, 1)
        if after:
            signal.setitimer(signal.ITIMER_REAL, after)
        if words[0] == "series-claims":
            _claim_each(*words[1:])
            code = 0
        else:
            from asterism.cli.main import commands

            commands(words)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _claim_each(url: str, name: str, *numbers: str) -> None:
    """Claim for one issue after the other, on one connection; prints what each was told."""
    import asyncio

    from asterism.series.claims import Claim, claim
    from asterism.series.compare_and_swap import RetryOptions
    from asterism.series.store_register import StoreRegister
    from asterism.store.url import open_store

    async def main() -> list[tuple[int, int]]:
        register = StoreRegister(await open_store(url))
        told = []
        try:
            for number in map(int, numbers):
                # as many as there are, and no longer pauses than what is asked for takes
                retry = RetryOptions(jitter=(0.005, 0.1), deadline=None)
                after = (await claim(register, name, Claim(number), retry=retry)).after
                told.append((number, 0 if after.active == number else 75))
        finally:
            await register.close()
        return told

    print(json.dumps(asyncio.run(main())))


if __name__ == "__main__":
    _main(sys.argv[1])
