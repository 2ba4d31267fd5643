"""``asterism event``: the same on a SQLite file, on PostgreSQL and on a server."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.system_scenes import Names, Row, SystemScene, rows_and_systems, run_everywhere


def paid(scene: SystemScene) -> Names:
    """An event with a key."""
    scene.ok("event", "send", "paid", "--data", '{"amount": 42}', "--key", "k")
    return {}


EVENTS = (
    Row("event send paid --data 5", "Event 1 'paid' sent."),
    Row("event send paid --key k", "Event 1 'paid' was sent before.", paid),
    Row("event send refunded --key k --json", '"number": 2', paid),
    Row("event send ' '", "the name of an event has 1 to 200 printable characters", code=64),
    Row("event list", "There are no events. Send one with: asterism event send NAME --data JSON"),
    Row("event list", '{{"amount": 42}}', paid),
    Row("event list paid --json", '"taken_by": []', paid),
    Row("event list other --json", "[]", paid),
)


@rows_and_systems(EVENTS, others=pytest.mark.long)
def test_events(row: Row, systems: tuple[str, ...], tmp_path: Path, request: pytest.FixtureRequest) -> None:
    run_everywhere(row, systems, tmp_path, request)
