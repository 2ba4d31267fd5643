"""The pinned requirements are complete: they are installed with ``--no-deps``, so that pip never resolves anything."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
INSTALLERS = ("Makefile", "Containerfile", ".ci/run", ".github/actions/series/install.sh")
FILES = ("run", "test", "dev", "serve", "github")  # those of the benchmarks are not installed here: make checks them


def pins(name: str) -> list[Requirement]:
    text = (ROOT / "requirements" / f"{name}.txt").read_text("utf-8")
    lines = re.findall(r"^([a-z0-9][^\\\n]*?) *\\$", text, re.MULTILINE)
    return [pin for pin in map(Requirement, lines) if pin.marker is None or pin.marker.evaluate()]


def missing(pinned: list[Requirement]) -> list[str]:
    """What packages among these need, and is not pinned beside them in a version that they can use."""
    versions = {canonicalize_name(pin.name): str(pin.specifier).removeprefix("==") for pin in pinned}
    problems = []
    for pin in pinned:
        try:
            needs = requires(pin.name) or []
        except PackageNotFoundError:
            continue  # of an extra that this environment does not have
        for need in map(Requirement, needs):
            if need.marker and not any(need.marker.evaluate({"extra": extra}) for extra in ("", *pin.extras)):
                continue
            version = versions.get(canonicalize_name(need.name))
            if version is None or not need.specifier.contains(version, prereleases=True):
                problems.append(f"{pin.name} needs {need}")
    return problems


@pytest.mark.parametrize("name", FILES)
def test_what_a_pinned_package_needs_is_pinned_too(name: str) -> None:
    assert not missing(pins(name))


def test_a_pin_that_is_missing_or_too_old_is_found() -> None:
    without = [pin for pin in pins("test") if pin.name != "pluggy"]
    assert any("needs pluggy" in problem for problem in missing(without))
    assert any("needs pluggy" in problem for problem in missing([*without, Requirement("pluggy==0.1")]))


@pytest.mark.parametrize("installer", INSTALLERS)
def test_pins_are_installed_as_they_are(installer: str) -> None:
    text = (ROOT / installer).read_text("utf-8").replace("\\\n", " ")
    installs = [line for line in text.splitlines() if "--require-hashes" in line]
    assert installs
    assert all("--no-deps" in line for line in installs)


def test_the_extra_all_has_every_extra_that_is_for_users() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    [everything] = extras["all"]
    assert Requirement(everything).extras == extras.keys() - {"all", "test", "dev", "bench"}
