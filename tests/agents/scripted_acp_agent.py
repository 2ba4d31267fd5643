"""An agent that speaks ACP with the official SDK and does what the prompt says, good or bad: a program for tests.

The first line of the prompt is a JSON list of steps, each a mapping with one key. Steps of later prompts come from the
list under ``again``.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import acp
from acp import schema


class ScriptedAgent:
    def __init__(self) -> None:
        self.client: Any = None
        self.again: list[Any] = []
        self.turn: asyncio.Task[Any] | None = None
        self.prompts = 0

    def on_connect(self, conn: Any) -> None:
        self.client = conn

    async def initialize(self, protocol_version: int, **_: Any) -> schema.InitializeResponse:
        if os.environ.get("AGENT_START") == "hang":
            await asyncio.Event().wait()
        return schema.InitializeResponse(protocol_version=protocol_version)

    async def new_session(self, cwd: str, **_: Any) -> schema.NewSessionResponse:
        if os.environ.get("AGENT_START") == "login":
            raise acp.RequestError.auth_required()
        return schema.NewSessionResponse(session_id=f"s-{os.getpid()}")

    async def prompt(self, session_id: str, prompt: list[Any], **_: Any) -> schema.PromptResponse:
        self.prompts += 1
        text = prompt[0].text
        steps = json.loads(text.splitlines()[0]) if self.prompts == 1 else self.again
        self.turn = asyncio.ensure_future(self.act(session_id, steps, text))
        try:
            reason = await self.turn
        except asyncio.CancelledError:
            reason = "cancelled"
        return schema.PromptResponse(stop_reason=reason)

    async def cancel(self, session_id: str, **_: Any) -> None:
        if self.turn is not None:
            self.turn.cancel()

    async def act(self, session: str, steps: list[Any], text: str) -> Any:
        for step in steps:
            ((name, value),) = step.items()
            reason = await getattr(self, f"do_{name}")(session, value, text)
            if reason is not None:
                return reason
        return "end_turn"

    async def say(self, session: str, text: str) -> None:
        await self.client.session_update(session_id=session, update=acp.update_agent_message_text(text))

    # -- steps ---------------------------------------------------------------------------------------------------------

    async def do_say(self, session: str, value: str, _: str) -> None:
        await self.say(session, value)

    async def do_repeat_prompt(self, session: str, _: Any, text: str) -> None:
        await self.say(session, text)

    async def do_where(self, session: str, value: list[str], _: str) -> None:
        """Say its directory and some of its variables."""
        await self.say(session, json.dumps([os.getcwd(), *(os.environ.get(name) for name in value)]))

    async def do_again(self, session: str, value: list[Any], _: str) -> None:
        self.again = value

    async def do_plan(self, session: str, value: list[str], _: str) -> None:
        entries = [schema.PlanEntry(content=str(n), priority="low", status=status) for n, status in enumerate(value)]  # type: ignore[arg-type]
        await self.client.session_update(session_id=session, update=acp.update_plan(entries))

    async def do_stop(self, session: str, value: str, _: str) -> str:
        return value

    async def do_exit(self, session: str, value: int, _: str) -> None:
        os._exit(value)

    async def do_kill(self, session: str, value: Any, _: str) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    async def do_hang(self, session: str, value: Any, _: str) -> None:
        """Never answer. With ``deaf`` it ignores SIGTERM and the cancellation of its turn."""
        if value.get("deaf"):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            self.turn = None
        write_pids(Path(value["file"]), child=bool(value.get("child")))
        await asyncio.Event().wait()

    async def do_noise(self, session: str, value: Any, _: str) -> None:
        """Print what is not a message."""
        sys.stdout.write("Welcome to the agent!\n[1, 2]\n{broken\n")
        sys.stdout.flush()
        sys.stderr.write("a warning\n")
        sys.stderr.flush()

    async def do_flood(self, session: str, value: int, _: str) -> None:
        chunk = "x" * 65536
        while value > 0:
            value -= sys.stdout.write(chunk)
        sys.stdout.flush()
        await asyncio.Event().wait()

    async def do_permission(self, session: str, value: dict[str, Any], _: str) -> None:
        kinds = value.pop("options", ["allow_always", "allow_once", "reject_once"])
        options = [schema.PermissionOption(option_id=kind, name=kind, kind=kind) for kind in kinds]
        call = schema.ToolCallUpdate(tool_call_id="call-1", **value)
        answer = await self.client.request_permission(session_id=session, tool_call=call, options=options)
        outcome = answer.outcome
        await self.say(session, f"<{getattr(outcome, 'option_id', outcome.outcome)}>")

    async def do_read(self, session: str, value: str, _: str) -> None:
        await self._try(session, lambda: self.client.read_text_file(session_id=session, path=value), "content")

    async def do_write(self, session: str, value: list[str], _: str) -> None:
        await self._try(
            session, lambda: self.client.write_text_file(session_id=session, path=value[0], content=value[1])
        )

    async def do_run(self, session: str, value: dict[str, Any], _: str) -> None:
        async def run() -> Any:
            made = await self.client.create_terminal(session_id=session, **value)
            at = {"session_id": session, "terminal_id": made.terminal_id}
            await self.client.wait_for_terminal_exit(**at)
            output = await self.client.terminal_output(**at)
            await self.client.release_terminal(**at)
            return output

        await self._try(session, run, "output")

    async def do_leave_running(self, session: str, value: list[str], _: str) -> None:
        await self.client.create_terminal(session_id=session, command=value[0], args=value[1:])

    async def _try(self, session: str, call: Any, field: str | None = None) -> None:
        try:
            answer = await call()
        except acp.RequestError as error:
            await self.say(session, f"<error: {json.dumps(error.data)}>")
        else:
            await self.say(session, f"<{'done' if field is None else getattr(answer, field)}>")


def write_pids(path: Path, *, child: bool) -> None:
    """Write the id of this process into a file, and that of a child into another one before."""
    if child:
        Path(f"{path}.child").write_text(f"{subprocess.Popen(['sleep', '1000']).pid}\n")
    new = Path(f"{path}.new")
    new.write_text(f"{os.getpid()}\n")
    new.rename(path)


if __name__ == "__main__":
    asyncio.run(acp.run_agent(ScriptedAgent()))  # type: ignore[arg-type]
