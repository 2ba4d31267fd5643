"""``asterism plan ask`` on a store and at a server: rounds, --yes, --dry-run, and one sentence for what goes wrong."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from asterism.api.system import LocalSystem
from asterism.cli.plan.plan_proposals import EditConversation
from asterism.fleet.fleet import Fleet
from tests.cli.system_scenes import SystemScene, system_scene
from tests.cli.test_model_commands import MODEL, served
from tests.forked_commands import ForkedCommand
from tests.models.model_server import ModelServer, Question, Reply
from tests.process_scenes import PATIENCE

PLAN = """asterism: 1
id: nightly
tasks:
  build: {shell: make}
  mail: {shell: mail-it, after: build}
"""
CHAT = [
    {"op": "remove_task", "task_id": "mail"},
    {"op": "add_task", "task": {"id": "chat", "shell": "chat-it"}},
    {"op": "add_dependency", "source": "build", "target": "chat"},
]
RENAMED = [{"op": "update_task", "task_id": "mail", "changes": {"shell": "chat-it"}}]
REQUEST = "skip the mail and send a chat message instead"


@pytest.fixture(params=["sqlite", "server"])
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SystemScene]:
    with system_scene(request.param, tmp_path / "scene", "") as scene:
        yield scene


def stored(scene: SystemScene, **options: Any) -> None:
    async def submit(fleet: Fleet) -> None:
        await LocalSystem(fleet).submit_plan(PLAN, **options)

    scene.ask(submit)


def ask(scene: SystemScene, *script: Any, words: tuple[str, ...] = (), says: str = "", text: str = REQUEST) -> Result:
    with served(*script) as server:
        options = ("--model", MODEL, *words)
        return scene.run("plan", "ask", "nightly", text, *options, stdin=says, **server.environment)


def tasks(scene: SystemScene) -> list[str]:
    return [task["id"] for task in scene.json("plan", "show", "nightly")["tasks"]]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard input and output are a terminal."""
    monkeypatch.setattr(EditConversation, "_interactive", True)


def test_edits_are_shown_and_applied_in_the_name_of_the_person(scene: SystemScene, terminal: None) -> None:
    stored(scene)
    done = ask(scene, Reply.edits(*CHAT, reason="A chat task takes its place."), says="y\n")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[:3] == ["remove task 'mail'", "add task 'chat'", "    shell: chat-it"]
    assert "Plan 'nightly' would change: version 0 -> 1." in done.stdout
    assert f"{MODEL}: A chat task takes its place. (1 call of {MODEL}" in done.stderr
    assert "Apply? [y/N or say what to change]" in done.output
    assert "Plan 'nightly' changed: version 0 -> 1." in done.stdout
    assert tasks(scene) == ["build", "chat"]
    assert f"by ann: {REQUEST}" in scene.ok("plan", "history", "nightly")


def test_a_new_sentence_is_the_next_round_with_those_before_it(scene: SystemScene, terminal: None) -> None:
    stored(scene)
    with served(Reply.edits(*CHAT), Reply.edits(*RENAMED)) as server:
        words = ("plan", "ask", "nightly", REQUEST, "--model", MODEL)
        done = scene.run(*words, stdin="keep the task\ny\n", **server.environment)
        assert done.exit_code == 0, done.output
        second = server.questions[1].text
    assert REQUEST in second
    assert "keep the task" in second
    assert "chat-it" in second
    assert tasks(scene) == ["build", "mail"]
    assert f"by ann: {REQUEST}; keep the task" in scene.ok("plan", "history", "nightly")


def test_a_plan_that_moves_between_diff_and_answer_is_not_overwritten(
    scene: SystemScene, terminal: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(scene)
    said = iter(["y", "n"])

    def others_are_faster(conversation: EditConversation, question: str) -> str:
        if "Apply" in question:
            changes = json.dumps({"edits": [{**RENAMED[0], "changes": {"shell": "mail-both"}}]})
            scene.ok("plan", "edit", "nightly", "--edits", "-", stdin=changes)
        return next(said)

    monkeypatch.setattr(EditConversation, "_ask", others_are_faster)
    done = ask(scene, Reply.edits(*CHAT))
    assert done.exit_code == 1
    assert "[stale]" in done.stderr
    assert tasks(scene) == ["build", "mail"]


def test_no_is_no(scene: SystemScene, terminal: None) -> None:
    stored(scene)
    for says in ("n\n", "\n"):
        assert ask(scene, Reply.edits(*CHAT), says=says).exit_code == 1
    assert tasks(scene) == ["build", "mail"]


def test_without_a_terminal_edits_are_shown_and_applied_only_with_yes(scene: SystemScene) -> None:
    stored(scene)
    shown = ask(scene, Reply.edits(*CHAT), says="y\n")
    assert (shown.exit_code, "add task 'chat'" in shown.stdout) == (3, True)
    assert "Give --yes to apply edits" in shown.stderr
    dry = ask(scene, Reply.edits(*CHAT), words=("--dry-run",))
    assert (dry.exit_code, dry.stdout) == (0, shown.stdout)
    document = json.loads(ask(scene, Reply.edits(*CHAT), words=("--dry-run", "--json")).stdout)
    assert (document["base_version"], document["editor"], document["outcome"]["dry_run"]) == (0, MODEL, True)
    assert tasks(scene) == ["build", "mail"]
    done = ask(scene, Reply.edits(*CHAT), words=("--yes", "--json"))
    assert (done.exit_code, json.loads(done.stdout)["version"]) == (0, 1)
    assert tasks(scene) == ["build", "chat"]


def test_what_the_plan_rejects_or_lets_wait_has_the_documented_exit_code(scene: SystemScene) -> None:
    stored(
        scene, scopes=["edits=add_task,add_dependency,remove_task tasks=* executors=*"], approvals=["edits=remove_task"]
    )
    rejected = ask(scene, Reply.edits(*RENAMED), words=("--yes",))
    assert rejected.exit_code == 1
    assert f"outside the scope of the editor '{MODEL}'" in rejected.stderr
    waits = ask(scene, Reply.edits(*CHAT), words=("--yes",))
    assert waits.exit_code == 3, waits.output
    assert "asterism plan approve nightly 1" in waits.output
    assert tasks(scene) == ["build", "mail"]


def test_no_edits_are_an_answer(scene: SystemScene) -> None:
    stored(scene)
    none = ask(scene, Reply.edits(reason="The plan sends no mail."), words=("--yes",))
    assert none.exit_code == 1
    assert "The plan sends no mail." in none.stderr


@pytest.mark.parametrize(
    ("reply", "words", "says"),
    [
        (Reply.refusal(), (), f"{MODEL} refused to answer. Plan 'nightly' has not changed."),
        (Reply("certainly!"), (), "the last answer is wrong: it has no call of the tool `answer`"),
        (Reply.edits(*CHAT), ("--budget", "0calls"), "the budget of the model is spent: 0 of 0 calls are spent"),
        (Reply.edits(*CHAT), ("--budget", "0tasks"), "and the answer adds 1 task"),
    ],
)
def test_a_model_that_does_not_help_is_one_sentence(
    scene: SystemScene, reply: Reply, words: tuple[str, ...], says: str
) -> None:
    stored(scene)
    done = ask(scene, reply, words=("--yes", *words))
    assert done.exit_code == 1
    assert says in done.stderr
    if "budget" in says:
        assert "Raise it: " in done.stderr
    assert tasks(scene) == ["build", "mail"]


def test_what_is_missing_is_named_before_anything_is_opened(tmp_path: Path) -> None:
    scene = SystemScene(tmp_path)
    words = ("plan", "ask", "nightly")
    assert "Name a model: --model" in scene.run(*words, REQUEST).stderr
    assert "The request is empty" in scene.run(*words, " ", "--model", MODEL).stderr
    assert "exclude each other" in scene.run(*words, REQUEST, "--yes", "--dry-run").stderr
    no_key = scene.run(*words, REQUEST, "--model", MODEL, OPENAI_API_KEY="", OPENAI_BASE_URL="")
    assert (no_key.exit_code, f"--model {MODEL} cannot be used" in no_key.stderr) == (64, True)
    unknown = scene.run(*words, REQUEST, "--model", "nobody:knows")
    assert (unknown.exit_code, "--model nobody:knows cannot be used" in unknown.stderr) == (64, True)
    served = scene.run("serve", "--budget", "$1")
    assert "--budget needs --model NAME." in served.stderr


# -- a real terminal ---------------------------------------------------------------------------------------------------


class Terminal:
    """A pseudo-terminal in which a command runs. ``shown`` is all that it has written."""

    def __init__(self, leader: int, process: ForkedCommand) -> None:
        self._leader, self.process, self.shown = leader, process, ""

    def type(self, text: str) -> None:
        os.write(self._leader, text.encode())

    def interrupt_the_read(self) -> None:
        """Send the signal of Ctrl-C once the process waits for a line. Python notices one that comes between the prompt
        and the wait only with the next key."""
        status = Path(f"/proc/{self.process.pid}/stat")
        while status.exists() and status.read_text().rpartition(")")[2].split()[0] != "S":
            time.sleep(0.001)
        self.process.send_signal(signal.SIGINT)

    def read_until(self, text: str, times: int = 1) -> None:
        deadline = time.monotonic() + PATIENCE
        while self.shown.count(text) < times:
            assert select.select([self._leader], [], [], max(0.0, deadline - time.monotonic()))[0], self.shown
            self.shown += os.read(self._leader, 65_536).decode()

    def ended(self) -> int:
        """The exit code, when all is shown."""
        with contextlib.suppress(OSError):  # no process has it open any more
            while select.select([self._leader], [], [], PATIENCE)[0] and (chunk := os.read(self._leader, 65_536)):
                self.shown += chunk.decode()
        return self.process.wait(PATIENCE)


@contextmanager
def in_terminal(scene: SystemScene, *script: Any, typed_meanwhile: str = "") -> Iterator[Terminal]:
    """``plan ask`` in a terminal. ``typed_meanwhile`` is typed while the model thinks about its first answer."""
    leader, follower = os.openpty()

    def first(question: Question) -> Reply:
        if question.number == 0:
            os.write(leader, typed_meanwhile.encode())
        return script[min(question.number, len(script) - 1)]

    with served(ModelServer(first)) as server:
        words = ["plan", "ask", "nightly", REQUEST, "--model", MODEL]
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), follower)
        environment = {**os.environ, **scene.env, **server.environment, "TERM": "xterm"}
        with ForkedCommand(words, **streams, cwd=scene.folder, env=environment) as process:
            os.close(follower)
            try:
                yield Terminal(leader, process)
            finally:
                process.kill()
    os.close(leader)


APPLY = "Apply? [y/N or say what to change]"


def test_what_is_typed_before_the_edits_are_shown_does_not_apply_them(scene: SystemScene) -> None:
    stored(scene)
    with in_terminal(scene, Reply.edits(*CHAT), typed_meanwhile="y\n") as terminal:
        terminal.read_until(APPLY)
        terminal.type("\n")
        assert terminal.ended() == 1
    assert tasks(scene) == ["build", "mail"]


def test_a_second_line_that_is_pasted_answers_no_later_question(scene: SystemScene) -> None:
    stored(scene)
    with in_terminal(scene, Reply.edits(*CHAT), Reply.edits(*RENAMED)) as terminal:
        terminal.read_until(APPLY)
        terminal.type("keep the task\ny\n")
        terminal.read_until(APPLY, times=2)
        assert f"{MODEL} reads plan 'nightly' … (Ctrl-C stops)" in terminal.shown
        terminal.type("no\n")
        assert terminal.ended() == 1
        assert "Nothing was applied." in terminal.shown
    assert tasks(scene) == ["build", "mail"]


@pytest.mark.parametrize("key", ["Ctrl-C", "Ctrl-D"])
def test_a_question_that_is_interrupted_is_answered_with_no(scene: SystemScene, key: str) -> None:
    stored(scene)
    with in_terminal(scene, Reply.edits(*CHAT)) as terminal:
        terminal.read_until(APPLY)
        if key == "Ctrl-C":
            terminal.interrupt_the_read()
        else:
            terminal.type("\x04")
        assert terminal.ended() == 1
        assert terminal.shown.endswith("\r\nNothing was applied.\r\n")  # on a line of its own
    assert tasks(scene) == ["build", "mail"]


def test_a_model_that_thinks_is_interrupted(scene: SystemScene) -> None:
    stored(scene)
    with in_terminal(scene, Reply.edits(*CHAT).but(delay=asyncio.Event().wait)) as terminal:
        terminal.read_until("(Ctrl-C stops)")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.ended() == 130
        assert "Traceback" not in terminal.shown
    assert tasks(scene) == ["build", "mail"]


def test_a_round_that_fails_keeps_the_proposal_before_it(scene: SystemScene, terminal: None) -> None:
    stored(scene)
    with served(Reply.edits(*CHAT), Reply.refusal()) as server:
        words = ("plan", "ask", "nightly", REQUEST, "--model", MODEL)
        done = scene.run(*words, stdin="something else, please\ny\n", **server.environment)
    assert done.exit_code == 0, done.output
    assert f"{MODEL} refused to answer. Plan 'nightly' has not changed." in done.stderr
    assert "The proposal before is kept: y applies it." in done.stderr
    assert tasks(scene) == ["build", "chat"]
    assert f"by ann: {REQUEST}\n" in scene.ok("plan", "history", "nightly")


def test_one_word_is_neither_yes_nor_a_round_that_is_paid_for(scene: SystemScene, terminal: None) -> None:
    stored(scene)
    with served(Reply.edits(*CHAT)) as server:
        words = ("plan", "ask", "nightly", REQUEST, "--model", MODEL)
        for refusal in ("q", "quit", "NO"):
            done = scene.run(*words, stdin=f"ok\napply\n{refusal}\n", **server.environment)
            assert (done.exit_code, done.stderr.count("That is one word.")) == (1, 2)
        assert len(server.questions) == 3
    assert tasks(scene) == ["build", "mail"]


def test_what_brings_no_edits_has_an_exit_code_and_a_document(scene: SystemScene) -> None:
    stored(scene)
    none = ask(scene, Reply.edits(reason="The plan sends no mail."), words=("--dry-run",))
    assert none.exit_code == 1
    refused = ask(scene, Reply.refusal(), words=("--dry-run", "--json"))
    document = json.loads(refused.stdout)
    assert (refused.exit_code, document["name"], document["accepted"]) == (1, "nightly", False)
    assert document["problem"].startswith(f"{MODEL} refused to answer.")
