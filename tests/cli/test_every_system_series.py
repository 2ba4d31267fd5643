"""Commands on series do the same on a SQLite file, on PostgreSQL and on a server: same output, same exit code."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from asterism.core.series.machine import Series
from asterism.fleet.fleet import Fleet
from asterism.series.store_register import StoreRegister
from tests.cli.command_scenes import Scene
from tests.cli.server_thread import server_thread

NAME = "RFC-093"


class Row(NamedTuple):
    """A command after others; its exit code, a fact in its output, and one about the series in the end."""

    words: str
    code: int
    fact: str
    active: int | None
    queue: tuple[int, ...] = ()
    before: tuple[str, ...] = ()
    revision: int = 1


TWO = (f"claim {NAME} --issue 1", f"claim {NAME} --issue 2")
THREE = (*TWO, f"claim {NAME} --issue 3")
PAUSED = (*TWO, f"pause {NAME} --reason holidays")

ROWS = {
    "claim": Row(f"claim {NAME} --issue 1", 0, f"claimed {NAME} for #1 (revision 1)", 1),
    "claim, queued": Row(f"claim {NAME} --issue 2", 75, "it is number 1 of 1 in the queue", 1, (2,), TWO[:1], 2),
    "claim --json": Row(f"claim {NAME} --issue 1 --lease 1h --json", 0, '"status": "claimed"', 1),
    "claim --renew": Row(
        f"claim {NAME} --issue 1 --lease 2h --renew", 0, "renewed the lease of #1", 1, (), (f"{TWO[0]} --lease 1h",), 2
    ),
    "claim --dry-run": Row(f"claim {NAME} --issue 2 --dry-run", 75, "would queue #2", 1, (), TWO[:1]),
    "claim, no lease": Row(f"claim {NAME} --issue 1 --lease 0s", 64, "A lease takes at least", None, (), (), 0),
    "claim, bad name": Row("claim .. --issue 1", 0, "claimed .. for #1", None, (), (), 0),
    "claim --by": Row(
        f"claim {NAME} --issue 1 --by bob", 75, f"#1 of {NAME} belongs to ann, for", 1, (), (f"{TWO[0]} --by ann",)
    ),
    "next": Row(f"next {NAME} --by bob", 0, f"bob took #2 of {NAME}", 2, (), (*TWO, f"release {NAME} --issue 1"), 4),
    "next, held": Row("next --by bob", 75, "held by ann for", 1, (2,), (f"{TWO[0]} --by ann", TWO[1]), 2),
    "next, empty": Row("next --by bob --wait", 75, "there is no issue in any series", None, (), (), 0),
    "release --by": Row(
        f"release {NAME} --issue 1 --by bob", 75, f"#1 of {NAME} belongs to ann", 1, (), (f"{TWO[0]} --by ann",)
    ),
    "status": Row(f"status {NAME}", 0, "queue    #2", 1, (2,), TWO, 2),
    "status --json": Row(f"status {NAME} --json", 0, '"active_issue": 1', 1, (2,), TWO, 2),
    "status, all": Row("status", 0, "SERIES", 1, (2,), TWO, 2),
    "status, none": Row(f"status {NAME} --json", 0, '"exists": false', None, (), (), 0),
    "release": Row(f"release {NAME} --issue 1 --reason done", 0, "#2 is now active", 2, (), TWO, 3),
    "release --no-promote": Row(f"release {NAME} --issue 1 --no-promote", 0, "no issue is active", None, (2,), TWO, 3),
    "release, absent": Row(f"release {NAME} --issue 9", 0, f"#9 is not in {NAME}", 1, (2,), TWO, 2),
    "release, no series": Row("release other --issue 9", 0, "nothing to change", None, (), (), 0),
    "promote": Row(f"promote {NAME}", 0, "nothing to promote: #1 is active", 1, (2,), TWO, 2),
    "pause": Row(f"pause {NAME} --reason holidays", 0, f"paused {NAME}; #1 stays active", 1, (2,), TWO, 3),
    "resume": Row(f"resume {NAME}", 0, f"resumed {NAME}; #1 is active", 1, (2,), PAUSED, 4),
    "front": Row(f"front {NAME} --issue 3", 0, "moved #3 to the head", 1, (3, 2), THREE, 4),
    "front, absent": Row(f"front {NAME} --issue 9", 64, "#9 is not in the queue", 1, (2,), TWO, 2),
    "rebuild": Row(f"rebuild {NAME} --issue 7 --issue 8 --active 7", 0, "#7 is active", 7, (8,), TWO, 3),
    "rebuild, paused": Row(f"rebuild {NAME} --issue 7 --active 7", 64, "resume it before", 1, (2,), PAUSED, 3),
    "history": Row(f"history {NAME}", 0, "pause (holidays) by ann", 1, (2,), PAUSED, 3),
    "history --json": Row(
        f"history {NAME} --limit 1 --json", 0, '"message": "pause (holidays) by ann"', 1, (2,), PAUSED, 3
    ),
    "history, none": Row("history other", 0, "has no changes yet", None, (), (), 0),
}

MASKS = (
    (re.compile(r"(sqlite|postgresql|http)://\S+?(?= yet|: nothing|$)", re.M), "STORE"),
    (re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?Z?"), "TIME"),
    (re.compile(r'"(at|age|now)": [\d.]+'), r'"\1": TIME'),
    (re.compile(r'"claim": "[0-9a-f]{32}"'), '"claim": "ID"'),
    (re.compile(r'"token": "[\d.]+"'), '"token": "TOKEN"'),
    (re.compile(r"\bfor [\d.]+ \w+"), "for TIME"),
    (re.compile(r" +"), " "),
    (re.compile(r"(?<=#1 )[\d.]+ m?s"), "TIME"),
)


def masked(text: str) -> str:
    for pattern, instead in MASKS:
        text = pattern.sub(instead, text)
    return text


@pytest.fixture
def systems(tmp_path: Path, emptied_postgres_url: str) -> Iterator[dict[str, tuple[Scene, dict[str, str]]]]:
    """A scene for each system, and the environment in which its commands reach it."""
    with ExitStack() as stack:
        scenes = {}
        for name in ("sqlite", "postgres", "server"):
            folder = tmp_path / name
            folder.mkdir()
            scene = Scene(folder)
            scenes[name] = (scene, {"ASTERISM_STORE": scene.url})
        scenes["postgres"][0].url = emptied_postgres_url
        scenes["postgres"][1]["ASTERISM_STORE"] = emptied_postgres_url
        server = stack.enter_context(server_thread(scenes["server"][0].url))
        scenes["server"][1].update(ASTERISM_STORE=server.url, ASTERISM_TOKEN=server.token("series"))
        for scene, _ in scenes.values():
            scene.env["ASTERISM_STORE"] = scene.url
        yield scenes


PARAMETERS = [
    pytest.param(row, id=name, marks=() if name.isalpha() or name == "claim, queued" else pytest.mark.long)
    for name, row in ROWS.items()
]
"""In `make test` one row of each command, and the claim that does not win."""


@pytest.mark.parametrize("row", PARAMETERS)
def test_a_command_does_the_same_everywhere(row: Row, systems: dict[str, tuple[Scene, dict[str, str]]]) -> None:
    printed = {}
    for name, (scene, env) in systems.items():
        scene.made()
        for words in row.before:
            assert scene.run("series", *words.split(), **env).exit_code in (0, 75)
        result = scene.run("series", *row.words.split(), **env)
        assert result.exit_code == row.code, (name, result.output)
        assert row.fact in result.output, (name, result.output)
        printed[name] = (masked(result.stdout), masked(result.stderr))
        assert state_of(scene) == (row.active, row.queue, row.revision), name
    assert printed["sqlite"] == printed["postgres"] == printed["server"]


def state_of(scene: Scene) -> tuple[object, tuple[object, ...], int]:
    async def read(fleet: Fleet) -> Series:
        snapshot = await StoreRegister(fleet.store, owned=False).read(NAME)
        return Series.from_text(snapshot.text, NAME)

    series = scene.ask(read)
    return series.active, series.queue, series.revision


def test_metrics_are_written_at_a_server_too(tmp_path: Path) -> None:
    scene, file = Scene(tmp_path), tmp_path / "metrics.json"
    with server_thread(scene.url) as server:
        env = {"ASTERISM_STORE": server.url, "ASTERISM_TOKEN": server.token("series")}
        for number, code in ((1, 0), (2, 75)):
            words = ("series", "claim", NAME, "--issue", str(number), "--metrics", str(file))
            assert scene.run(*words, **env).exit_code == code
        refused = scene.run("series", "pause", NAME, "--by", "bob", **env)
        assert refused.exit_code == 64
        assert "--by has no effect at a server" in refused.stderr
    assert '"duplicate_prevented": 1' in json.dumps(json.loads(file.read_text()))
