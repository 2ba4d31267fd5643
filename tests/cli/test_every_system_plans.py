"""The commands of plans work the same on a SQLite file, on PostgreSQL and on a server."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import httpx
import pytest

from asterism.api import client
from asterism.api.client import AsyncClient
from asterism.api.credentials import Credentials
from asterism.api.local import edit_handlers, plan_handlers  # noqa: F401 - an event loop would load them for long
from asterism.api.plan_operations import MOST_BYTES
from asterism.api.system import LocalSystem
from asterism.base.content_store import ContentFolder
from asterism.base.http_limits import RequestRefused
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.task import Task
from asterism.durable import plan_actor
from asterism.durable.approval_store import list_approvals
from asterism.durable.durable_orchestrator import DurableOrchestrator
from asterism.durable.journal_store import load, read_head
from asterism.durable.plan_history import versions
from asterism.fleet.fleet import Fleet
from asterism.store.protocol import PutRegister, Query
from tests.cli.raw_server import cutting_proxy
from tests.cli.stored_plan_scenes import keeping
from tests.cli.system_scenes import Names, Row, SystemScene, rows_and_systems, run_everywhere, system_scene

RULES = {"approvals": {"rules": [{"edits": ["remove_task"]}], "timeout": 86_400.0}}


def stored(scene: SystemScene) -> Names:
    """A plan that has not begun."""
    keeping(scene)
    return {}


def failed(scene: SystemScene) -> Names:
    """A plan whose first task has printed two lines and failed."""
    keeping(scene, build="echo begun; echo trouble >&2; exit 3")
    assert scene.run("resume", "nightly", "--store", scene.url, "--local", "--plain").exit_code == 1
    return {}


def completed(scene: SystemScene) -> Names:
    keeping(scene)
    assert scene.run("resume", "nightly", "--store", scene.url, "--local", "--plain").exit_code == 0
    return {}


def edited(scene: SystemScene) -> Names:
    keeping(scene)
    add = '{"id": "mail", "shell": "true", "after": "test"}'
    scene.ok("plan", "edit", "nightly", "--add", add, "--reason", "tell them", "--store", scene.url)
    return {}


def paused(scene: SystemScene) -> Names:
    keeping(scene)
    scene.ask(lambda fleet: plan_actor.pause_plan(fleet, "nightly", "lunch"))
    return {}


def cancelled(scene: SystemScene) -> Names:
    keeping(scene)
    scene.ok("plan", "cancel", "nightly", "--reason", "not tonight", "--store", scene.url)
    return {}


def ruled(scene: SystemScene) -> Names:
    """A plan in which a person approves removals."""
    keeping(scene)

    async def rule(fleet: Fleet) -> None:
        head = await fleet.store.register("plan/nightly")
        assert head is not None
        head_terms = {**head.value["terms"], **RULES}
        await fleet.store.commit([PutRegister(head.key, {**head.value, "terms": head_terms}, head.revision)])

    scene.ask(rule)
    return {}


def waiting(scene: SystemScene) -> Names:
    """An edit of that plan waits."""
    ruled(scene)
    words = ("plan", "edit", "nightly", "--remove", "test", "--reason", "slow", "--store", scene.url)
    assert scene.run(*words).exit_code == 3
    return {}


def filmed(scene: SystemScene) -> Names:
    """A plan whose task has made two files."""
    plan = Constellation("film")
    command = "mkdir out; printf one > out/1.txt; printf two > out/2.txt"
    plan.add(Task("render", shell=command, outputs={"frames": "out/*.txt"}))

    async def make(fleet: Fleet) -> None:
        await fleet.configure(artifacts=scene.folder.as_uri())
        assert (await DurableOrchestrator(fleet, local=1).run(plan)).state == "completed"

    scene.ask(make)
    return {}


# -- facts -------------------------------------------------------------------------------------------------------------


def plan_of(scene: SystemScene) -> Constellation:
    async def read(fleet: Fleet) -> Constellation:
        return (await load(fleet.store, "nightly")).plan

    return scene.ask(read)


def tasks(scene: SystemScene, names: Names) -> Any:
    return list(plan_of(scene).nodes)


def last_edit(scene: SystemScene, names: Names) -> Any:
    edit = scene.ask(lambda fleet: versions(fleet.store, "nightly"))[-1]
    return f"{edit.author}: {edit.reason}"


def pause_of(scene: SystemScene, names: Names) -> Any:
    async def paused(fleet: Fleet) -> str | None:
        return (await read_head(fleet.store, "nightly"))[0].paused

    return scene.ask(paused)


def state(scene: SystemScene, names: Names) -> Any:
    async def read(fleet: Fleet) -> str:
        return str((await read_head(fleet.store, "nightly"))[0].state)

    return scene.ask(read)


def decision(scene: SystemScene, names: Names) -> Any:
    [edit] = scene.ask(lambda fleet: list_approvals(fleet.store, "nightly"))
    return f"{edit.state} {edit.decided_by} {edit.why}".strip()


def left_behind(scene: SystemScene, names: Names) -> Any:
    """The reason in the newest notice, how many runs there are, and which registers name the plan."""

    async def read(fleet: Fleet) -> tuple[str, int, list[str]]:
        [(_, notice)] = await fleet.store.notices()
        keys = [register.key for register in await fleet.store.registers("")]
        of_plan = [key for key in keys if "nightly" in key and not key.startswith("device/")]
        return notice.message.rpartition(": ")[2], len(await fleet.runs(Query())), of_plan

    return scene.ask(read)


def written(scene: SystemScene, names: Names) -> Any:
    """The contents of the files that were downloaded."""
    return [path.read_text() for path in sorted((scene.folder / "into").rglob("*")) if path.is_file()]


MAIL = '\'{{"id": "mail", "shell": "true", "after": "test"}}\''

PLANS = (
    Row("plan list", "0/2", stored),
    Row("plan list", "The store has no plans."),
    Row("plan list --json", '"state": "failed"', failed),
    Row("plan list --state failed --name 'night*' --since 1h", "nightly", failed),
    Row("plan list --state open", "No plan matches.", failed),
    Row("plan list --file other.yaml", "No plan matches.", stored),
    Row("plan list --until 1h --tag x", "No plan matches.", stored),
    Row("plan show nightly", "build   pending  echo 1", stored),
    Row("plan show nightly", "nightly is failed, version 0: 2 of 2 tasks done", failed),
    Row("plan show nightly --failed", "build  CommandFailed: the command exited with 3", failed),
    Row("plan show nightly --failed --json", '"id": "build"', failed),
    Row("plan show nightly --mermaid", "flowchart", stored),
    Row("plan show nightly --json", '"result": "2"', completed),
    Row("plan story nightly build", "failed", failed),
    Row("plan story nightly --json", '"what": "', completed),
    Row("plan story nightly bild", "build", stored, code=64),
    Row("plan why nightly test", "build", stored),
    Row("plan why nightly build --json", '"advice"', failed),
    Row("plan logs nightly", "build | begun", failed),
    Row("plan logs nightly build", "trouble", failed),
    Row("plan logs nightly --json", '"stream": "stderr"', failed),
    Row("plan logs nightly --follow", "build | begun", failed),
    Row("plan logs nightly --attempt 2", "Plan 'nightly' has printed nothing in attempt 2.", failed),
    Row("plan logs nightly", "it has not started, or its runs were pruned", stored),
    Row(f"plan edit nightly --add {MAIL} --reason why", "0 -> 1", stored, last_edit, "ann: why"),
    Row(f"plan edit nightly --add {MAIL} --dry-run", "would change", stored, tasks, ["build", "test"]),
    Row("plan edit nightly --remove nobody", "there is no task 'nobody'", stored, tasks, ["build", "test"], code=1),
    Row("plan edit nightly --remove nobody --json", '"rule": "unknown_task"', stored, code=1),
    Row("plan edit nightly --remove test", "approval 1", ruled, decision, "waiting", code=3),
    Row("plan edit nightly --remove test --json", '"waiting": {{"id": 1', ruled, code=3),
    Row("plan undo nightly --reason oops", "1 -> 2", edited, tasks, ["build", "test"]),
    Row("plan undo nightly", "there is no edit that can be undone", stored, code=1),
    Row("plan pause nightly --reason lunch", "is paused, by ann: lunch.", stored, pause_of, "by ann: lunch"),
    Row("plan pause nightly --json", '"already": true', paused, pause_of, "by ann: lunch"),
    Row("plan cancel nightly", "was already cancelled, by ann: not tonight.", cancelled, state, "cancelled"),
    Row("plan cancel nightly --json", '"ended": true', cancelled, state, "cancelled"),
    Row("plan cancel nightly", "completed", completed, state, "completed", code=64),
    Row("plan remove nightly --reason old", "is removed, with 0 runs.", completed, left_behind, ("old", 0, [])),
    Row("plan remove nightly", "has not ended (ready), and is not", stored, tasks, ["build", "test"], code=64),
    Row("plan files film", "render.frames  3 bytes  out/2.txt", filmed),
    Row("plan files film render --json", '"path": "out/1.txt"', filmed),
    Row("plan files film pack", "there is no task 'pack'", filmed, code=64),
    Row("plan files nightly", "There are no files.", stored),
    Row("plan get film render frames -o {folder}/into", "/into/out/2.txt", filmed, written, ["one", "two"]),
    Row("plan get film render log -o {folder}/into", "has no files 'log'", filmed, written, [], code=64),
    Row("plan history nightly", "by ann: tell them", edited),
    Row("plan history nightly --json", '"rejected": []', edited),
    Row("plan history nightly 0", "Version 0, ", edited),
    Row("plan history nightly 1 --json", '"id": "mail"', edited),
    Row("plan history nightly 7", "no version 7", edited, code=64),
    Row("plan cycles nightly", "has no open edit cycle", stored),
    Row("plan claim nightly 1", "no process runs plan 'nightly'", stored, code=64),
    Row("plan answer nightly 1", "no process runs plan 'nightly'", stored, code=64),
    Row("plan approvals nightly", "approval 1: edit by ann: slow, waits for", waiting),
    Row("plan approvals nightly --json", '"changes": ["remove task \'test\'"]', waiting),
    Row("plan approvals nightly", "Nothing in plan 'nightly' waits for a person.", ruled),
    Row("plan approve nightly 1 --reason fine", "0 -> 1", waiting, decision, "approved ann fine"),
    Row("plan approve nightly 9", "9", waiting, decision, "waiting", code=64),
    Row("plan refuse nightly 1 --reason no", "is refused", waiting, decision, "refused ann no"),
    Row("plan budget nightly", "has no budget: no model has been asked to edit it.", stored),
)


@rows_and_systems(PLANS, others=pytest.mark.long)
def test_plans(row: Row, systems: tuple[str, ...], tmp_path: Path, request: pytest.FixtureRequest) -> None:
    run_everywhere(row, systems, tmp_path, request)


def test_resume_retry_and_standby_at_a_server(tmp_path: Path) -> None:
    with system_scene("server", tmp_path / "server", "") as scene:
        keeping(scene, build="exit 3")
        resumed = scene.ok("resume", "nightly")
        assert resumed.startswith("Plan 'nightly' is resumed; a server on its store runs it. Look at it with: ")
        for option in ("--local", "--plain", "--stats"):
            refused = scene.run("resume", "nightly", option)
            assert (refused.exit_code, f"{option} has no effect at a server" in refused.stderr) == (64, True)
        standby = scene.run("plan", "standby", "nightly")
        assert (standby.exit_code, "A server takes plans over by itself" in standby.stderr) == (64, True)
        early = scene.run("plan", "retry", "nightly")
        assert (early.exit_code, "nightly" in early.stderr) == (64, True)
        scene.run("resume", "nightly", "--store", scene.url, "--local", "--plain")
        again = scene.run("plan", "retry", "nightly", "--reason", "mended")
        assert "Plan 'nightly' is reopened: build runs again." in again.stderr
        assert again.stdout.startswith("Plan 'nightly' is reopened; a server on its store runs it.")
        assert state(scene, {}) == "executing"
        over = scene.json("plan", "cancel", "nightly", "--store", scene.url)
        assert over["state"] == "cancelled"
        assert "is cancelled: it cannot be resumed" in scene.run("resume", "nightly").stderr


def test_a_download_over_http_goes_on_after_a_cut_and_is_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = b"0123456789abcdef" * (MOST_BYTES // 16) + b"the second part"
    (tmp_path / "made").write_bytes(content)
    plan = Constellation("film")
    plan.add(Task("render", shell=f"cp {tmp_path}/made large", outputs={"large": "large"}))
    into, asked_for, call = tmp_path / "into", list[int](), AsyncClient.call
    words = ("plan", "get", "film", "render", "large", "-o", str(into))

    async def remember(self: AsyncClient, operation: Any, request: Any) -> Any:
        if operation.name == "read_file":
            asked_for.append(request.offset)
        return await call(self, operation, request)

    monkeypatch.setattr(AsyncClient, "call", remember)
    monkeypatch.setattr(client, "PAUSE", 0.0)
    with system_scene("server", tmp_path / "server", "") as scene:

        async def make(fleet: Fleet) -> Path:
            await DurableOrchestrator(fleet, local=1).run(plan)
            kept = await fleet.artifacts()
            assert isinstance(kept, ContentFolder)
            return kept.path(hashlib.sha256(content).hexdigest())

        kept = scene.ask(make)
        with cutting_proxy(scene.address, client.MOST_TRIES, b"offset=%d" % MOST_BYTES) as url:
            cut = scene.run(*words, ASTERISM_STORE=url)
        assert (cut.exit_code, "closed the connection" in cut.stderr) == (69, True)
        [unfinished] = into.iterdir()
        assert unfinished.read_bytes() == content[:MOST_BYTES]
        scene.ok(*words)
        assert asked_for == [0, MOST_BYTES, MOST_BYTES]
        assert [(file.name, file.read_bytes() == content) for file in into.iterdir()] == [("large", True)]
        (into / "large").unlink()
        kept.chmod(0o600)
        kept.write_bytes(content[:-1] + b"!")
        assert "large is damaged: it does not match its hash" in scene.run(*words).stderr
        assert list(into.iterdir()) == []


def test_files_are_listed_in_pages(tmp_path: Path) -> None:
    with system_scene("server", tmp_path / "server", "") as scene:
        filmed(scene)
        address, headers = (
            f"{scene.address}/api/v1/plans/film/files",
            {"authorization": f"Bearer {scene.env['ASTERISM_TOKEN']}"},
        )

        def page(**query: Any) -> dict[str, Any]:
            answer = httpx.get(address, params=query, headers=headers, trust_env=False)
            return dict(answer.json())

        whole, pages, after = page(), list[dict[str, Any]](), {}
        assert whole["next"] is None
        while not pages or pages[-1]["next"] is not None:
            pages.append(page(limit=1, **after))
            after = {"after": pages[-1]["next"]}
        assert len(pages) == len(whole["items"]) > 1
        assert [file for part in pages for file in part["items"]] == whole["items"]
        assert page(after="nonsense")["status"] == 422


def test_a_list_of_files_goes_on_after_a_file_that_is_gone(tmp_path: Path) -> None:
    plan = Constellation("film")
    for name in ("render", "score", "cut"):
        command = f"mkdir out; for n in 1 2; do printf {name} > out/$n.txt; done"
        plan.add(Task(name, shell=command, outputs={"frames": "out/*.txt"}))
    with system_scene("sqlite", tmp_path / "sqlite", "") as scene:

        async def make(fleet: Fleet) -> None:
            await fleet.configure(artifacts=scene.folder.as_uri())
            assert (await DurableOrchestrator(fleet, local=1).run(plan)).state == "completed"
            system = LocalSystem(fleet)

            async def rest(after: str | None, task: str | None = None) -> list[tuple[str, str]]:
                page = await system.list_files("film", task, after)
                return [(file.task, file.path) for file in page.items]

            after = (await system.list_files("film", limit=1)).next
            assert after is not None
            whole = await rest(None)
            assert await rest(after) == whole[1:]
            other = after.replace("out/1.txt", "out/10.txt")  # as the task may have made before it was retried
            assert await rest(other) == whole[1:]
            assert await rest(other, "render") == whole[1:2]
            assert await rest(after.replace("frames", "a")) == whole
            assert await rest(after.replace("frames", "z")) == whole[2:]
            await system.retry_plan("film", from_tasks=["render"])
            assert await rest(after) == whole[2:]
            await system.edit_plan("film", [{"op": "remove_task", "task_id": "render"}])
            with pytest.raises(RequestRefused, match="task 'render', where the page before ended, is gone: list the"):
                await rest(after)

        scene.ask(make)


def test_files_are_read_with_the_scope_to_observe_only(tmp_path: Path) -> None:
    with system_scene("server", tmp_path / "server", "") as scene:
        filmed(scene)

        async def token(fleet: Fleet) -> str:
            return (await Credentials(fleet.store).create("bob", ["series"], by="test")).token

        refused = {"ASTERISM_TOKEN": scene.ask(token)}
        into = tmp_path / "into"
        for words in (("files", "film"), ("get", "film", "render", "frames", "-o", str(into))):
            answer = scene.run("plan", *words, **refused)
            assert (answer.exit_code, answer.stdout, "observe" in answer.stderr) == (64, "", True), answer.output
        assert not into.exists()
        part = f"{scene.address}/api/v1/plans/film/files/part?task=render&output=frames&path=out/1.txt"
        for bearer, status in ((scene.env["ASTERISM_TOKEN"], 200), (refused["ASTERISM_TOKEN"], 403), ("", 401)):
            headers = {"authorization": f"Bearer {bearer}"} if bearer else {}
            assert httpx.get(part, headers=headers, trust_env=False).status_code == status
        headers = {"authorization": f"Bearer {scene.env['ASTERISM_TOKEN']}"}
        beyond = httpx.get(f"{part}&offset={10**15}", headers=headers, trust_env=False)
        assert (beyond.status_code, "it ends before" in beyond.json()["detail"]) == (416, True)
