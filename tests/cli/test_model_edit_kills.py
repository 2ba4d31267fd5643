"""A model edits a plan whose processes are killed, whatever they do at that moment: no answer is paid for twice without
being counted, the budget forgets nothing, each answer is applied once or not at all, and the plan becomes the same."""

from __future__ import annotations

import asyncio
import random
import re
import subprocess
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from asterism.durable.editor_budget import LIMITS, Account, read_account
from asterism.durable.journal_store import head_key, load
from asterism.fleet.fleet import Fleet
from asterism.models.cassette import Exchange, StoreCassette
from tests.cli.command_scenes import Scene
from tests.cli.test_model_commands import MODEL, served
from tests.forked_commands import Server
from tests.models.model_server import ModelServer, Question, Reply
from tests.process_scenes import PATIENCE, ended

pytestmark = pytest.mark.slow

EDITOR = ("--editor", "model", "--model", MODEL, "--budget", "$9 500calls 100tasks", "--concurrency", "1")
QUICK = ("--plain", "--takeover-after", "3s")
MOMENTS = ("stream", "answer", "commit", "call")
MOST_LOOKS = {"call": 300, "stream": 30, "answer": 30, "commit": 30}
"""How many times the store is read at most between what is waited for and a kill, so that kills come at different
moments."""
TOKENS = (1500, 60)


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.chdir(tmp_path)
    return Scene(tmp_path)


def chain(scene: Scene, steps: int) -> None:
    """A plan file: each step fails, and the next one waits for it."""
    lines = [
        f"  step-{number}: {{shell: echo no luck with {number}; exit 3"
        + (f", after: step-{number - 1}}}" if number else "}")
        for number in range(steps)
    ]
    (scene.folder / "plan.yaml").write_text("\n".join(["asterism: 1", "id: chain", "tasks:", *lines, ""]))


def repair(question: Question, steps: int) -> Reply:
    """A task in place of the one that failed."""
    number = int(re.findall(r"task 'step-(\d+)' failed", question.text)[-1])
    edits: list[dict[str, Any]] = [
        {"op": "add_task", "task": {"id": f"fix-{number}", "shell": "true"}},
        {"op": "add_dependency", "source": f"step-{number}", "target": f"fix-{number}", "on": "failure"}
        | {"handled": True},
    ]
    if number + 1 < steps:
        edits += [
            {"op": "remove_dependency", "source": f"step-{number}", "target": f"step-{number + 1}"},
            {"op": "add_dependency", "source": f"fix-{number}", "target": f"step-{number + 1}"},
        ]
    return Reply.edits(*edits, usage=TOKENS)


async def exchanges_of(fleet: Fleet) -> list[Exchange]:
    return await StoreCassette(fleet.store).exchanges("chain")


def account_of(scene: Scene) -> Account:
    return scene.ask(lambda fleet: read_account(fleet.store, "chain")) or Account()


class Killer:
    """A model server, and processes that run the plan one after the other. ``moment`` is when the next one is killed:
    before it asks, in the middle of the stream, after the answer, or after the answer is in the store."""

    def __init__(self, scene: Scene, commands: Server, steps: int) -> None:
        self.scene, self.commands, self.steps = scene, commands, steps
        self.moment = ""
        self.server = ModelServer(self.answer)

    def answer(self, question: Question) -> Reply:
        reply = repair(question, self.steps)
        return reply.but(hang=3) if self.moment == "stream" else reply

    def process(self, *words: str) -> AbstractContextManager[subprocess.Popen[str]]:
        return self.scene.process(*words, *EDITOR, *QUICK, server=self.commands, **self.server.environment)

    def kill_one(self, number: int) -> None:
        self.moment = MOMENTS[number % len(MOMENTS)]
        first = ("run", "plan.yaml", "--store", self.scene.url)
        words = first if not number else ("plan", "standby", "chain") if number % 3 else ("resume", "chain")
        with self.process(*words) as process:
            self.scene.ask(lambda fleet: self._kill(fleet, process, random.Random(number)))

    async def _kill(self, fleet: Fleet, process: subprocess.Popen[str], chance: random.Random) -> None:
        before = await self._progress(fleet)
        async with asyncio.timeout(PATIENCE):
            while process.poll() is None and (await self._progress(fleet))[self.moment] == before[self.moment]:
                pass
            for _ in range(chance.randrange(MOST_LOOKS[self.moment])):
                await exchanges_of(fleet)
        process.kill()
        await asyncio.to_thread(process.wait, PATIENCE)

    async def _progress(self, fleet: Fleet) -> dict[str, int]:
        """What changes with each moment: the epoch of the owner, the requests, the answers in the store."""
        head = await fleet.store.register(head_key("chain"))
        epoch = 0 if head is None else head.value["epoch"]
        asked, known = len(self.server.questions), len(await exchanges_of(fleet))
        return {"call": epoch, "stream": asked, "answer": asked, "commit": known}


@pytest.mark.long
def test_a_model_is_paid_once_and_its_answers_are_applied_once(scene: Scene, model_commands: Server) -> None:
    kills = 8
    steps = kills // 2 + 2
    chain(scene, steps)
    killer = Killer(scene, model_commands, steps)
    with served(killer.server) as server:
        before = Account().committed
        for number in range(kills):
            killer.kill_one(number)
            spent = account_of(scene).committed
            assert all(getattr(spent, name) >= getattr(before, name) for name in LIMITS)
            assert spent.calls >= len(server.questions)
            before = spent
        killer.moment = ""
        with killer.process("resume", "chain") as process:
            code, output, errors = ended(process)
        assert code == 0, output + errors
        check(scene, steps, len(server.questions))
        check_as_without_kills(scene, killer)


def check(scene: Scene, steps: int, asked: int) -> None:
    account, exchanges = account_of(scene), scene.ask(exchanges_of)
    assert account.open == {}
    assert account.spent.calls >= asked >= len(exchanges)
    assert account.spent.tokens >= asked * sum(TOKENS)
    assert account.spent.tasks == steps
    assert len({(exchange.about, exchange.question) for exchange in exchanges}) == len(exchanges) == steps
    plan = scene.ask(lambda fleet: load(fleet.store, "chain")).plan
    edits = [entry.why for entry in plan.story() if entry.what == "edited" and entry.task is None]
    assert len(edits) == plan.version == steps
    assert all(f"fix-{number}" in plan for number in range(steps))


def check_as_without_kills(scene: Scene, killer: Killer) -> None:
    """A process that nobody kills is asked the same questions about the plan, and the plan becomes the same."""
    with killer.process("run", "plan.yaml", "--store", scene.url, "--id", "again") as process:
        code, output, errors = ended(process)
    assert code == 0, output + errors
    killed, undisturbed = (
        scene.ask(lambda fleet, name=name: questions_and_dependencies(fleet, name)) for name in ("chain", "again")
    )
    assert killed == undisturbed


async def questions_and_dependencies(fleet: Fleet, plan: str) -> tuple[list[str], list[Any]]:
    questions = [exchange.question for exchange in await StoreCassette(fleet.store).exchanges(plan)]
    return questions, [edge.to_json() for edge in (await load(fleet.store, plan)).plan.dependencies]
