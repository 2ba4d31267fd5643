"""A secret that work prints shows nowhere: not in the store's texts, logs, story, notices, the API, or the terminal."""

from __future__ import annotations

import json
from typing import Any

import pytest

from asterism import Constellation, DurableOrchestrator, Fleet, Task
from asterism.api.system import LocalSystem
from asterism.cli.top import NOTICES, PLANS, RUNS, Subject, page, read_listing, read_log
from asterism.store.memory import MemoryStore
from asterism.store.protocol import Query
from tests.server.server_scenes import ServerScene

VALUE = "s3cr3t-value/1"
SECRET = {"secret": "MY_VALUE"}


def plan() -> Constellation:
    made = Constellation("nightly")
    made.add(Task("spills", shell='echo "out $T"; echo "bad $T" >&2; exit 3', env={"T": SECRET}))
    made.add(Task("says", shell='echo "so $T"', env={"T": SECRET}))
    made.add(Task("after", shell="true"), after="spills")
    return made


@pytest.fixture
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_VALUE", VALUE)


async def executed(fleet: Fleet) -> None:
    await DurableOrchestrator(fleet, local=2).run(plan())


@pytest.mark.usefixtures("secret")
async def test_no_answer_of_the_api_has_a_secret() -> None:
    async with Fleet(MemoryStore(), by="server") as fleet:
        scene = ServerScene(fleet)
        await executed(fleet)
        runs = [run.id for run in await fleet.store.find(Query())]
        paths = ["plans", "plans/nightly", "plans/nightly/story", "plans/nightly/versions", "runs", "notices"]
        paths += ["plans/nightly/changes?since=0"]
        for name in ("spills", "says", "after"):
            paths += [f"plans/nightly/tasks/{name}{part}" for part in ("", "/why", "/logs")]
        paths += [f"runs/{run}{part}" for run in runs for part in ("", "/logs", "/why")]
        async with scene.client() as client:
            answers = {path: await client.get(f"/api/v1/{path}") for path in paths}
    assert {path for path, answer in answers.items() if VALUE in answer.text} == set()
    assert "bad [secret]" in answers["plans/nightly/tasks/spills/logs"].text  # it was printed, and is masked
    assert all(answer.status_code in (200, 400, 422) for answer in answers.values()), answers


@pytest.mark.usefixtures("secret")
async def test_nothing_in_the_terminal_has_a_secret() -> None:
    async with Fleet(MemoryStore(), by="ann") as fleet:
        await executed(fleet)
        system, shown = LocalSystem(fleet), list[Any]()
        for kind in (PLANS, RUNS, NOTICES):
            shown += [[str(cell) for cell in cells] for _, cells in (await read_listing(system, kind)).rows]
        subjects = [Subject(PLANS, "nightly"), *(Subject(RUNS, run.id) for run in await fleet.store.find(Query()))]
        for subject in subjects:
            shown += [*await page(system, subject, 80), *await page(system, subject, 80, why=True)]
            shown += (await read_log(system, subject, None))[0]
    texts = list(map(str, shown))
    assert [text for text in texts if VALUE in text] == []
    assert any("bad [secret]" in text for text in texts)


@pytest.mark.usefixtures("secret")
async def test_the_store_has_a_secret_in_no_text() -> None:
    """A result is data, and stays what it is; everything else is text."""
    async with Fleet(MemoryStore(), by="ann") as fleet:
        await executed(fleet)
        runs = await fleet.store.find(Query())
        logs = [register.value for register in await fleet.store.registers("log-part/")]
        texts = [(run.error, run.story, run.previous, run.label, dict(run.input)) for run in runs]
        notices = [str(notice) for _, notice in await fleet.store.notices()]
        workflows = [register.value for register in await fleet.store.registers("workflow")]
    assert VALUE not in json.dumps([logs, notices, workflows], default=str)
    assert VALUE not in str(texts)
    assert logs
