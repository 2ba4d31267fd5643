"""The tables of the reference name everything that is there, with its default: they cannot drift from the code."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator, Mapping
from typing import Any

import click
import pytest

import asterism
from asterism import AsterismError, LocalDevice, Orchestrator, Result, Task
from asterism.cli import main
from asterism.cli.plan.plan_commands import WAITS
from asterism.core.plan import edits
from asterism.core.plan.constellation import ConstellationView, TaskView
from asterism.core.plan.status import EXIT_CODES, TERMINAL
from asterism.core.record import asdict
from asterism.orchestrator.events import ConstellationEvent, DeviceEvent, EditEvent, TaskEvent
from asterism.orchestrator.options import Options
from asterism.planfile import json_schema
from tests.docs import command_tables
from tests.docs.command_tables import OF_A_FLEET
from tests.docs.docs_pages import ROOT

SOURCE = ROOT / "src" / "asterism"


def page(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def section(text: str, heading: str) -> str:
    """What stands under a heading, up to the next one of its level."""
    level = heading.partition(" ")[0]
    match = re.search(rf"^{re.escape(heading)}$(.*?)(?=^{level} |\Z)", text, re.MULTILINE | re.DOTALL)
    assert match is not None, f"there is no heading {heading!r}"
    return match[1]


def rows(text: str) -> Iterator[list[str]]:
    """The rows of all tables, without their heads, cell by cell."""
    lines = text.splitlines()
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if line.startswith("|") and not line.startswith("| ---") and not following.startswith("| ---"):
            yield [cell.strip() for cell in line.strip("|").split(" | ")]


def first_names(text: str) -> set[str]:
    """The names in the first column of all tables, without what stands in brackets after them."""
    return {re.split(r"[ (=]", name)[0] for row in rows(text) for name in re.findall(r"`([^`]+)`", row[0])}


def public(kind: type) -> set[str]:
    return {name for name in vars(kind) if not name.startswith("_")}


API = page("docs/reference/python-api.md")
EDITS = page("docs/reference/edits.md")
EVENTS = page("docs/reference/events.md")
COMMANDS = page("docs/reference/command-line.md")
PLAN_FILE = page("docs/reference/plan-file.md")


def test_every_exported_name_is_told() -> None:
    missing = [name for name in asterism.__all__ if not re.search(rf"\b{name}\b", API)]
    assert not missing


def test_every_field_of_a_task_is_told_with_its_default() -> None:
    told = {row[0].strip("`"): row[1].strip("`") for row in rows(section(API, "## Task"))}
    assert list(told) == [*Task.__struct_fields__]
    blank = Task("blank")
    for name in list(told)[1:]:
        value = getattr(blank, name)
        written = "normal" if name == "priority" else dict(value) if isinstance(value, Mapping) else value
        assert told[name] == repr(written).replace("'", '"'), name


def test_every_parameter_of_the_orchestrator_is_told_with_its_default() -> None:
    defaults = {"devices": (), "options": None, **asdict(Options())}
    told = {row[0].strip("`"): row[1].strip("`") for row in rows(section(API, "## Orchestrator")) if len(row) == 3}
    shown = {name: repr(default).replace("'", '"') for name, default in defaults.items()}
    assert told == {**shown, "conditions": "CEL"}
    assert {*inspect.signature(Orchestrator).parameters} == {"devices", "options", "fields"}


def test_every_method_of_the_orchestrator_is_told() -> None:
    used_by_the_runtime = {"wake", "ended", "has_room", "rest"}
    told = section(API, "## Orchestrator")
    names = public(Orchestrator) - used_by_the_runtime
    missing = [name for name in names if f"{name}(" not in told and f"`{name}`" not in told]
    assert not missing


@pytest.mark.parametrize(
    ("kind", "heading"), [(TaskView, "## Constellation"), (ConstellationView, "## Editors"), (Result, "## Result")]
)
def test_every_member_of_what_is_read_is_told(kind: type, heading: str) -> None:
    told = section(API, heading)
    assert not [name for name in public(kind) if not re.search(rf"`(?:\w+\.)?{name}\b", told)]


def test_every_parameter_of_a_local_device_is_told() -> None:
    told = section(API, "## Devices")
    assert not [name for name in inspect.signature(LocalDevice).parameters if f"{name}" not in told]


def test_every_edit_is_told() -> None:
    told = section(EDITS, "## The edits")
    assert len(edits.EDITS) == 8
    for op, kind in edits.EDITS.items():
        assert f"`{kind.__name__}(" in told
        assert f'"op": "{op}"' in told


def test_every_rule_is_told() -> None:
    broken = re.compile(r"(?:Violation\(\s*(?:None|[\w.]+),|violate\(\s*\w+,|_Refused\(|refuse\()\s*\"(\w+)\"")
    there = {rule for path in SOURCE.rglob("*.py") for rule in broken.findall(path.read_text("utf-8"))}
    assert first_names(section(EDITS, "## Rules")) | {"progress"} == there


@pytest.mark.parametrize("kind", [TaskEvent, ConstellationEvent, EditEvent, DeviceEvent])
def test_every_field_of_an_event_is_told(kind: Any) -> None:
    told = section(EVENTS, f"## {kind.__name__}")
    assert not [name for name in kind.__struct_fields__[3:] if f"`{name}`" not in told]


def test_every_kind_of_event_is_told() -> None:
    published = re.compile(r'"((?:task|constellation|cycle|edit|editor|device)_[a-z_]+|stuck|no_device)"')
    sources = [path.read_text("utf-8") for path in (SOURCE / "orchestrator").glob("*.py")]
    there = {kind for source in sources for kind in published.findall(source)}
    there |= {f"task_{status}" for status in TERMINAL} | {f"constellation_{state}" for state in EXIT_CODES}
    told = first_names(EVENTS.partition("## TaskEvent")[2])
    assert told == there - {"edit_on", "task_id", "cycle_id"}


def test_every_error_is_in_the_tree_at_its_place() -> None:
    tree = page("docs/reference/errors.md")
    for module in pkgutil.walk_packages(asterism.__path__, "asterism."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    missing = []
    stack: list[tuple[type, int]] = [(AsterismError, 0)]
    while stack:
        kind, depth = stack.pop()
        if not kind.__module__.startswith("asterism"):
            continue
        shown = re.search(rf"^([│├└─ ]*){kind.__name__}\b", tree, re.MULTILINE)
        if shown is None or len(shown[1]) != 4 * depth:
            missing.append(kind.__name__)
        stack += [(child, depth + 1) for child in kind.__subclasses__()]
    assert not missing


SHORT_FORMS = {"resume": "plan resume"}
LEAVES = {name: command for name, command in command_tables.LEAVES.items() if name not in SHORT_FORMS}
assert all(command_tables.LEAVES[short] is LEAVES[full] for short, full in SHORT_FORMS.items())


@pytest.mark.parametrize("name", LEAVES)
def test_every_option_of_a_command_is_told(name: str) -> None:
    [heading] = re.findall(rf"^## asterism {name}(?: PLAN\.YAML)?$", COMMANDS, re.MULTILINE)
    params = [param for param in LEAVES[name].params if isinstance(param, click.Option)]
    options = {option for param in params for option in (*param.opts, *param.secondary_opts)} - {"--help"}
    told = first_names(section(COMMANDS, heading))
    assert told == (options - OF_A_FLEET if options >= OF_A_FLEET else options)


def test_no_command_is_told_that_is_gone() -> None:
    told = re.findall(r"^## asterism ([a-z -]+?)(?: PLAN\.YAML)?$", COMMANDS, re.MULTILINE)
    assert sorted(told) == sorted(LEAVES)
    assert first_names(section(COMMANDS, "## Commands on a fleet")) == OF_A_FLEET


def test_every_exit_code_is_told() -> None:
    there = {*EXIT_CODES.values(), main.UNUSABLE, main.OUT_OF_REACH, main.CANCELLED, WAITS}
    assert {row[0] for row in rows(section(COMMANDS, "## Exit codes"))} == {*map(str, there)}


@pytest.mark.parametrize(
    ("shape", "heading"),
    [
        ("Plan", "## The file"),
        ("Device", "## A device"),
        ("Parameter", "## A parameter"),
        ("Defaults", "## Defaults"),
        ("Over", "## Foreach"),
        ("Unchanged", "## Skip if unchanged"),
        ("Task", "## A task"),
        ("Terms", "## After"),
        ("Wanted", "## Device"),
        ("Request", "## Http"),
    ],
)
def test_every_key_of_a_plan_file_is_told(shape: str, heading: str) -> None:
    schema = json_schema()
    properties = (schema if shape == "Plan" else schema["$defs"][shape])["properties"]
    assert first_names(section(PLAN_FILE, heading)) == set(properties)


def test_every_path_in_the_architecture_exists() -> None:
    """``core/plan/assignment_lock.py`` is a module of the package, ``tests/test_tidy.py`` a file of the repository; a
    bare ``checks.py`` is in the folder of the path before it, and ``migrations/`` a folder somewhere in the package."""
    folder, missing = SOURCE, []
    for name in re.findall(r"`([\w/]+/|[\w/]*\w+\.(?:py|md))`", page("ARCHITECTURE.md")):
        places = SOURCE.rglob(name.rstrip("/")) if name.endswith("/") else [SOURCE / name, ROOT / name, folder / name]
        existing = [path for path in places if path.exists()]
        if existing:
            folder = existing[0].parent
        else:
            missing.append(name)
    assert not missing


def test_every_package_in_the_architecture_exists_and_none_is_missing() -> None:
    told = {name for row in rows(section(page("ARCHITECTURE.md"), "## The packages")) for name in row[0].split(", ")}
    told = {name.strip("`") for name in told}
    there = {path.parent.relative_to(SOURCE).as_posix() for path in SOURCE.glob("*/__init__.py")}
    assert {name.partition("/")[0] for name in told} == there
    assert not [name for name in told if not (SOURCE / name).is_dir()]


def test_the_changelog_has_the_version() -> None:
    assert f"## [{asterism.__version__}]" in page("CHANGELOG.md")
