"""`asterism fleet`: the settings of a fleet."""

from __future__ import annotations

from pathlib import Path

import pytest

from asterism.fleet import settings
from asterism.fleet.fleet import Fleet
from asterism.store.memory import MemoryStore
from asterism.store.protocol import PutRegister
from tests.cli.command_scenes import Scene


def test_settings_are_shown_and_changed(tmp_path: Path) -> None:
    scene = Scene(tmp_path).made()
    assert scene.json("fleet", "show") == {
        "keep": 2_592_000.0,
        "keep_events": 604_800.0,
        "keep_audit": 7_776_000.0,
        "large": 65_536,
        "most": 67_108_864,
        "hold": 90.0,
        "log_limit": 262_144,
        "device_bytes": 1 << 30,
        "credential_bytes": 256 << 20,
        "artifacts": None,
        "lease": 15.0,
        "peer_timeout": 3600.0,
        "peer_runs": 100_000,
        "peer_bytes": 1 << 30,
        "peer_blobs": 10 << 30,
        "notify_command": None,
        "notify_url": None,
        "weights": {"load": 40.0, "connection": 30.0, "rank": 20.0, "capability": 10.0},
    }
    told = scene.json(
        *("fleet", "set", "--keep", "7d", "--large", "10k", "--most", "1G", "--hold", "2m", "--lease", "40"),
        *("--weight", "load=50"),
        *("--weight", "rank=0", "--notify-command", "mail -s 'it failed' ann", "--notify-url", "http://localhost/x"),
    )
    assert told == {
        "keep": 604_800.0,
        "keep_events": 604_800.0,
        "keep_audit": 7_776_000.0,
        "large": 10_240,
        "most": 1 << 30,
        "hold": 120.0,
        "log_limit": 262_144,
        "device_bytes": 1 << 30,
        "credential_bytes": 256 << 20,
        "artifacts": None,
        "lease": 40.0,
        "peer_timeout": 3600.0,
        "peer_runs": 100_000,
        "peer_bytes": 1 << 30,
        "peer_blobs": 10 << 30,
        "notify_command": ["mail", "-s", "it failed", "ann"],
        "notify_url": "http://localhost/x",
        "weights": {"load": 50.0, "connection": 30.0, "rank": 0.0, "capability": 10.0},
    }
    assert scene.json("fleet", "show") == told
    lines = scene.ok("fleet", "set", "--notify-command", "", "--notify-url", "").splitlines()
    assert "keep              runs are deleted 7 d after their end" in lines
    assert "notify_command    none" in lines
    assert scene.json("fleet", "show")["notify_url"] is None


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "No setting is given (example: --keep 30d)."),
        (["--weight", "luck=5"], "there is no weight 'luck'; the weights are capability, connection, load, rank"),
        (["--weight", "load=lots"], "load must be a number, not 'lots'"),
        (["--weight", "load=-1"], "weight load must be a number, 0 or more"),
        (["--notify-url", "ftp://x"], "notify_url must be an http(s) address"),
        (["--notify-command", "'"], "the command line cannot be split into words"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, words: list[str], told: str) -> None:
    result = Scene(tmp_path).made().run("fleet", "set", *words)
    assert (result.exit_code, result.stdout) == (64, "")
    assert told in result.stderr


async def test_a_setting_of_a_later_version_neither_keeps_ours_from_being_changed_nor_gets_lost() -> None:
    async with Fleet(MemoryStore()) as fleet:
        await fleet.store.commit([PutRegister(settings.KEY, {"keep": 60.0, "from_the_future": 1}, None)])
        assert (await fleet.configure(hold=5.0)).hold == 5.0
        register = await fleet.store.register(settings.KEY)
        assert register is not None
        assert (register.value["keep"], register.value["hold"], register.value["from_the_future"]) == (60.0, 5.0, 1)
