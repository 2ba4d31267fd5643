"""``asterism plugins``, and plug-ins that commands use: editors, stores, notifiers and kinds of actions."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from asterism import StoreError
from asterism.base.plugins import PluginProblem
from asterism.fleet.notifiers import Delivery, notify
from asterism.fleet.policy.device_policy import DevicePolicy, PolicyForbids, Rules
from asterism.store.memory import MemoryStore
from asterism.store.url import open_store
from tests.cli.command_scenes import Scene
from tests.execution.plugin_packages import greetings, install

__all__ = ["greetings"]

OTHERS = """
from asterism.store import MemoryStore, StoreError
from asterism.core.plan.edits import AddTask
from asterism.core.plan.task import Task

async def opened(url, *, create):
    if not create:
        raise StoreError("closed")
    return MemoryStore()

def repair(view, events):
    return [AddTask(Task("again", argv=["echo", "again"]))] if "again" not in view else None

TOLD = []

async def tell(delivery):
    TOLD.append(delivery.notice["text"])
"""

ENTRIES = {
    "asterism.stores": {"drawer": "others:opened"},
    "asterism.editors": {"repair": "others:repair"},
    "asterism.notifiers": {"pager": "others:tell"},
    "asterism.actions": {"argv": "greetings:Greet", "broken": "no_such_module:Thing"},
}


@pytest.fixture
def others(tmp_path: Path, greetings: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "more"
    install(folder, {"others": OTHERS}, ENTRIES, "others")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", f"{folder}:{greetings}")
    monkeypatch.delitem(sys.modules, "others", raising=False)
    return folder


def listed(scene: Scene) -> dict[tuple[str, str, str], dict[str, Any]]:
    return {(line["kind"], line["name"], line["package"]): line for line in scene.json("plugins")}


def test_what_is_there_and_what_each_may_do(tmp_path: Path, others: Path) -> None:
    lines = listed(Scene(tmp_path))
    greet = lines["action", "greet", "greetings"]
    assert (greet["version"], greet["place"], greet["value"]) == ("1.2", str(tmp_path / "site"), "greetings:Greet")
    assert (greet["secrets"], greet["starts_processes"], greet["uses_network"]) == (["GREETING"], True, False)
    assert greet["schema"]["required"] == ["name"]
    assert lines["action", "container", "asterism"]["unavailable"].startswith("ASTERISM_CONTAINER_ENGINE is 'none-in")
    assert lines["action", "argv", "others"]["error"] == "not used: a plug-in of this package has its name"
    assert "cannot be imported: ModuleNotFoundError" in lines["action", "broken", "others"]["error"]
    for key in (("store", "drawer"), ("editor", "repair"), ("notifier", "pager")):
        assert lines[*key, "others"]["error"] is None


def test_the_list_as_a_table(tmp_path: Path, others: Path) -> None:
    out = Scene(tmp_path).ok("plugins")
    assert "greet" in out
    assert "start processes, read GREETING" in out


def test_a_plug_in_that_does_not_work_breaks_no_other_command(tmp_path: Path, others: Path) -> None:
    scene = Scene(tmp_path)
    (tmp_path / "plan.yaml").write_text("asterism: 1\ntasks:\n  a: {argv: [echo, b]}\n  c: {greet: {name: Ann}}\n")
    scene.ok("run", str(tmp_path / "plan.yaml"), "--plain")
    scene.ok("check", str(tmp_path / "plan.yaml"))


def test_it_is_about_this_machine(tmp_path: Path) -> None:
    done = Scene(tmp_path).run("plugins", "--store", "https://example.org")
    assert done.exit_code == 64
    assert "https://example.org is a server. Plug-ins are those of a machine" in done.stderr


def test_an_editor_by_name(tmp_path: Path, others: Path) -> None:
    scene = Scene(tmp_path)
    (tmp_path / "plan.yaml").write_text("asterism: 1\ntasks:\n  a: {argv: [echo, b]}\n")
    assert "again" in scene.ok("run", str(tmp_path / "plan.yaml"), "--plain", "--editor", "repair")


async def test_a_store_by_the_scheme_of_its_address(others: Path) -> None:
    store = await open_store("drawer://top")
    assert isinstance(store, MemoryStore)
    await store.close()
    with pytest.raises(StoreError, match="closed"):
        await open_store("drawer://top", create=False)
    with pytest.raises(StoreError, match="unknown kind of store 'shelf'"):
        await open_store("shelf://top")


async def test_a_notifier_by_name_is_judged_before_its_import(others: Path) -> None:
    def delivery(policy: DevicePolicy) -> Delivery:
        return Delivery({"text": "lost"}, None, policy, None, None)  # type: ignore[arg-type]

    with pytest.raises(PolicyForbids, match="does not allow the plug-in 'pager'"):
        await notify("pager", delivery(DevicePolicy(Rules(), "policy.yaml")))
    assert "others" not in sys.modules
    await notify("pager", delivery(DevicePolicy.open()))
    assert sys.modules["others"].TOLD == ["lost"]
    with pytest.raises(PluginProblem, match="the plug-in 'pages' is not installed here; did you mean 'pager'"):
        await notify("pages", delivery(DevicePolicy.open()))


def test_the_setting_names_a_plug_in(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.ok("store", "init")
    scene.ok("fleet", "set", "--notify-plugin", "pager")
    assert scene.json("fleet", "show")["notify_plugin"] == "pager"
    scene.ok("fleet", "set", "--notify-plugin", "")
    assert scene.json("fleet", "show")["notify_plugin"] is None
