"""Packages with plug-ins, installed by hand: a module and its metadata in a folder on the path, without a network."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

GREETINGS = '''
from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from asterism import Action, Attempt

STOPPED: list[str] = []


@dataclass(frozen=True)
class Greet(Action):
    """Greet somebody."""

    secrets: ClassVar[tuple[str, ...]] = ("GREETING",)
    starts_processes: ClassVar[bool] = True

    name: str
    times: int = 1

    def problems(self) -> Iterator[str]:
        if self.times < 1:
            yield "times is 1 or more"

    async def execute(self, attempt: Attempt) -> Any:
        words = f"{attempt.secret('GREETING')} {attempt.fill(self.name)}"
        line = 'for i in $(seq $1); do echo "$2"; done'
        return await attempt.run(["/bin/sh", "-c", line, "-", str(self.times), words])


@dataclass(frozen=True)
class Wait(Action):
    async def execute(self, attempt: Attempt) -> Any:
        await asyncio.Event().wait()

    async def cancel(self, attempt: Attempt) -> None:
        STOPPED.append(attempt.identity()["ASTERISM_EPOCH"])
'''

ENTRIES = {"asterism.actions": {"greet": "greetings:Greet", "wait": "greetings:Wait"}}


def install(
    folder: Path, modules: Mapping[str, str], entries: Mapping[str, Mapping[str, str]], name: str = "greetings"
) -> None:
    """Write a package as an installer leaves it in a folder of the path."""
    folder.mkdir(parents=True, exist_ok=True)
    for module, text in modules.items():
        (folder / f"{module}.py").write_text(text)
    metadata = folder / f"{name}-1.2.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
    lines = []
    for group, of in entries.items():
        lines += [f"[{group}]", *(f"{key} = {value}" for key, value in of.items())]
    (metadata / "entry_points.txt").write_text("\n".join(lines))


@pytest.fixture
def greetings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a package with the plug-ins ``greet`` and ``wait``, on the path."""
    folder = tmp_path / "site"
    install(folder, {"greetings": GREETINGS}, ENTRIES)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "greetings", raising=False)
    monkeypatch.setenv("GREETING", "top-secret-hello")
    return folder
