"""The pages about fleets name every setting, notice, parameter, variable and name of a profile there is."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from functools import cache

import pytest

from asterism import DeviceAgent, DurableOrchestrator, Fleet, Query, Settings
from asterism.core.record import encode
from asterism.core.run.run import Owner
from asterism.core.run.session import Session
from asterism.core.schedule.tick_values import VARIABLES
from asterism.execution.command_inputs import FILE_PREFIX
from asterism.execution.task_inputs import VARIABLE_PREFIX
from asterism.fleet import coordinator
from asterism.fleet.device.functions import CurrentRun
from asterism.fleet.device.membership import measure
from asterism.fleet.policy.device_policy import Rules
from tests.docs.docs_pages import ROOT
from tests.docs.test_reference import API, SOURCE, first_names, page, public, rows, section

SETTINGS = page("docs/reference/settings.md")
NOTICES = page("docs/reference/notices.md")
POLICY = page("docs/reference/policy-file.md")
FAILURES = page("docs/explanation/failure-model.md")


def told_with_default(text: str) -> dict[str, str]:
    return {row[0].strip("`"): row[1].strip("`") for row in rows(text) if len(row) == 3}


def shown(value: object) -> str:
    return repr(value).replace("'", '"')


def test_every_setting_is_told_with_its_default() -> None:
    told = told_with_default(SETTINGS)
    assert list(told) == [*Settings.__struct_fields__]
    assert told == {name: shown(value) for name, value in encode(Settings()).items()}


def test_every_kind_of_notice_is_told_and_whether_people_are() -> None:
    written = re.compile(r'(?:Notice\(\s*[^,]+,|\._leave_notice\()\s*"([a-z_]+)"')
    there = {
        kind
        for room in ("fleet", "peers", "durable", "api", "server", "gateway", "models", "agents", "mcp")
        for path in (SOURCE / room).rglob("*.py")
        for kind in written.findall(path.read_text("utf-8"))
    }
    told = {row[0].strip("`"): row[-1] for row in rows(NOTICES)}
    assert told.keys() == there
    assert {kind for kind, word in told.items() if word == "yes"} == coordinator.DELIVERED_KINDS


def test_every_key_of_a_policy_is_told_with_its_default() -> None:
    told = told_with_default(POLICY.partition("## Patterns")[0])
    assert told == {field.name: shown(field.default) for field in fields(Rules)}


def test_every_parameter_of_a_device_is_told_with_its_default() -> None:
    told = told_with_default(section(API, "## DeviceAgent"))
    parameters = inspect.signature(DeviceAgent).parameters.values()
    assert list(told) == [parameter.name for parameter in parameters]
    for parameter in parameters:
        default = parameter.default
        if default is inspect.Parameter.empty:
            assert told[parameter.name] == "required"
        else:
            written = default.__name__ if callable(default) else shown(default)
            assert told[parameter.name] == written, parameter.name


def test_every_parameter_of_a_durable_orchestrator_is_told_with_its_default() -> None:
    told = told_with_default(section(API, "## DurableOrchestrator"))
    parameters = [
        declared for declared in inspect.signature(DurableOrchestrator).parameters.values() if declared.name != "fields"
    ]
    assert list(told) == [parameter.name for parameter in parameters]
    for parameter in parameters[1:]:
        written = parameter.default.__name__ if callable(parameter.default) else shown(parameter.default)
        assert told[parameter.name] == written, parameter.name


def test_every_member_of_a_fleet_is_told() -> None:
    told = section(API, "## Fleet")
    names = (public(Fleet) | {"workflows", "store"}) - {
        "executes_here",
        "files",
        "place",
        "by_whom",
        "named",
        "plan_created",
        "cancelled_count",
    }  # which are for the other rooms
    assert not [name for name in names if not re.search(rf"(?:\b{name}\(|`{name}`)", told)]


def test_every_criterion_of_a_query_is_told() -> None:
    told = section(API, "## Fleet")
    assert not [name for name in Query.__struct_fields__ if not re.search(rf"`{name}\b", told)]


def test_every_member_of_what_a_function_is_told_with_is_told() -> None:
    told = section(API, "## DeviceAgent")
    names = public(CurrentRun) - {"stop", "over"} | {"id", "epoch", "attempt", "progress"}  # those two are the device's
    assert not [name for name in names if not re.search(rf"`{name}\b", told)]


def test_every_variable_of_a_command_is_told() -> None:
    files = [SOURCE / "fleet" / "device" / name for name in ("executor.py", "run_inputs.py", "process_records.py")]
    files.append(SOURCE / "core" / "run" / "run_label.py")
    there = {name for file in files for name in re.findall(r'"(ASTERISM_[A-Z]+)"', file.read_text("utf-8"))}
    there |= set(VARIABLES.values())
    told = section(page("docs/how-to/runs.md"), "## The environment of a command")
    assert there
    inputs = {f"{VARIABLE_PREFIX}<name>", f"{FILE_PREFIX}<name>"}
    assert {name for name in first_names(told) if name.startswith("ASTERISM_")} == there | inputs


def test_every_name_of_a_profile_is_told() -> None:
    session = Session("s", "laptop", 0.0, profile=measure())
    assert session.owner == Owner("laptop", "s")
    told = first_names(section(page("docs/how-to/choose-devices.md"), "## The profile"))
    assert told == set(session.expression_names())


FILES = [*(ROOT / "tests").rglob("*.py")]


@cache
def names_of_tests() -> set[str]:
    return {name for path in FILES for name in re.findall(r"def (test_\w+)\(", path.read_text("utf-8"))}


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(test_\w+)`", FAILURES))))
def test_what_shows_a_fault_is_there(name: str) -> None:
    assert name in names_of_tests()


def test_the_track_record_names_tests_and_files_that_exist_and_no_bug_twice() -> None:
    told = page("docs/track-record.md")
    there = names_of_tests() | {path.stem for path in FILES}
    assert not [name for name in re.findall(r"`(test_\w+)", told) if name not in there]
    assert not [name for name in re.findall(r"\btests/[\w/.]+\w", told) if not (ROOT / name).exists()]
    bugs = [row[0] for row in rows(told)]
    assert not {bug for bug in bugs if bugs.count(bug) > 1}
