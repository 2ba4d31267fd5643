"""Agents that speak the Agent Client Protocol (ACP), each execution in a child process of its own.

The device is the client: it starts the agent, opens one session, sends the prompt and records what the agent says and
does. What the agent asks for (permissions, files, terminals) is judged by the device policy (``judged_actions``). The
process is under the lease of the run and ends with its execution, together with all that it started.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import shutil
from collections.abc import AsyncIterator, Mapping, Sequence
from importlib import import_module
from typing import Any

from asterism.agents.agent_prompt import LONGEST_ANSWER, AgentAnswer, AgentFailed, agent_result, load_extra
from asterism.base.text import clean, shorten
from asterism.core.errors import AsterismError, DeviceUnavailable
from asterism.core.json_values import JsonObject
from asterism.core.run.run import Progress
from asterism.execution.processes import CommandFailed
from asterism.fleet.device.agent_work import AgentWork
from asterism.models.judged_actions import JudgedActions, RunningCommand, paths_in

START_TIMEOUT = 120.0
"""How long an agent has to start and to open a session, in seconds."""

SILENCE = 3600.0
"""How long an agent may say nothing while it works, in seconds. The time limit of a task is usually shorter."""

EXIT_TIMEOUT = 2.0
"""How long an agent has to end its turn, or itself, when it is asked to, in seconds."""

LARGEST_MESSAGE = 32 << 20
"""The largest message of an agent, and how much may wait to be read, in bytes."""

_REFUSALS = {
    "refusal": "the agent refused the work",
    "cancelled": "the agent cancelled its turn",
    "max_tokens": "the agent reached its limit of tokens",
    "max_turn_requests": "the agent reached its limit of requests in one turn",
}


class AgentConnectionClosed(AgentFailed):
    """The agent no longer reads or writes: its process has ended, or is about to."""


def load_acp() -> Any:
    """The SDK. Raises AsterismError if it is not installed."""
    [acp] = load_extra("acp", "agents that speak ACP need the SDK", "acp")
    return acp


class AcpAgent:
    """Runs an ACP agent as a command, once for each execution. ``silence`` is how long it may say nothing."""

    def __init__(self, argv: Sequence[str], *, start_timeout: float = START_TIMEOUT, silence: float = SILENCE) -> None:
        self.argv, self._start_timeout, self._silence = list(argv), start_timeout, silence
        self.can: frozenset[str] = frozenset()
        self.labels: Mapping[str, str] = {"agent": os.path.basename(self.argv[0]), "agent-protocol": "acp"}

    @classmethod
    async def connect(cls, command: str) -> AcpAgent:
        """The agent that a command starts. Raises AsterismError if there is none, or if the SDK is not installed."""
        try:
            words = shlex.split(command)
        except ValueError as error:
            raise AsterismError(f"the command of the agent is not valid: {error}") from None
        if not words or shutil.which(words[0]) is None:
            raise AsterismError(f"there is no command {words[0] if words else command!r} on this device")
        await asyncio.to_thread(load_acp)
        return cls(words)

    async def execute(self, work: AgentWork) -> Any:
        acp = await asyncio.to_thread(load_acp)  # a first import takes long, and heartbeats must not wait for it
        actions = JudgedActions(work)
        client = _Client(acp, work, actions)
        try:
            async with _AgentProcess(work, self.argv).started() as process:
                client.heard = process.heard
                connection = acp.connect_to_agent(client, process)
                try:
                    return await process.unless_it_ends(self._converse(acp, connection, client, work))
                finally:
                    actions.end()
                    await connection.close()
        finally:
            await actions.close()

    async def _converse(self, acp: Any, connection: Any, client: _Client, work: AgentWork) -> Any:
        with _protocol_errors(acp):
            try:
                async with asyncio.timeout(self._start_timeout):
                    session = await self._open_session(acp, connection, client, work)
            except TimeoutError:
                raise AgentFailed(f"the agent did not start within {self._start_timeout:g} s") from None

            async def ask(prompt: str) -> AgentAnswer:
                return await self._ask(acp, connection, client, session, prompt)

            return await agent_result(work, ask)

    async def _open_session(self, acp: Any, connection: Any, client: _Client, work: AgentWork) -> str:
        allowed = work.policy.rules.permissions
        files = acp.schema.FileSystemCapabilities(read_text_file="read" in allowed, write_text_file="edit" in allowed)
        capabilities = acp.schema.ClientCapabilities(fs=files, terminal="execute" in allowed)
        about = acp.schema.Implementation(name="asterism", version="1")
        answer = await connection.initialize(acp.PROTOCOL_VERSION, capabilities, about)
        if answer.protocol_version != acp.PROTOCOL_VERSION:
            theirs = f"version {answer.protocol_version} of ACP"
            raise AgentFailed(f"the agent speaks {theirs}, this device version {acp.PROTOCOL_VERSION}")
        session = await connection.new_session(cwd=work.cwd, mcp_servers=[])
        client.session = session.session_id
        return str(session.session_id)

    async def _ask(self, acp: Any, connection: Any, client: _Client, session: str, prompt: str) -> AgentAnswer:
        client.begin_turn()

        async def take_turn() -> Any:
            answer = await connection.prompt(session_id=session, prompt=[acp.text_block(prompt)])
            client.end_turn()  # here: messages that came after the answer are heard before the caller goes on
            return answer

        turn = asyncio.create_task(take_turn())
        try:
            while not turn.done():
                client.heard.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._silence):
                        await _first_of(turn, client.heard)
                if not turn.done() and not client.heard.is_set():
                    raise AgentFailed(f"the agent said nothing for {self._silence:g} s")
            answer = await turn
        except (asyncio.CancelledError, AgentFailed):
            client.end()
            await _end_turn(connection, session, turn)
            raise
        finally:
            turn.cancel()
        if answer.usage is not None:
            client.note(f"tokens: {answer.usage.input_tokens} in, {answer.usage.output_tokens} out")
        if answer.stop_reason != "end_turn":
            raise AgentFailed(_REFUSALS.get(answer.stop_reason, f"the agent stopped: {answer.stop_reason}"))
        return AgentAnswer(client.answer())


async def _first_of(turn: asyncio.Task[Any], heard: asyncio.Event) -> None:
    waiting = asyncio.create_task(heard.wait())
    try:
        await asyncio.wait([turn, waiting], return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()


async def _end_turn(connection: Any, session: str, turn: asyncio.Task[Any]) -> None:
    """Ask the agent to end its turn, and give it a moment. It is stopped in any case."""
    with contextlib.suppress(Exception):
        async with asyncio.timeout(EXIT_TIMEOUT):
            await connection.cancel(session_id=session)
            await asyncio.wait([turn])


@contextlib.contextmanager
def _protocol_errors(acp: Any) -> Any:
    """Errors of the protocol, as failures of the agent."""
    pydantic = import_module("pydantic")
    try:
        yield
    except acp.RequestError as error:
        if error.code == acp.RequestError.auth_required().code:
            raise AgentFailed("the agent needs a login: start it by hand on this device and log in") from error
        details = "" if error.data is None else f": {shorten(json.dumps(error.data, default=str), 500)}"
        raise AgentFailed(f"the agent answered with an error: {clean(str(error))}{details}") from error
    except pydantic.ValidationError as error:
        raise AgentFailed(f"the agent sent a message that is not valid: {shorten(str(error), 500)}") from error
    except (ConnectionError, BrokenPipeError) as error:
        raise AgentConnectionClosed("the agent closed the connection") from error


# -- the client --------------------------------------------------------------------------------------------------------


class _Client:
    """The side of the device: receives what the agent says and asks for. ``heard`` is set by every message."""

    def __init__(self, acp: Any, work: AgentWork, actions: JudgedActions) -> None:
        self._acp, self._work, self._actions = acp, work, actions
        self.heard = asyncio.Event()
        self.session: str | None = None
        self._calls: dict[str, tuple[str, str, list[str], Any]] = {}  # kind, title, paths and terms, by id
        self._parts: list[str] = []
        self._in_turn = False
        self._last_parts = 0  # where the text after the last tool call begins
        self._length = 0

    def note(self, text: str) -> None:
        self._work.note(text)

    def end(self) -> None:
        """Refuse what the agent asks for while it is stopped."""
        self._actions.end()

    def begin_turn(self) -> None:
        self._parts, self._last_parts, self._length = [], 0, 0
        self._in_turn = True

    def end_turn(self) -> None:
        """What the agent says from now on is no part of its answer."""
        self._in_turn = False

    def answer(self) -> str:
        """What the agent said after its last tool call; all that it said in its turn if that is nothing."""
        if self._parts:
            self._work.write(1, b"\n")
        if self._length > LONGEST_ANSWER:
            raise AgentFailed(f"the answer of the agent has more than {LONGEST_ANSWER:,} characters")
        last = "".join(self._parts[self._last_parts :])
        return last if last.strip() else "".join(self._parts)

    def on_connect(self, connection: Any) -> None:
        """Nothing to do: the device begins."""

    # -- what it says --------------------------------------------------------------------------------------------------

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        kind = update.session_update
        if kind == "agent_message_chunk":
            self._say(getattr(update.content, "text", None))
        elif kind in ("tool_call", "tool_call_update"):
            self._tool_call(update, began=kind == "tool_call")
            self._last_parts = len(self._parts) if self._in_turn else self._last_parts
        elif kind == "plan":
            done = sum(entry.status == "completed" for entry in update.entries)
            self._work.report(Progress(done, len(update.entries)))

    def _say(self, text: Any) -> None:
        if not isinstance(text, str):
            return  # pictures and sounds are no part of the answer
        if self._in_turn:
            self._length += len(text)
            if self._length <= LONGEST_ANSWER:
                self._parts.append(text)
        self._work.write(1, text.encode(errors="replace"))

    def _tool_call(self, call: Any, *, began: bool) -> tuple[str, str, list[str], Any]:
        """Remember a tool call: later messages name only what has changed."""
        kind, title, paths, parameters = self._calls.get(call.tool_call_id, ("other", "", [], None))
        paths = paths_in(call.locations, call.content) or paths
        parameters = parameters if call.raw_input is None else call.raw_input
        known = (call.kind or kind, call.title or title, paths, parameters)
        self._calls[call.tool_call_id] = known
        if began:
            self.note(f"tool: {known[0]} {shorten(clean(known[1]), 300)}")
        return known

    # -- what it asks for ----------------------------------------------------------------------------------------------

    async def request_permission(self, session_id: str, tool_call: Any, options: Sequence[Any], **_: Any) -> Any:
        """Choose an option that allows this once, if the device policy allows it. Never one that allows it for ever:
        every request is judged."""
        schema = self._acp.schema
        kind, title, paths, parameters = self._tool_call(tool_call, began=False)
        once = next((option for option in options if option.kind == "allow_once"), None)
        if session_id == self.session and once is not None and self._actions.permit(kind, title, paths, parameters):
            outcome = schema.AllowedOutcome(option_id=once.option_id, outcome="selected")
            return schema.RequestPermissionResponse(outcome=outcome)
        if self._actions.ended:  # the answer that the protocol asks for in a turn that was cancelled
            return schema.RequestPermissionResponse(outcome=schema.DeniedOutcome(outcome="cancelled"))
        if once is None:
            self.note(f"refused: {kind} {shorten(clean(title), 300)}: it can only be allowed for ever")
        no = next((option for option in options if option.kind == "reject_once"), None)
        if no is None:
            return schema.RequestPermissionResponse(outcome=schema.DeniedOutcome(outcome="cancelled"))
        outcome = schema.AllowedOutcome(option_id=no.option_id, outcome="selected")
        return schema.RequestPermissionResponse(outcome=outcome)

    async def read_text_file(
        self, session_id: str, path: str, line: int | None = None, limit: int | None = None, **_: Any
    ) -> Any:
        with self._answers(session_id):
            text = await self._actions.read_file(path, line, limit)
        return self._acp.schema.ReadTextFileResponse(content=text)

    async def write_text_file(self, session_id: str, path: str, content: str, **_: Any) -> Any:
        with self._answers(session_id):
            await self._actions.write_file(path, content)
        return self._acp.schema.WriteTextFileResponse()

    async def create_terminal(
        self,
        session_id: str,
        command: str,
        args: list[str] | None = None,
        env: list[Any] | None = None,
        cwd: str | None = None,
        output_byte_limit: int | None = None,
        **_: Any,
    ) -> Any:
        variables = {variable.name: variable.value for variable in env or ()}
        with self._answers(session_id):
            name = self._actions.start_command([command, *(args or ())], variables, cwd, output_byte_limit)
        return self._acp.schema.CreateTerminalResponse(terminal_id=name)

    async def terminal_output(self, session_id: str, terminal_id: str, **_: Any) -> Any:
        command, schema = self._terminal(session_id, terminal_id), self._acp.schema
        status = schema.TerminalExitStatus(**_ending(command)) if command.ended else None
        return schema.TerminalOutputResponse(output=command.output, truncated=command.truncated, exit_status=status)

    async def wait_for_terminal_exit(self, session_id: str, terminal_id: str, **_: Any) -> Any:
        command = self._terminal(session_id, terminal_id)
        await command.wait()
        self.heard.set()
        return self._acp.schema.WaitForTerminalExitResponse(**_ending(command))

    async def kill_terminal(self, session_id: str, terminal_id: str, **_: Any) -> Any:
        await self._terminal(session_id, terminal_id).stop()
        return self._acp.schema.KillTerminalResponse()

    async def release_terminal(self, session_id: str, terminal_id: str, **_: Any) -> Any:
        self._terminal(session_id, terminal_id)
        await self._actions.release(terminal_id)
        return self._acp.schema.ReleaseTerminalResponse()

    async def create_elicitation(self, message: str, mode: Any, **_: Any) -> Any:
        """Nobody is there to answer."""
        raise self._acp.RequestError.method_not_found("elicitation/create")

    async def complete_elicitation(self, elicitation_id: str, **_: Any) -> None: ...

    async def ext_method(self, method: str, params: JsonObject) -> JsonObject:
        raise self._acp.RequestError.method_not_found(method)

    async def ext_notification(self, method: str, params: JsonObject) -> None: ...

    def _terminal(self, session_id: str, terminal_id: str) -> RunningCommand:
        if session_id != self.session or terminal_id not in self._actions.commands:
            raise self._acp.RequestError.resource_not_found(terminal_id)
        return self._actions.commands[terminal_id]

    @contextlib.contextmanager
    def _answers(self, session_id: str) -> Any:
        """What goes wrong is the answer to the agent, not a failure of the run."""
        if session_id != self.session:
            raise self._acp.RequestError.invalid_params({"details": "there is no such session"})
        try:
            yield
        except FileNotFoundError as error:
            raise self._acp.RequestError.resource_not_found(error.filename) from error
        except (OSError, AsterismError, ValueError) as error:
            raise self._acp.RequestError.invalid_request({"details": str(error)}) from error


def _ending(command: RunningCommand) -> JsonObject:
    return {"exit_code": command.exit_code, "signal": command.signal}


# -- the process -------------------------------------------------------------------------------------------------------


class _AgentProcess:
    """The process of an agent, and the messages on its pipes: a transport of the SDK."""

    def __init__(self, work: AgentWork, argv: Sequence[str]) -> None:
        self._work, self._argv = work, list(argv)
        self.heard = asyncio.Event()
        self._rest = bytearray()
        self._lines: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._waiting = 0  # bytes in the queue
        self._flooded = False
        self._writer: asyncio.StreamWriter | None = None

    @contextlib.asynccontextmanager
    async def started(self) -> AsyncIterator[_AgentProcess]:
        """Start the agent. At the end its input is closed; if that does not end it, it is stopped."""
        loop = asyncio.get_running_loop()
        read, write = os.pipe()
        with os.fdopen(read, "rb") as stdin, os.fdopen(write, "wb", buffering=0) as output:
            work = self._work
            running = work.processes.run(self._argv, work.environment, work.cwd, heard=self._hear, stdin=stdin)
            self._running = asyncio.create_task(running)
            self._running.add_done_callback(self._ended)
            try:
                transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, output)
                self._writer = asyncio.StreamWriter(transport, protocol, None, loop)
                yield self
            finally:
                await self._stop()

    def _ended(self, _: asyncio.Task[Any]) -> None:
        """The process has ended: nothing more comes, and nobody reads what is still to be written."""
        self._lines.put_nowait(None)
        transport = None if self._writer is None else self._writer.transport
        if transport is not None and (transport.get_write_buffer_size() or not transport.is_closing()):
            transport.abort()  # a transport that is already closed must not be closed again

    async def _stop(self) -> None:
        if self._writer is not None:
            self._writer.close()
        try:
            await asyncio.wait([self._running], timeout=EXIT_TIMEOUT)
        finally:
            self._running.cancel()
            await asyncio.wait([self._running])
            if not self._running.cancelled():
                self._running.exception()  # it has ended one way or the other
            await asyncio.sleep(0)  # the pipe leaves the event loop before its file is closed

    async def unless_it_ends(self, conversation: Any) -> Any:
        """The result of a conversation. If the process ends first, that is why the conversation failed."""
        talking = asyncio.create_task(conversation)
        try:
            await asyncio.wait([talking])
        except asyncio.CancelledError:
            talking.cancel()
            await asyncio.wait([talking])
            raise
        if not isinstance(talking.exception(), AgentConnectionClosed):
            return talking.result()
        if self._flooded:
            raise AgentFailed(f"the agent sent more than {LARGEST_MESSAGE:,} bytes that nobody could read")
        await asyncio.wait([self._running], timeout=EXIT_TIMEOUT)
        if not self._running.done():
            return talking.result()
        ended = self._running.exception()
        if isinstance(ended, FileNotFoundError | PermissionError):
            raise DeviceUnavailable(f"the agent {self._argv[0]!r} cannot be started: {ended.strerror}") from ended
        if ended is None or isinstance(ended, CommandFailed):
            why = "" if ended is None else f": {ended}"
            raise AgentFailed(f"the agent ended before its work was done{why}") from ended
        raise ended  # a failure of the device

    def _hear(self, pipe: int, data: bytes) -> None:
        self.heard.set()
        if pipe != 1:
            self._work.write(pipe, data)
            return
        *lines, rest = (bytes(self._rest) + data).split(b"\n") if b"\n" in data else (data,)
        self._rest = bytearray(rest) if lines else self._rest + rest
        for line in lines:
            self._waiting += len(line)
            self._lines.put_nowait(line)
        if max(self._waiting, len(self._rest)) > LARGEST_MESSAGE:
            self._flooded = True
            self._lines.put_nowait(None)

    # -- transport -----------------------------------------------------------------------------------------------------

    async def send(self, message: JsonObject) -> None:
        try:
            if self._writer is None or self._running.done():
                raise ConnectionResetError("the agent has ended")
            self._writer.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")
            await self._writer.drain()
        except ConnectionError:
            if "method" in message:  # an answer, in contrast, is dropped: nobody waits for it any more
                raise

    async def receive(self) -> JsonObject | None:
        while not self._flooded:
            line = await self._lines.get()
            if line is None:
                break
            self._waiting -= len(line)
            try:
                message = json.loads(line)
            except (ValueError, RecursionError):
                message = None
            if isinstance(message, dict):
                return message
            if line.strip():
                self._work.write(2, line + b"\n")  # not a message: something printed
        return None

    async def close(self) -> None:
        """The pipes are closed with the process."""
