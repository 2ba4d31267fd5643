"""Actions of plug-ins: found by name, judged, executed and stopped like those of this package."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from asterism import Constellation, EditBatch, EditRejected, LocalDevice, Orchestrator, Result, Task, edits
from asterism.base.plugins import PluginProblem
from asterism.core.errors import DeviceUnavailable
from asterism.core.plan.work_patterns import work_fits
from asterism.core.run.work import Workflow
from asterism.execution import plugin_actions
from asterism.execution.actions import ACTIONS
from asterism.execution.plugin_actions import action_class, check_plugin, plugin_capabilities
from asterism.fleet.policy.device_policy import DevicePolicy, PolicyForbids, Rules
from asterism.orchestrator.roster import Roster
from asterism.planfile import examine
from tests.execution.plugin_packages import ENTRIES, GREETINGS, greetings, install
from tests.fleet.device.device_scenes import Reports, check, execute

__all__ = ["greetings"]
pytestmark = pytest.mark.usefixtures("greetings")

GREET: dict[str, Any] = {"greet": {"name": "{who}"}}


def ran(*tasks: Task, **options: Any) -> Result:
    plan = Constellation("plan")
    for task in tasks:
        plan.add(task)
    return asyncio.run(Orchestrator([LocalDevice("here")], **options).run(plan))


def test_a_task_of_a_plug_in_runs_in_this_process() -> None:
    result = ran(Task("a", plugin={"greet": {"name": "{who}", "times": 2}}, inputs={"who": "Ann"}))
    assert result["a"].value == "top-secret-hello Ann\ntop-secret-hello Ann"


def test_a_run_of_a_plug_in_runs_on_a_device_and_its_output_is_masked() -> None:
    reports = Reports()
    assert execute(Workflow("w", plugin=GREET), {"who": "Ann"}, reports=reports) == "top-secret-hello Ann"
    assert "".join(reports.output).strip() == "[secret] Ann"


def test_work_that_does_not_fit_is_a_failure_with_every_mistake() -> None:
    result = ran(Task("a", plugin={"greet": {"nam": "Ann", "times": "2"}}))
    for text in (
        "greet: times must be a whole number, not '2'",
        "unknown key 'nam'; did you mean 'name'?",
        "the key 'name' is missing",
    ):
        assert text in str(result["a"].error)
    assert str(ran(Task("a", plugin={"greet": {"name": "Ann", "times": 0}}))["a"].error) == "greet: times is 1 or more"


@pytest.mark.virtual_time
async def test_a_timeout_stops_the_work_and_lets_the_plug_in_clean_up() -> None:
    plan = Constellation("plan")
    plan.add(Task("a", plugin={"wait": {}}, timeout=1.0))
    result = await Orchestrator([LocalDevice("here")]).run(plan)
    assert "took longer than its timeout of 1.0 s" in str(result["a"].error)
    assert sys.modules["greetings"].STOPPED == ["1"]


# -- candidates --------------------------------------------------------------------------------------------------------


async def waits_for_a_device() -> str:
    """Why a task of a plug-in that nobody has is not running."""
    plan = Constellation("plan")
    plan.add(Task("a", plugin={"nothing": {}}))
    orchestrator = Orchestrator([LocalDevice("here")], no_device_timeout=60.0)
    running = asyncio.create_task(orchestrator.run(plan))
    try:
        await asyncio.sleep(1.0)
        return str(orchestrator.why("a"))
    finally:
        await orchestrator.cancel("plan")
        await running


@pytest.mark.virtual_time
async def test_a_device_without_the_plug_in_is_no_candidate_and_why_says_so() -> None:
    assert "it needs the plug-in 'nothing', which no device has" in await waits_for_a_device()


@pytest.mark.virtual_time
async def test_ablation_without_the_need_the_work_goes_to_a_device_that_cannot_do_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Roster, "serves", lambda roster, member, lane: True)
    plan = Constellation("plan")
    plan.add(Task("a", plugin={"nothing": {}}))
    result = await Orchestrator([LocalDevice("here")], no_device_timeout=60.0).run(plan)
    assert str(result["a"].error) == "the plug-in 'nothing' is not installed here"


def test_a_device_announces_its_plug_ins_without_importing_them() -> None:
    assert plugin_capabilities() == {"plugin:greet", "plugin:wait"}
    assert "greetings" not in sys.modules


def test_a_workflow_needs_the_plug_in() -> None:
    assert Workflow("w", plugin=GREET).needs == {"plugin:greet"}
    assert Workflow.from_json(Workflow("w", plugin=GREET).to_json()) == Workflow("w", plugin=GREET)


# -- the device policy -------------------------------------------------------------------------------------------------


def judged(**rules: Any) -> DevicePolicy:
    return DevicePolicy(Rules(**rules), "policy.yaml")


def test_a_policy_that_does_not_name_the_plug_in_refuses_it_before_its_import() -> None:
    flow, policy = Workflow("w", plugin=GREET), judged(commands=("*",), secrets=("GREETING",))
    why = "policy.yaml of this device does not allow the plug-in 'greet': see 'plugins' in it"
    assert check(flow, {"who": "Ann"}, policy) == why
    with pytest.raises(PolicyForbids, match="does not allow the plug-in 'greet'"):
        execute(flow, {"who": "Ann"}, policy)
    assert "greetings" not in sys.modules


def test_a_policy_that_names_the_plug_in_allows_it_and_judges_its_secrets() -> None:
    flow = Workflow("w", plugin=GREET)
    assert check(flow, {"who": "Ann"}, judged(plugins=("gr*",), secrets=("GREETING",))) is None
    assert execute(flow, {"who": "Ann"}, judged(plugins=("greet",), secrets=("GREETING",))) == "top-secret-hello Ann"
    with pytest.raises(PolicyForbids, match="read the secret 'GREETING'"):
        execute(flow, {"who": "Ann"}, judged(plugins=("greet",)))


def test_ablation_a_policy_that_does_not_judge_plug_ins_lets_them_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DevicePolicy, "plugin_named", lambda policy, name: None)
    assert execute(Workflow("w", plugin=GREET), {"who": "Ann"}, judged(secrets=("GREETING",))) == "top-secret-hello Ann"


def test_a_secret_that_the_device_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GREETING")
    with pytest.raises(DeviceUnavailable, match="no secret 'GREETING'"):
        execute(Workflow("w", plugin=GREET), {"who": "Ann"})
    assert "the environment has no secret 'GREETING'" in str(
        ran(Task("a", plugin=GREET, inputs={"who": "b"}))["a"].error
    )


# -- edits and plan files ----------------------------------------------------------------------------------------------


async def test_an_edit_with_work_that_does_not_fit_is_rejected() -> None:
    plan, release = Constellation("plan"), asyncio.Event()
    plan.add(Task("a", call=release.wait))
    orchestrator = Orchestrator([LocalDevice("here")])
    running = asyncio.create_task(orchestrator.run(plan))
    await asyncio.sleep(0)
    with pytest.raises(EditRejected, match="greet: the key 'name' is missing") as caught:
        orchestrator.edit("plan", EditBatch((edits.AddTask(Task("b", plugin={"greet": {}})),)))
    assert [violation.rule for violation in caught.value.violations] == ["plugin"]
    orchestrator.edit("plan", EditBatch((edits.AddTask(Task("b", plugin={"greet": {"name": "Ann"}})),)))
    release.set()
    assert (await running)["b"].value == "top-secret-hello Ann"


def of_file(task: str) -> tuple[Any, list[str]]:
    plan, mistakes = examine(f"asterism: 1\ntasks:\n  a:\n    {task}\n", "plan")
    return plan, [mistake.text for mistake in mistakes]


def test_the_name_of_a_plug_in_is_a_key_of_plan_files() -> None:
    plan, mistakes = of_file("greet: {name: Ann}")
    assert mistakes == []
    assert plan.constellation.node("a").task == Task("a", plugin={"greet": {"name": "Ann"}})
    assert of_file("plugin: {greet: {name: Ann}}")[0].constellation.node("a").task.plugin == {"greet": {"name": "Ann"}}


@pytest.mark.parametrize(
    ("task", "text"),
    [
        ("greet: {times: 2}", "greet: the key 'name' is missing"),
        ("greet: Ann", "greet"),
        ("plugin: {other: {}}", "the plug-in 'other' is not installed here, so its work is not checked"),
        ("{greet: {name: Ann}, shell: echo}", "has shell and plugin; a task has one action"),
        ("gret: {name: Ann}", "gret"),
        ("plugin: {Greet: {}}", "must be the name of a plug-in: small letters, digits, '-' and '_', not 'Greet'"),
    ],
)
def test_mistakes_in_plan_files(task: str, text: str) -> None:
    assert any(text in mistake for mistake in of_file(task)[1]), of_file(task)[1]


def test_placeholders_of_a_plan_file_keep_their_types() -> None:
    text = "asterism: 1\nparams: {n: 2}\ntasks:\n  a: {greet: {name: '{item}', times: '{params.n}'}, foreach: [x, y]}\n"
    plan, mistakes = examine(text, "plan")
    assert [mistake.text for mistake in mistakes] == []
    assert plan.constellation.node("a[y]").task.plugin == {"greet": {"name": "y", "times": 2}}


# -- the registry ------------------------------------------------------------------------------------------------------


def test_a_name_that_is_built_in_is_found_without_a_search() -> None:
    program = (
        "import sys\nfrom asterism.execution.actions import ACTIONS\n"
        "[ACTIONS.load(name) for name in ('argv', 'http', 'container')]\n"
        "print('importlib.metadata' in sys.modules, 'pydantic' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"


def test_two_packages_with_one_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "other", {"other": GREETINGS}, {"asterism.actions": {"greet": "other:Greet"}}, "other")
    monkeypatch.syspath_prepend(tmp_path / "other")
    with pytest.raises(PluginProblem, match="greetings and other both have a plug-in 'greet'"):
        ACTIONS.find("greet")
    assert plugin_capabilities() == {"plugin:wait"}


def test_no_package_replaces_a_kind_of_this_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "other", {"other": GREETINGS}, {"asterism.actions": {"argv": "other:Greet"}}, "other")
    monkeypatch.syspath_prepend(tmp_path / "other")
    assert ran(Task("a", argv=("echo", "b")))["a"].value == "b"
    assert "other" not in sys.modules


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("no_such_module:Greet", "the plug-in 'bad' of bad 1.2 cannot be imported: ModuleNotFoundError"),
        ("bad_module:Greet", "the plug-in 'bad' of bad 1.2 cannot be imported: ZeroDivisionError"),
        ("json:dumps", "the plug-in 'bad' is not usable"),
    ],
)
def test_a_plug_in_that_does_not_work(value: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "bad", {"bad_module": "1 / 0\n"}, {"asterism.actions": {"bad": value}}, "bad")
    monkeypatch.syspath_prepend(tmp_path / "bad")
    assert text in str(ran(Task("a", plugin={"bad": {}}))["a"].error)
    assert text in str(check(Workflow("w", plugin={"bad": {}})))
    assert text in str(check_plugin({"bad": {}}))
    with pytest.raises(PluginProblem):
        action_class("bad")


def test_scopes_of_editors_name_plug_ins() -> None:
    task = Task("a", plugin=GREET)
    patterns = ("plugin:greet", "plugin:*", "*", "*:*", "greet", "plugin:other")
    assert [pattern for pattern in patterns if work_fits(task, [pattern])] == ["plugin:greet", "plugin:*", "*"]


def test_the_schema_of_the_work() -> None:
    schema = plugin_actions.action_class("greet").schema()
    assert schema["required"] == ["name"]
    assert schema["additionalProperties"] is False
    assert ENTRIES["asterism.actions"].keys() <= {plugin.name for plugin in ACTIONS}
