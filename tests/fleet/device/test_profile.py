"""The profile of a device."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from asterism.fleet.device.membership import measure


@pytest.fixture
def power(tmp_path: Path) -> Any:
    def supply(name: str, **files: str) -> Path:
        (tmp_path / "power" / name).mkdir(parents=True)
        for file, text in files.items():
            (tmp_path / "power" / name / file).write_text(f"{text}\n")
        return tmp_path / "power"

    return supply


def energy(power: Path) -> tuple[float | None, bool]:
    profile = measure(power)
    return profile["battery"], profile["plugged"]


def test_a_profile_has_machine_and_load(tmp_path: Path) -> None:
    profile = measure()
    assert profile["os"] == os.uname().sysname.lower()
    assert profile["arch"] == os.uname().machine
    assert profile["python"].count(".") == 2
    assert profile["cores"] >= 1
    assert profile["memory"] > 1 << 20
    assert 0 <= profile["cpu"] <= 1
    assert json.loads(json.dumps(profile)) == profile


def test_load_is_per_core_and_never_above_one(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = measure()["cores"]
    monkeypatch.setattr(os, "getloadavg", lambda: (cores / 2, 0.0, 0.0))
    assert measure()["cpu"] == 0.5
    monkeypatch.setattr(os, "getloadavg", lambda: (100.0 * cores, 0.0, 0.0))
    assert measure()["cpu"] == 1.0

    def unknown() -> None:
        raise OSError

    monkeypatch.setattr(os, "getloadavg", unknown)
    assert measure()["cpu"] == 0.0


def test_a_device_without_a_battery_is_plugged_in(tmp_path: Path, power: Any) -> None:
    assert energy(tmp_path / "nothing") == (None, True)
    assert energy(power("AC", type="Mains", online="0")) == (None, True)


def test_the_profile_of_a_laptop_has_battery_and_plugged(power: Any) -> None:
    power("BAT0", type="Battery", capacity="80", status="Discharging")
    assert energy(power("AC", type="Mains", online="0")) == (0.8, False)


def test_a_laptop_that_is_plugged_in(power: Any) -> None:
    power("BAT0", type="Battery", capacity="80", status="Charging")
    assert energy(power("AC", type="Mains", online="1")) == (0.8, True)


def test_two_batteries_are_averaged_and_a_mouse_is_not_a_device(power: Any) -> None:
    power("BAT0", type="Battery", capacity="50", status="Full", scope="System")
    power("BAT1", type="Battery", capacity="101", status="Unknown")
    assert energy(power("hidpp", type="Battery", capacity="5", status="Discharging", scope="Device")) == (0.75, True)


def test_without_a_mains_supply_the_battery_status_decides_plugged(power: Any) -> None:
    assert energy(power("BAT0", type="Battery", capacity="50", status="Discharging")) == (0.5, False)


def test_an_unreadable_power_supply_is_skipped(power: Any) -> None:
    power("BAT0", type="Battery", capacity="nonsense")
    power("BAT1", type="Battery")
    assert energy(power("X")) == (None, True)
