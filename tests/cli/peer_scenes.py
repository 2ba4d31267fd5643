"""Two or three machines with a store each: commands, and servers as real processes on loopback."""

from __future__ import annotations

import random
import re
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from click.testing import Result

from tests.cli.cli_scenes import heard
from tests.cli.command_scenes import Scene

LISTENING = "listening for peers on "


class House:
    """A folder for each machine, with its store."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __getattr__(self, name: str) -> Scene:
        folder = self._folder / name
        folder.mkdir(exist_ok=True)
        scene = Scene(folder)
        setattr(self, name, scene)
        return scene


def lasting_place() -> str:
    """An address on which a server can listen, stop and listen again: its port is below the ephemeral ports."""
    while True:
        port = random.randrange(10_000, 32_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port), reuse_port=False):
            return f"127.0.0.1:{port}"


@contextmanager
def serving(scene: Scene, place: str = "127.0.0.1:0") -> Iterator[str]:
    """Run `asterism peer serve` as a process; yields its address."""
    with scene.made().process("peer", "serve", "--listen", place) as process:
        yield address_of(process)


def address_of(process: subprocess.Popen[str]) -> str:
    """The address on which a process listens for peers, from its log."""
    line = heard(process, LISTENING)[-1]
    return line.partition(LISTENING)[2].strip()


def invitation(scene: Scene, name: str, url: str, *options: str) -> str:
    return str(scene.json("peer", "invite", name, "--url", url, *options)["invitation"])


def befriend(inviter: Scene, name: str, guest: Scene, url: str, called: str) -> None:
    """Make ``guest`` the peer ``name`` of ``inviter``, whose name at the guest is ``called``."""
    guest.ok("peer", "accept", invitation(inviter, name, url), "--name", called)


def refused(result: Result, *words: str, code: int = 64) -> None:
    """Check that a command failed with one line on standard error."""
    assert (result.exit_code, result.stdout) == (code, ""), result.output
    last = result.stderr.splitlines()[-1 if code == 64 else 0]
    assert last.startswith("Error: ")
    for word in words:
        assert re.search(word, result.stderr), result.stderr
