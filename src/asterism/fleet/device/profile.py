"""The profile of a device, as its machine measures it: system, cores and load, memory, battery.

It is sent with each heartbeat. Rules of devices and workflows are expressions over it (acceptance.py).
"""

from __future__ import annotations

import os
import platform
from functools import lru_cache
from pathlib import Path
from typing import Any

from asterism.base import operating_system

POWER = Path("/sys/class/power_supply")


def measure(power: Path = POWER) -> dict[str, Any]:
    """Measure the profile: ``os``, ``arch``, ``python``; ``cores`` that this process may use, and ``cpu``, the share of
    them in use in 0…1; ``memory`` in bytes; ``battery`` in 0…1, None if there is none or it is not known; ``plugged``,
    whether it is connected to power."""
    battery, plugged = _energy(power)
    constants = _constants()
    cpu = min(1.0, (operating_system.load_average() or 0.0) / constants["cores"])
    return {**constants, "cpu": round(cpu, 3), "battery": battery, "plugged": plugged}


@lru_cache(maxsize=1)
def _constants() -> dict[str, Any]:
    """The part that does not change."""
    return {
        "os": platform.system().lower(),
        "arch": platform.machine(),
        "python": platform.python_version(),
        "cores": _cores(),
        "memory": operating_system.physical_memory(),
    }


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0)) or 1
    return os.cpu_count() or 1


def _energy(power: Path) -> tuple[float | None, bool]:
    """How full the batteries are, and whether the machine is plugged in. A machine without a battery of its own is
    plugged in; the battery of a mouse does not count."""
    charges, lines, draining = [], [], False
    try:
        supplies = sorted(power.iterdir())
    except OSError:
        supplies = []
    for supply in supplies:
        kind = _word(supply, "type")
        if kind == "Battery" and _word(supply, "scope") != "Device":
            charge = _word(supply, "capacity")
            if charge.isdigit():
                charges.append(min(int(charge), 100) / 100)
                draining = draining or _word(supply, "status") == "Discharging"
        elif kind in ("Mains", "USB", "Wireless"):
            lines.append(_word(supply, "online") not in ("", "0"))
    if not charges:
        return None, True
    return round(sum(charges) / len(charges), 3), any(lines) if lines else not draining


def _word(supply: Path, name: str) -> str:
    try:
        return (supply / name).read_text(errors="replace").strip()
    except OSError:
        return ""
