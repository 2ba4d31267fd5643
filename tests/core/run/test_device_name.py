"""Names of devices: the plain alphabet, names made of hosts, and names that look alike."""

from __future__ import annotations

import pytest

from asterism.core.run.session import device_name_problem, is_reserved, plain_device_name, skeleton


@pytest.mark.parametrize("name", ["lab-1", "a", "7", "Kitchen_PC.local", "x" * 100])
def test_plain_names_are_possible(name: str) -> None:
    assert device_name_problem(name) is None
    assert plain_device_name(name) == name


@pytest.mark.parametrize(
    "name", ["", " ", "lab-1 ", "-x", ".x", "x" * 101, "a|b", "a/b", "k\u00fcche", "lab\u3164", "a\nb"]
)
def test_other_names_are_refused(name: str) -> None:
    assert repr(name) in str(device_name_problem(name))


def test_a_name_is_made_of_any_text() -> None:
    assert plain_device_name("monitor-Ann's MacBook") == "monitor-Ann-s-MacBook"
    assert plain_device_name("\u3164") == "device"
    assert device_name_problem(plain_device_name(" x" * 100)) is None


def test_names_that_look_alike_have_one_skeleton() -> None:
    assert len({skeleton(name) for name in ("lab-1", "Lab-1", "lab-l", "LAB-I")}) == 1
    assert skeleton("n0de") == skeleton("Node")
    assert skeleton("lab-1") != skeleton("lab-2")


def test_names_of_processes_are_reserved():
    assert [name for name in ("nightly@host", "server-host", "lab-1", "serverhost") if is_reserved(name)] == [
        "nightly@host",
        "server-host",
    ]
