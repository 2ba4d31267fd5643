"""Files between the tasks of stored plans: devices that share a store, kills, late ends, and what is kept."""

from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path

import pytest

from asterism.base.content_store import ContentFolder
from asterism.core.errors import Fenced, PlanError
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.task import Task
from asterism.core.run import transitions
from asterism.core.run.run import Grant, Owner, Run
from asterism.core.run.work import Workflow
from asterism.durable.durable_orchestrator import DurableOrchestrator
from asterism.execution import artifacts
from asterism.fleet import kept_files, retention
from asterism.fleet.device.agent import DeviceAgent
from asterism.fleet.device.device_connection import Complete
from asterism.fleet.fleet import Fleet
from asterism.orchestrator.result import StoreRecords
from asterism.store.protocol import FILE_USES, PLANS, Notice, PutRegister, PutRun, Query
from asterism.store.sqlite import SqliteStore
from tests.cli.command_scenes import Scene


def film(**render: object) -> Constellation:
    plan = Constellation("film")
    plan.add(
        Task(
            "render",
            shell="mkdir out; echo one > out/1.png; echo two > out/2.png; echo done > log.txt",
            outputs={"frames": "out/*.png", "log": "log.txt"},
            device="a",
        )
    )
    plan.add(
        Task(
            "pack",
            shell='cat "$frames"/out/*.png > film.txt; ls out',
            inputs={"frames": {"files_from": "render.frames"}},
            outputs={"film": "film.txt"},
            device="b",
        )
    )
    plan.add(Task("count", call=count_lines, inputs={"film": {"files_from": "pack.film"}}))
    return plan


def count_lines(film: Path, folder: Path) -> int:
    assert film == folder
    return len((film / "film.txt").read_text().splitlines())


async def made_and_taken(url: str) -> None:
    async with await Fleet.open(url) as fleet, await Fleet.open(url) as other:
        devices = [DeviceAgent(fleet, "a", slots=1), DeviceAgent(other, "b", slots=1)]
        agents = [asyncio.create_task(device.run()) for device in devices]
        try:
            result = await DurableOrchestrator(fleet, local=1).run(film())
        finally:
            for agent in agents:
                agent.cancel()
            await asyncio.gather(*agents, return_exceptions=True)
        assert result.state == "completed", [(task.id, task.error) for task in result]
        assert (result["pack"].value.split(), result["count"].value) == (["1.png", "2.png"], 2)
        assert [file.read() for file in result["pack"].files["film"]] == [b"one\ntwo\n"]
        runs = {run.key: run for run in await fleet.runs(Query(with_files=True))}
        assert {(run.device, run.files is None) for run in runs.values()} == {("a", False), ("b", False)}
        assert any("it has kept its files" in entry.why for run in runs.values() for entry in run.story)
        assert len(await fleet.store.registers(f"{FILE_USES}plan/film/")) == 2
        again = await DurableOrchestrator(fleet, local=1).run_stored("film")
        assert [file.path for file in again["render"].files["frames"]] == ["out/1.png", "out/2.png"]
        assert await fleet.store.check() == []


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


async def test_device_b_takes_the_files_of_device_a_with_a_store_in_a_file(tmp_path: Path) -> None:
    await made_and_taken(f"sqlite:///{tmp_path}/fleet.db")


async def test_device_b_takes_the_files_of_device_a_with_a_store_on_a_server(postgres_url: str, tmp_path: Path) -> None:
    async with await Fleet.open(postgres_url) as fleet:
        await fleet.configure(artifacts=tmp_path.as_uri())
    await made_and_taken(postgres_url)


async def test_a_store_on_a_server_says_what_to_set(postgres_url: str) -> None:
    async with await Fleet.open(postgres_url) as fleet:
        with pytest.raises(PlanError, match="task 'render' has files, and this fleet has no place"):
            await DurableOrchestrator(fleet, local=1).run(film())


# -- what is kept ------------------------------------------------------------------------------------------------------


class Kept:
    """A store with a plan of one task that has a file, and its content."""

    def __init__(self, folder: Path) -> None:
        self.now = 1_000_000.0
        self.url, self._folder = f"sqlite:///{folder}/fleet.db", folder

    async def open(self) -> Fleet:
        return Fleet(await SqliteStore.open(self._folder / "fleet.db", clock=lambda: self.now))

    async def names(self, fleet: Fleet) -> set[str]:
        return set((await fleet.artifacts()).names())


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    return Kept(tmp_path)


def one_file() -> Constellation:
    plan = Constellation("film")
    plan.add(Task("render", call=write_file, outputs={"text": "text.txt"}))
    return plan


def write_file(folder: Path) -> None:
    (folder / "text.txt").write_text("made")


async def test_retention_keeps_what_is_referred_to_and_removes_the_rest_an_hour_later(kept: Kept) -> None:
    async with await kept.open() as fleet:
        await DurableOrchestrator(fleet, local=1).run(one_file())
        used = await kept.names(fleet)
        stray = (await fleet.artifacts()).put([b"of an attempt that was too late"]).name
        await fleet.collect_files()
        assert await kept.names(fleet) == used | {stray}, "it may belong to an end that is about to be written"
        kept.now += kept_files.CONTENT_AGE + 1
        await fleet.collect_files()
        assert await kept.names(fleet) == used
        assert await retention.remove_plan(fleet.store, "film", Notice(kept.now, "removed", "film", None, None)) == 0
        await fleet.collect_files()
        assert await kept.names(fleet) == set()


# -- what is reused ----------------------------------------------------------------------------------------------------


def reused_film(
    name: str, frame: str = "one", *, source: str = "film.yaml", shared: str | None = None
) -> Constellation:
    """Plans of one file: ``pack`` takes the frames, and not the log, which is new every time."""
    plan = Constellation(name)
    plan.source = source
    made = {"frames": "frame", "log": "log"}
    plan.add(Task("render", shell=f"echo {frame} > frame; echo {name} > log", outputs=made, device=None))
    reuse = {} if shared is None else {"shared": shared}
    frames = {"frames": {"files_from": "render.frames"}}
    plan.add(
        Task("pack", shell="cat frame frame > film", inputs=frames, outputs={"film": "film"}, skip_if_unchanged=reuse)
    )
    plan.add(Task("size", shell="wc -l < film", inputs={"film": {"files_from": "pack.film"}}, skip_if_unchanged=reuse))
    return plan


async def reused(fleet: Fleet, plan: Constellation) -> tuple[set[str], bytes]:
    """The tasks of a plan that were not executed, and the file that it has in the end."""
    result = await DurableOrchestrator(fleet, local=1).run(plan)
    assert (result.state, result["size"].value) == ("completed", "2"), [(task.id, task.error) for task in result]
    [film] = result["pack"].files["film"]
    skipped = {task.id for task in result if any(entry.what == "unchanged" for entry in result.plan.story(task.id))}
    return skipped, film.read()


async def test_a_task_whose_files_are_unchanged_is_not_executed(kept: Kept) -> None:
    both = {"pack", "size"}
    async with await kept.open() as fleet:
        assert await reused(fleet, reused_film("one")) == (set(), b"one\none\n")
        assert await reused(fleet, reused_film("two")) == (both, b"one\none\n")
        assert await reused(fleet, reused_film("three", "other")) == (set(), b"other\nother\n")
        assert await reused(fleet, reused_film("four")) == (both, b"one\none\n"), "there is a record of each input"
        assert await reused(fleet, reused_film("five", source="another")) == (set(), b"one\none\n")
        assert await reused(fleet, reused_film("six", shared="films")) == (set(), b"one\none\n")
        assert await reused(fleet, reused_film("seven", source="another", shared="films")) == (both, b"one\none\n")


async def remove_but(fleet: Fleet, kept: Kept, *names: str) -> None:
    """Remove the other plans and the records, and collect, long after all of them have ended."""
    kept.now += 10 * kept_files.CONTENT_AGE
    for head in await fleet.store.registers(PLANS):
        if (name := head.key.removeprefix(PLANS)) not in names:
            await retention.remove_plan(fleet.store, name, Notice(kept.now, "removed", name, None, None))
    await retention._remove_result_records(fleet.store, kept.now)
    await fleet.collect_files()


async def test_what_was_reused_belongs_to_the_plan(kept: Kept) -> None:
    async with await kept.open() as fleet:
        await reused(fleet, reused_film("one"))
        await reused(fleet, reused_film("two"))
        await remove_but(fleet, kept, "two")
        assert await fleet.store.registers("unchanged/") == []
        result = await DurableOrchestrator(fleet, local=1).run_stored("two")
        assert result["pack"].files["film"][0].read() == b"one\none\n"


def removed_while_used(kept: Kept, monkeypatch: pytest.MonkeyPatch, fleet: Fleet) -> None:
    """Between the look at the files of a record and its use, retention removes both, as after a long standstill."""
    has_all, loop, times = artifacts.Artifacts.has_all, asyncio.get_running_loop(), [1]

    def overtaken(self: artifacts.Artifacts, manifest: str) -> bool:
        there = has_all(self, manifest)
        if times and times.pop():
            asyncio.run_coroutine_threadsafe(remove_but(fleet, kept), loop).result()
        return there

    monkeypatch.setattr(artifacts.Artifacts, "has_all", overtaken)


async def test_a_record_that_is_removed_while_it_is_used_does_not_count(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with await kept.open() as fleet:
        await reused(fleet, reused_film("one"))
        removed_while_used(kept, monkeypatch, fleet)
        assert await reused(fleet, reused_film("two")) == (set(), b"one\none\n")


async def test_ablation_a_record_that_is_written_again_names_files_that_are_gone(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def renew(self: StoreRecords, key: str) -> bool:
        await self.put(key, {"at": 0.0})
        return True

    monkeypatch.setattr(StoreRecords, "renew", renew)
    monkeypatch.setattr(kept_files, "OPEN", "")  # as if nothing was under way
    async with await kept.open() as fleet:
        await reused(fleet, reused_film("one"))
        removed_while_used(kept, monkeypatch, fleet)
        result = await DurableOrchestrator(fleet, local=1).run(reused_film("two"))
        assert "it was removed there" in str(result["size"].error)


async def test_files_that_are_gone_are_made_again(kept: Kept) -> None:
    async with await kept.open() as fleet:
        await reused(fleet, reused_film("one"))
        place = await fleet.artifacts()
        assert isinstance(place, ContentFolder)
        place.path(hashlib.sha256(b"one\none\n").hexdigest()).unlink()
        assert await reused(fleet, reused_film("two")) == ({"size"}, b"one\none\n")


# -- what runs keep ----------------------------------------------------------------------------------------------------


async def run_under_way(kept: Kept, fleet: Fleet) -> str:
    """A run begins, and two hours later its first file was kept two hours ago. Returns the name of the content."""
    flow = await fleet.workflows.add(Workflow("plan/film", shell="true", outputs={"text": "text.txt"}))
    run = transitions.create("run-1", flow, {}, by="ann", now=kept.now)
    owner = Owner("kitchen", "session-1")
    await fleet.store.commit([PutRun(transitions.take(run, owner, kept.now, starts=True), None)])
    name = (await fleet.artifacts()).put([b"the first file of many"]).name
    kept.now += 7200.0
    return name


async def lose(fleet: Fleet) -> None:
    def lost(run: Run) -> Run:
        return transitions.lose(run, fleet.store.clock(), "its device is silent")

    await fleet.ledger.change("run-1", lost)


async def test_what_a_run_under_way_has_put_stays_until_its_end(kept: Kept) -> None:
    async with await kept.open() as fleet:
        name = await run_under_way(kept, fleet)
        await fleet.collect_files()
        assert await kept.names(fleet) == {name}
        await lose(fleet)
        await fleet.collect_files()
        assert await kept.names(fleet) == set(), "its end would be refused now"


async def test_ablation_without_the_pin_a_long_run_loses_its_first_file(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_files, "OWNED", frozenset())
    async with await kept.open() as fleet:
        await run_under_way(kept, fleet)
        await fleet.collect_files()
        assert await kept.names(fleet) == set()


async def test_a_damaged_list_of_files_does_not_stop_the_collection(kept: Kept) -> None:
    async with await kept.open() as fleet:
        await DurableOrchestrator(fleet, local=1).run(one_file())
        place = await fleet.artifacts()
        [use] = await fleet.store.registers(FILE_USES)
        damaged = {"manifest": place.put([b"5"]).name}
        await fleet.store.commit([PutRegister(use.key, damaged, use.revision)])
        stray = place.put([b"stray"]).name
        kept.now += kept_files.CONTENT_AGE + 1
        await fleet.collect_files()
        assert stray not in await kept.names(fleet)
        manifests = await kept_files.manifests(fleet.store)
        assert any("is not the list of the files" in text for text in kept_files.problems(place, manifests))


async def test_a_late_end_makes_no_reference(kept: Kept) -> None:
    async with await kept.open() as fleet:
        name = await run_under_way(kept, fleet)
        grant = Grant("run-1", "session-1", 1)
        await lose(fleet)
        with pytest.raises(Fenced):
            await fleet.ledger.change("run-1", lambda run: Complete(grant, None, None, name).apply(run, 0))
        assert await kept_files.manifests(fleet.store) == set()


# -- backup and check --------------------------------------------------------------------------------------------------


def test_a_backup_has_the_files_and_a_check_reads_them(tmp_path: Path) -> None:
    scene, again = Scene(tmp_path), Scene(tmp_path / "again")
    again.folder.mkdir()
    file = str(tmp_path / "backup.gz")

    async def make() -> None:
        async with await Fleet.open(scene.url) as fleet:
            await DurableOrchestrator(fleet, local=1).run(one_file())

    async def harm() -> None:
        async with await Fleet.open(again.url) as fleet:
            result = await DurableOrchestrator(fleet, local=1).run_stored("film")
            assert result["render"].files["text"][0].read() == b"made"
            content = await fleet.artifacts()
            assert isinstance(content, ContentFolder)
            content.path(result["render"].files["text"][0].sha256).write_text("harm")

    asyncio.run(make())
    scene.ok("store", "backup", file)
    assert "intact" in scene.ok("store", "check")
    again.ok("store", "restore", file)
    assert "intact" in again.ok("store", "check")
    asyncio.run(harm())
    answer = again.run("store", "check")
    assert answer.exit_code == 64
    assert "the file 'text.txt' is damaged" in answer.output
    (again.folder / "fleet.db.files").rename(again.folder / "away")
    assert "is not in" in again.run("store", "check").output
    assert "1 file of tasks is missing." in again.run("store", "backup", str(tmp_path / "next")).output


# -- commands ----------------------------------------------------------------------------------------------------------


def many_files(folder: Path) -> None:
    for number in range(20):
        (folder / f"{number}.txt").write_text(str(number))


def test_the_list_of_files_is_read_once_for_all_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scene, into, read = Scene(tmp_path), tmp_path / "into", list[bytes]()
    plan, parse = Constellation("films"), artifacts._manifest

    async def make() -> None:
        async with await Fleet.open(scene.url) as fleet:
            plan.add(Task("render", call=many_files, outputs={"all": "*"}))
            await DurableOrchestrator(fleet, local=1).run(plan)

    asyncio.run(make())
    monkeypatch.setattr(artifacts, "_manifest", lambda data: read.append(data) or parse(data))
    scene.ok("plan", "get", "films", "render", "all", "-o", str(into))
    assert sorted(int(path.read_text()) for path in into.iterdir()) == list(range(20))
    assert len(read) == 1


TESTS = """
asterism: 1
id: tests
tasks:
  test:
    foreach: [unit, slow]
    shell: echo "$item" > "$item.xml"; test $item = unit && echo '[5]'
    outputs: {junit: "{item}.xml"}
  report:
    shell: echo "$results from $(cat *.xml | tr '\\n' ' ')"
    inputs: {junit: {files_from: test.junit}, results: {from: test}}
    after: {test: completion}
  count:
    argv: [echo, "{results}"]
    inputs: {results: {from: test, failed: skip}}
    after: {test: completion}
"""


@pytest.mark.parametrize("where", ["memory", "store"])
def test_a_group_of_a_plan_file_that_fails_in_part(tmp_path: Path, where: str) -> None:
    scene, into = Scene(tmp_path), tmp_path / "into"
    (tmp_path / "tests.yaml").write_text(TESTS)
    place = ["--store", scene.url] if where == "store" else []
    answer = scene.run("run", str(tmp_path / "tests.yaml"), "--json", *place)
    tasks = json.loads(answer.stdout)["tasks"]
    assert tasks["test"]["reason"].endswith("test[slow] (CommandFailed: the command exited with 1)")
    assert tasks["test"]["value"] == [[5], None]
    assert (tasks["report"]["value"], tasks["count"]["value"]) == ("[[5], null] from slow unit", [[5]])
    if where == "store":
        scene.ok("plan", "get", "tests", "test", "junit", "-o", str(into))
        assert {path.name: path.read_text() for path in into.iterdir()} == {"unit.xml": "unit\n", "slow.xml": "slow\n"}


def test_files_are_listed_and_written_to_a_folder(tmp_path: Path) -> None:
    scene, into = Scene(tmp_path), tmp_path / "into"

    async def make() -> None:
        async with await Fleet.open(scene.url) as fleet:
            await DurableOrchestrator(fleet, local=1).run(one_file())

    asyncio.run(make())
    [listed] = scene.json("plan", "files", "film")
    assert (listed["task"], listed["output"], listed["path"], listed["size"]) == ("render", "text", "text.txt", 4)
    scene.ok("plan", "get", "film", "render", "text", "-o", str(into))
    assert (into / "text.txt").read_text() == "made"
    (into / "text.txt").unlink()
    (into / f".text.txt.{listed['sha256'][:16]}.part").write_text("ma")  # as an interrupted download leaves it
    scene.ok("plan", "get", "film", "render", "text", "-o", str(into))
    assert [path.read_text() for path in into.iterdir()] == ["made"]
    (into / f".text.txt.{listed['sha256'][:16]}.part").write_text("bad!")
    assert "is damaged" in scene.run("plan", "get", "film", "render", "text", "-o", str(into)).output
    assert "has no files 'log'" in scene.run("plan", "get", "film", "render", "log", "-o", str(into)).output
