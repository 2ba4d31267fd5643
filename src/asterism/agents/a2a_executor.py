"""Remote agents that speak the Agent2Agent protocol (A2A), as devices.

The agent card becomes the profile of the device. A message is sent without waiting for its end; then the task of the
agent is followed by its stream of events, or by polling if the agent has no streams or the connection is lost. The task
keeps its id: after a lost connection, and after the death of this device, the same task is followed, not another begun.
Its context carries the id of the run and of the attempt, so that it can be found: a task of an attempt that has failed
is never taken for one of the next.

A request goes only to the origin of the agent, or to a host that the device policy file lists: an agent card may name
any address.

The agent may be hostile. Each exchange has one deadline, however slowly its parts arrive; a body has a limit of bytes
and of values, which are counted before they are parsed; everything is parsed in a thread of its own, since the library
computes for long inside of its coroutines; requests have a pause between them; and an answer about another task
than the one that was asked for does not count.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, TypeVar
from urllib.parse import urlsplit

from asterism.agents.agent_prompt import LONGEST_ANSWER, AgentAnswer, AgentFailed, agent_result, load_extra
from asterism.base.http_answers import AnswerRefused, bound_answer
from asterism.base.https_session import http_client
from asterism.base.loop_thread import run_in_thread
from asterism.base.strict_json import JsonCount
from asterism.base.text import masked_url, shorten
from asterism.core.backoff import retry_delay
from asterism.core.errors import AsterismError
from asterism.fleet.device.agent_work import AgentWork
from asterism.fleet.policy.device_policy import DevicePolicy
from asterism.fleet.policy.judged_requests import judge_connections

Value = TypeVar("Value")


TOKEN_VARIABLE = "ASTERISM_AGENT_TOKEN"
"""The variable with the token that the agent gets as ``Authorization: Bearer``."""

REQUEST_TIMEOUT = 60.0
"""How long one request may take, and how long a stream may be silent before the task is asked for, in seconds."""

LOST_TIMEOUT = 600.0
"""How long an agent may be unreachable, in seconds."""

POLL = 2.0
"""Seconds between two requests for a task without a stream."""

SILENCE = 3600.0
"""How long the task of an agent may go on without any change, in seconds."""

CANCEL_TIMEOUT = 5.0
"""How long the request to cancel a task may take, in seconds."""

LARGEST_CARD = 1 << 20
"""The largest card, in bytes."""

EVENT_STREAM = "text/event-stream"

MOST_VALUES = 200_000
"""How many values one answer, or one event of a stream, may have: each takes far longer to parse than to send."""

LARGEST_BODY = 8 * LONGEST_ANSWER
"""The largest answer to one request, in bytes: the longest answer in JSON, and what belongs to it."""

_LONGEST_BACKOFF = 30.0
_SLOWEST_POLL = 8
"""How much longer the pause between two requests for a task gets while it does not change."""

_MOST_SKILLS = 100


def load_a2a() -> Any:
    """The types of the SDK. Raises AsterismError if it is not installed."""
    _, types = load_extra("a2a", "agents that speak A2A need the SDK", "a2a.client", "a2a.types.a2a_pb2")
    return types


class A2aAgent:
    """A remote agent; ``connect`` reads its card. Times are in seconds, see the constants of this module."""

    def __init__(
        self,
        url: str,
        card: Any,
        policy: DevicePolicy,
        *,
        lost_timeout: float = LOST_TIMEOUT,
        request_timeout: float = REQUEST_TIMEOUT,
        poll: float = POLL,
        silence: float = SILENCE,
    ) -> None:
        self.url, self.card, self._policy, self._silence = url, card, policy, silence
        self._lost_timeout, self._request_timeout, self._poll = lost_timeout, request_timeout, poll
        self.can = frozenset(f"skill:{skill.id}" for skill in card.skills[:_MOST_SKILLS] if _WORD.fullmatch(skill.id))
        shown = {"agent": card.name, "agent-version": card.version, "agent-protocol": "a2a"}
        self.labels: Mapping[str, str] = {name: shorten(text, 200) for name, text in shown.items() if text}

    @classmethod
    async def connect(cls, url: str, policy: DevicePolicy, **options: Any) -> A2aAgent:
        """Read the card of the agent at a URL. Raises AsterismError if that fails, and PolicyForbids."""
        await asyncio.to_thread(load_a2a)
        limit = options.get("request_timeout", REQUEST_TIMEOUT)

        async def connected() -> A2aAgent:
            card = await _card(url, policy, limit)
            agent = cls(url, card, policy, **options)
            for interface in card.supported_interfaces:
                _judge(interface.url, url, policy)
            async with agent._session() as _:
                return agent

        return await run_in_thread(connected, "A2A card")

    @contextlib.asynccontextmanager
    async def _session(self) -> AsyncIterator[_Requests]:
        """Clients for the requests of one execution. Raises AsterismError if the agent offers no known transport."""
        from a2a.client import ClientConfig, ClientFactory

        async with _judged_client(self.url, self._policy, self._request_timeout) as http:
            transport = {"httpx_client": http, "supported_protocol_bindings": ["JSONRPC", "HTTP+JSON"]}
            try:
                client = ClientFactory(ClientConfig(streaming=False, polling=True, **transport)).create(self.card)
                streams = ClientFactory(ClientConfig(streaming=True, **transport)).create(self.card)
            except Exception as error:  # of a library that reads a card of a stranger
                why = shorten(str(error) or type(error).__name__, 500)
                raise AsterismError(f"the agent at {masked_url(self.url)} cannot be used: {why}") from None
            streaming = streams if self.card.capabilities.streaming else None
            limits = _Limits(self._request_timeout, self._lost_timeout, self._poll)
            yield _Requests(load_a2a(), client, streaming, limits)

    async def execute(self, work: AgentWork) -> Any:
        await asyncio.to_thread(load_a2a)
        loop = asyncio.get_running_loop()

        def write(stream: int, data: bytes) -> None:
            loop.call_soon_threadsafe(work.write, stream, data)

        threaded = replace(work, write=write)
        return await run_in_thread(lambda: self._execute(threaded), f"A2A {work.run.id}")

    async def _execute(self, work: AgentWork) -> Any:
        async with self._session() as requests:
            conversation = _Conversation(requests, work, self._silence)
            try:
                return await agent_result(work, conversation.ask)
            except AnswerRefused as error:
                raise AgentFailed(str(error)) from error


_WORD = re.compile(r"[A-Za-z0-9_.-]{1,64}")
"""An id that may be a capability: prompts show them beside the words of the plan, so no sentence fits in it."""


# -- requests ----------------------------------------------------------------------------------------------------------


async def _card(url: str, policy: DevicePolicy, limit: float) -> Any:
    """The card of the agent at a URL. Raises AsterismError and PolicyForbids."""
    from a2a.client import A2ACardResolver
    from a2a.client.errors import AgentCardResolutionError

    try:
        async with asyncio.timeout(limit), _judged_client(url, policy, limit, LARGEST_CARD) as client:
            return await A2ACardResolver(client, url).get_agent_card()
    except AsterismError:
        raise
    except TimeoutError:
        why = f"it did not arrive within {limit:g} s"
    except AgentCardResolutionError as error:
        why = shorten(str(error.message), 500)
    except Exception as error:  # of a library that reads what a stranger has sent
        why = f"it is not a valid card ({shorten(str(error), 200) or type(error).__name__})"
    raise AsterismError(f"the card of the agent at {masked_url(url)} cannot be read: {why}")


@contextlib.asynccontextmanager
async def _judged_client(
    url: str, policy: DevicePolicy, timeout: float, largest: int | None = None
) -> AsyncIterator[Any]:
    """An HTTP client for the agent at a URL, which judges each request before it is sent and follows no redirects."""
    token = os.environ.get(TOKEN_VARIABLE)
    headers = {"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {token}"} if token else {})

    async def judge(request: Any) -> None:
        _judge(str(request.url), url, policy)
        if _origin(str(request.url)) != _origin(url):
            request.headers.pop("Authorization", None)

    async def bound(response: Any) -> None:
        response.encoding = "utf-8"  # the values are counted so, whatever charset the agent names
        bound_answer(response, min(LARGEST_BODY, largest or LARGEST_BODY), _counter(response))

    hooks = {"request": [judge], "response": [bound]}
    async with await http_client(timeout=timeout, headers=headers, event_hooks=hooks) as client:
        judge_connections(client, policy)
        yield client


def _counter(response: Any) -> Callable[[bytes], None]:
    """What counts the values of a body before they are parsed. Raises AgentFailed."""
    values = JsonCount(events=_is_stream(response))

    def count(part: bytes) -> None:
        if values.add(part) > MOST_VALUES:
            raise AgentFailed(f"the agent answered with more than {MOST_VALUES:,} values")

    return count


def _is_stream(response: Any) -> bool:
    """Whether a body is read event by event. If no stream was asked for, or the answer is an error, it is parsed as a
    whole, whatever type it names."""
    asked = response.request.headers.get("Accept") == EVENT_STREAM
    return asked and response.is_success and EVENT_STREAM in response.headers.get("Content-Type", "")


def _judge(target: str, url: str, policy: DevicePolicy) -> None:
    """Raise PolicyForbids, or AsterismError for another origin than the agent's without a device policy file."""
    if not policy.everything:
        policy.url(target)
    elif _origin(target) != _origin(url):
        theirs, ours = masked_url(target)[:200], masked_url(url)[:200]
        raise AsterismError(
            f"the agent at {ours} leads to another host, {theirs}: list it in the 'hosts' of a device policy file"
        )


def _origin(url: str) -> tuple[str, str | None, int | None]:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return ("", None, None)  # no origin: that of no agent
    return (parts.scheme, parts.hostname, port or {"http": 80, "https": 443}.get(parts.scheme))


@dataclass(frozen=True, slots=True)
class _Limits:
    """Seconds: for one exchange, for an agent that is away, and between two requests for a task."""

    exchange: float
    lost: float
    poll: float


class _Requests:
    """Requests to one agent, repeated while it cannot be reached."""

    def __init__(self, types: Any, client: Any, streams: Any, limits: _Limits) -> None:
        from a2a.client.errors import A2AClientError
        from a2a.utils import errors

        self.types, self._client, self.streams, self.limits = types, client, streams, limits
        self._unreachable, self.errors = A2AClientError, errors

    async def send(self, message: Any) -> Any:
        """The task that a message begins, or the message that is its answer; None if it is unknown whether the agent
        received it."""
        config = self.types.SendMessageConfiguration(return_immediately=True)
        request = self.types.SendMessageRequest(message=message, configuration=config)
        try:
            answer = await self._exchanged(lambda: anext(aiter(self._client.send_message(request)), None))
            if answer is not None:
                return answer.task if answer.HasField("task") else answer.message
        except self._unreachable as error:
            self._raise_final(error)
        except self.errors.A2AError as error:
            raise AgentFailed(f"the agent refused the work: {_said(error)}") from error
        return None

    async def task(self, task_id: str) -> Any:
        """A task as it is now."""
        try:
            task = await self._reached(lambda: self._client.get_task(self.types.GetTaskRequest(id=task_id)))
        except self.errors.TaskNotFoundError as error:
            raise AgentFailed(
                f"the agent no longer knows its task {shorten(task_id, 100)}: it was restarted"
            ) from error
        except self.errors.A2AError as error:
            raise AgentFailed(f"the agent does not answer for its task: {_said(error)}") from error
        if task.id != task_id:
            asked, told = shorten(task_id, 100), shorten(task.id, 100)
            raise AgentFailed(f"the agent was asked for its task {asked}, and answered with task {told!r}")
        return task

    async def tasks(self, context: str) -> list[Any] | None:
        """The tasks of a context, the newest first; None if the agent cannot list them."""
        request = self.types.ListTasksRequest(context_id=context, page_size=20)
        try:
            page = await self._reached(lambda: self._client.list_tasks(request))
        except (self.errors.A2AError, NotImplementedError):
            return None
        return [task for task in page.tasks if task.context_id == context]

    async def events(self, task_id: str) -> AsyncGenerator[Any]:
        """The events of a task, until its stream ends, breaks or is silent for as long as an exchange may take. Events
        of other tasks are left out. Without streams there are none."""
        if self.streams is None:
            return
        request = self.types.SubscribeToTaskRequest(id=task_id)
        async with contextlib.aclosing(self.streams.subscribe(request)) as events:
            try:
                while (event := await self._exchanged(lambda: anext(events, None))) is not None:
                    if _task_of(event) == task_id:
                        yield event
            except self._unreachable as error:
                self._raise_final(error)
            except self.errors.A2AError:  # it has ended meanwhile, or the agent offers no stream for it
                pass

    async def cancel(self, task_id: str) -> None:
        """Ask the agent to cancel a task. Nothing is repeated: the caller does not wait."""
        with contextlib.suppress(Exception):
            async with asyncio.timeout(CANCEL_TIMEOUT):
                await self._client.cancel_task(self.types.CancelTaskRequest(id=task_id))

    async def cancel_all(self, context: str) -> None:
        """Ask the agent to cancel the tasks of a context."""
        with contextlib.suppress(Exception):
            async with asyncio.timeout(CANCEL_TIMEOUT):
                for task in await self.tasks(context) or ():
                    await self._client.cancel_task(self.types.CancelTaskRequest(id=task.id))

    async def _reached(self, ask: Callable[[], Awaitable[Value]]) -> Value:
        loop, failures, lost = asyncio.get_running_loop(), 0, self.limits.lost
        give_up = loop.time() + lost
        while True:
            try:
                return await self._exchanged(ask)
            except self._unreachable as error:
                self._raise_final(error)
                failures += 1
                delay = retry_delay(failures, min(self.limits.poll, 0.5), _LONGEST_BACKOFF)
                if loop.time() + delay > give_up:
                    raise AgentFailed(f"the agent was unreachable for {lost:g} s: {_said(error)}") from error
            await asyncio.sleep(delay)

    async def _exchanged(self, ask: Callable[[], Awaitable[Value]]) -> Value:
        """The answer to one request, or the next event of a stream, within the limit of an exchange: an agent that
        sends a byte now and then keeps no request open. Raises what the library raises, and AgentFailed if it cannot
        read the answer."""
        limit = asyncio.timeout(self.limits.exchange)
        try:
            async with limit:
                return await ask()
        except TimeoutError:
            if not limit.expired():
                raise
            raise self._unreachable(f"no whole answer within {self.limits.exchange:g} s") from None
        except (self.errors.A2AError, AsterismError, NotImplementedError):
            raise
        except Exception as error:  # of a library that reads what a stranger has sent
            why = shorten(str(error), 200) or type(error).__name__
            raise AgentFailed(f"the answer of the agent cannot be read: {why}") from error

    def _raise_final(self, error: Any) -> None:
        """Raise AgentFailed for an answer that another try does not change, such as a refused credential."""
        status = getattr(getattr(error.__cause__, "response", None), "status_code", None)
        if status is not None and 400 <= status < 500 and status not in (408, 429):
            hint = f"; set {TOKEN_VARIABLE} for the device" if status in (401, 403) else ""
            raise AgentFailed(f"the agent answered with HTTP status {status}{hint}") from error


def _said(error: Any) -> str:
    """The message of an error, which the agent may have written."""
    return shorten(str(error.message), 500)


def _task_of(event: Any) -> str:
    """The id of the task that an event of a stream is about."""
    if event.HasField("task"):
        return str(event.task.id)
    if event.HasField("status_update"):
        return str(event.status_update.task_id)
    return str(event.artifact_update.task_id) if event.HasField("artifact_update") else ""


# -- a conversation ----------------------------------------------------------------------------------------------------


class _Conversation:
    """The tasks of one run: one, and one more for each answer that did not fit the schema."""

    def __init__(self, requests: _Requests, work: AgentWork, silence: float) -> None:
        self._requests, self._work, self._types, self._silence = requests, work, requests.types, silence
        self._context = f"{work.run.id}-{work.run.failures}"
        self._asked = 0
        self._previous: list[str] = []
        self._ended: set[str] = set()  # tasks of earlier owners that are not followed

    async def ask(self, prompt: str) -> AgentAnswer:
        self._asked += 1
        try:
            begun = await self._begun(prompt)
        except asyncio.CancelledError:
            await self._requests.cancel_all(self._context)  # it may have received the work
            raise
        if not hasattr(begun, "status"):  # a message: the agent needed no task
            return self._answer([begun.parts])
        if not begun.id or begun.id in self._previous:
            raise AgentFailed("the agent answered with a task that the message did not begin")
        self._previous.append(begun.id)
        try:
            ended = await self._followed(begun)
        except asyncio.CancelledError:
            await self._requests.cancel(begun.id)
            raise
        if ended.status.state in (self._types.TASK_STATE_INPUT_REQUIRED, self._types.TASK_STATE_AUTH_REQUIRED):
            await self._requests.cancel(ended.id)  # nobody will answer
        return self._result(ended)

    async def _begun(self, prompt: str) -> Any:
        """The task of this run: an earlier one whose device was lost, or a new one."""
        run = self._work.run
        lost = [assignment for assignment in run.previous if assignment.reason != "declined"]
        if self._asked == 1 and lost and lost[-1].reason != "failed":
            task = await self._open_task()
            if task is not None:
                self._work.note(f"resumes task {task.id} of the agent")
                return task
        parts = [self._types.Part(text=prompt)]
        message = self._types.Message(
            message_id=f"{run.id}-{run.epoch}-{self._asked}",
            context_id=self._context,
            role=self._types.ROLE_USER,
            parts=parts,
            reference_task_ids=self._previous,
        )
        begun = await self._requests.send(message)
        if begun is None:
            self._work.note("the connection was lost while the work was sent")
            begun = await self._after_lost_answer(message)
        return begun

    async def _after_lost_answer(self, message: Any) -> Any:
        """The task that a message may have begun. It is sent again only if the agent is certain not to have it."""
        known = await self._requests.tasks(self._context)
        if known is None:
            raise AgentFailed("the connection was lost, and the agent cannot tell whether it received the work")
        new = [task for task in known if task.id not in self._previous and task.id not in self._ended]
        begun = await self._requests.task(new[0].id) if new else await self._requests.send(message)
        if begun is None:
            raise AgentFailed("the connection was lost twice while the work was sent")
        return begun

    async def _open_task(self) -> Any:
        tasks = await self._requests.tasks(self._context)
        if tasks is None:
            self._work.note("the agent cannot list its tasks: the work of a lost device is sent again")
            return None
        self._ended = {task.id for task in tasks if self._is_failed(task)}
        known = next((task for task in tasks if task.id not in self._ended), None)
        return None if known is None else await self._requests.task(known.id)  # with its artifacts

    def _is_failed(self, task: Any) -> bool:
        types = self._types
        return task.status.state in (types.TASK_STATE_FAILED, types.TASK_STATE_CANCELED, types.TASK_STATE_REJECTED)

    async def _followed(self, task: Any) -> Any:
        """The task when it has ended or waits for something. Raises AgentFailed if it goes on without any change."""
        limit = asyncio.timeout(self._silence)
        try:
            async with limit:
                return await self._followed_within(limit, task)
        except TimeoutError:
            if not limit.expired():
                raise
        await self._requests.cancel(task.id)
        raise AgentFailed(f"the task of the agent did not change for {self._silence:g} s")

    async def _followed_within(self, limit: asyncio.Timeout, task: Any) -> Any:
        types, now = self._types, asyncio.get_running_loop().time
        going_on = (types.TASK_STATE_UNSPECIFIED, types.TASK_STATE_SUBMITTED, types.TASK_STATE_WORKING)
        pause = self._requests.limits.poll
        while task.status.state in going_on:
            state = None
            async with contextlib.aclosing(self._requests.events(task.id)) as events:
                async for event in events:
                    if not event.HasField("task"):  # each new stream begins with the task as it is: no change
                        limit.reschedule(now() + self._silence)
                    if (state := self._hear(event)) not in (None, *going_on):
                        break
            if state in (None, *going_on):  # the stream has ended, and the task has not
                await asyncio.sleep(pause)
            before, task = task, await self._requests.task(task.id)
            if task != before:
                limit.reschedule(now() + self._silence)
                pause = self._requests.limits.poll
            elif self._requests.streams:  # they end at once
                pause = min(2 * pause, self._requests.limits.poll * _SLOWEST_POLL)
        return task

    def _hear(self, event: Any) -> Any:
        """Record an event, and return the new state of the task if it names one."""
        if event.HasField("status_update"):
            status = event.status_update.status
            self._say(status.message.parts)
            return status.state
        if event.HasField("artifact_update"):
            self._say(event.artifact_update.artifact.parts)
        return event.task.status.state if event.HasField("task") else None

    def _say(self, parts: Iterable[Any]) -> None:
        for part in parts:
            if part.WhichOneof("content") == "text":
                self._work.write(1, f"{part.text}\n".encode(errors="replace"))

    def _result(self, task: Any) -> AgentAnswer:
        types, status = self._types, task.status
        said = shorten(" ".join(_texts([status.message.parts])), 500)
        if status.state == types.TASK_STATE_COMPLETED:
            said_last = status.message.parts or (task.history[-1].parts if task.history else ())
            return self._answer([artifact.parts for artifact in task.artifacts] or [said_last])
        if status.state == types.TASK_STATE_INPUT_REQUIRED:
            raise AgentFailed(f"the agent asks for more input, which a run cannot give: {said}")
        if status.state == types.TASK_STATE_AUTH_REQUIRED:
            raise AgentFailed(f"the agent asks for a login: {said}")
        ended = types.TaskState.Name(status.state).removeprefix("TASK_STATE_").lower()
        raise AgentFailed(f"the task of the agent ended as {ended}{': ' if said else ''}{said}")

    def _answer(self, parts: Iterable[Iterable[Any]]) -> AgentAnswer:
        to_json = import_module("google.protobuf.json_format").MessageToDict
        groups = [list(group) for group in parts]
        values = [part.data for group in groups for part in group if part.WhichOneof("content") == "data"]
        text = "\n".join(_texts(groups))
        if len(text) + sum(value.ByteSize() for value in values) > LONGEST_ANSWER:
            raise AgentFailed(f"the answer of the agent has more than {LONGEST_ANSWER:,} characters")
        return AgentAnswer(text, tuple(map(to_json, values)))


def _texts(groups: Iterable[Iterable[Any]]) -> list[str]:
    return [part.text for group in groups for part in group if part.WhichOneof("content") == "text"]
