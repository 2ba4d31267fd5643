"""Containers of the stand-in engine: what is there, and what the last one was started with."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from asterism.base import operating_system
from asterism.execution.containers import ENGINE_VARIABLE
from tests.process_scenes import soon_async

STAND_IN = Path(__file__).with_name("stand_in_engine.py")


class Engine:
    """The stand-in, as a command with the name of an engine."""

    def __init__(self, folder: Path, name: str = "podman") -> None:
        self.state, self.path = folder / "containers", folder / "bin" / name
        self.state.mkdir()
        self.path.parent.mkdir()
        command = f"STAND_IN_STATE={shlex.quote(str(self.state))} exec {shlex.quote(sys.executable)} -S -E"
        self.path.write_text(f'#!/bin/sh\n{command} {shlex.quote(str(STAND_IN))} "$@"\n')
        self.path.chmod(0o755)

    def running(self) -> list[dict[str, Any]]:
        return [json.loads(file.read_text()) for file in self.state.glob("*.json")]

    def last(self) -> dict[str, Any]:
        """What the last container was started with."""
        return json.loads((self.state / "last").read_text())  # type: ignore[no-any-return]

    async def started(self) -> dict[str, Any]:
        """The container, once it runs."""
        await soon_async(lambda: bool(self.running()))
        [container] = self.running()
        return container

    async def gone(self, container: dict[str, Any]) -> None:
        """Wait until the process of a container has ended and its record is removed."""
        await soon_async(lambda: not is_alive(container["pid"]) and not self.running())

    def close(self) -> None:
        for container in self.running():
            operating_system.signal_group(container["pid"], operating_system.KILL)


def is_alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """The engine of this machine is the stand-in."""
    made = Engine(tmp_path)
    monkeypatch.setenv(ENGINE_VARIABLE, str(made.path))
    yield made
    made.close()
