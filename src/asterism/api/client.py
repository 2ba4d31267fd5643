"""``Client`` and ``AsyncClient``: a server of Asterism as a Python object, with the names of the library.

::

    from asterism import Client, edits, Task

    with Client("https://host:7400", token) as client:
        plan = client.submit_plan(open("plan.yaml").read())
        client.edit_plan(plan.name, [edits.AddTask(Task("mail", shell="./mail"))], reason="tell the team")
        for event in client.follow_plan(plan.name, plan.position):
            print(event.kind, event.position)

Both have every operation as a method. An error of the server is an ``ApiError``; a rejected edit is
``EditRejected``, with every violation. A stream that breaks continues after its last event.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any, ParamSpec, Self, TypeVar
from urllib.parse import urlsplit

try:
    import httpx
except ImportError as missing:
    from asterism.base.startup import install_hint
    from asterism.core.errors import AsterismError

    raise AsterismError(f"a client of a server needs httpx: {install_hint('http')}") from missing

from asterism.api import documents
from asterism.api.client_errors import ApiError
from asterism.api.document_codec import read_document
from asterism.api.event_lines import EventLines, ReceivedEvent
from asterism.api.http_form import API, LARGEST_BODY, HttpForm, http_form
from asterism.api.operation import Blocking, Operation
from asterism.api.operations import Operations
from asterism.api.request_tries import RequestTries
from asterism.api.server_logins import token_for
from asterism.api.server_operations import ServerOperations
from asterism.base.http_answers import ACCEPTED, LARGEST_SERVER_ANSWER, AnswerRefused, bound_answer, bound_hook
from asterism.base.https_session import is_loopback
from asterism.base.text import masked_url, path_part
from asterism.core.errors import AsterismError

OnCut = Callable[[Exception], None]
"""Called with the error when a stream is cut, before it connects again."""

Given = ParamSpec("Given")
Answer = TypeVar("Answer")
Request = TypeVar("Request")
Event = TypeVar("Event", documents.PlanEvent, documents.FleetEvent)

GONE = "gone"
"""The kind of the last event of a plan."""

TIMEOUT = 60.0
"""How long a request may take, in seconds: an edit waits for the process that runs the plan."""

STREAM_TIMEOUT = 45.0
"""How long a stream may be silent, in seconds. The server sends a comment every 15 s."""

RECONNECT = (0.5, 15.0)
"""The first and the longest pause before a stream connects again, in seconds."""


class _Connection:
    """What both clients share: the address, the token, and the errors of requests."""

    def __init__(self, url: str, token: str | None, timeout: float, verify: ssl.SSLContext | bool) -> None:
        self.url = checked_url(url)
        authority = None
        if token is None:
            token, authority = token_for(self.url)
        if authority is not None and verify is True:
            verify = trusting(authority)
        self._terms: dict[str, Any] = {
            "base_url": self.url,
            "headers": {"accept-encoding": ACCEPTED} | ({"authorization": f"Bearer {token}"} if token else {}),
            "timeout": timeout,
            "verify": verify if self.url.startswith("https:") else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
            "trust_env": False,  # the token is not for a proxy
        }  # without TLS no certificates are read, which takes long; that context would trust no server

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def _tries(self, operation: Operation[Any, Any, Any]) -> RequestTries:
        return RequestTries(self.url, operation.name, operation.changes, operation.once)

    def _stream_error(self, answer: httpx.Response) -> Exception:
        """The error of a stream that was refused. An error that passes is one of httpx: the client connects again."""
        if answer.status_code in (429, 502, 503, 504):
            return httpx.ReadError("try again later")
        return RequestTries(self.url, "the event stream", changes=False).problem(answer)


class Client(_Connection, ServerOperations, Operations, Blocking):
    """A client that blocks. ``url`` is the address of the server, ``token`` a token of ``asterism token create``, by
    default $ASTERISM_TOKEN, or that of ``asterism login``. ``verify`` is the TLS context for a certificate that the
    system does not trust."""

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        timeout: float = TIMEOUT,
        verify: ssl.SSLContext | bool = True,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        super().__init__(url, token, timeout, verify)
        self._http = httpx.Client(transport=transport, event_hooks={"response": [_bound]}, **self._terms)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def call(self, operation: Operation[Any, Request, Answer], request: Request, /) -> Answer:
        """Do an operation at the server. Raises ApiError, EditRejected and ServerUnreachable."""
        form, tries = http_form(operation, request), self._tries(operation)
        while True:
            try:
                answer = self._http.send(_message(self._http, form, tries))
            except (httpx.HTTPError, AnswerRefused) as error:
                pause: float | None = tries.after_error(error)
            else:
                pause = tries.after_answer(answer)
            if pause is None:
                return _read(operation, answer, tries)
            time.sleep(pause)

    def follow_plan(
        self, name: str, after: str | None = None, *, on_cut: OnCut | None = None
    ) -> Generator[documents.PlanEvent, None, None]:
        """The events of a plan as they happen, after a position or from now on, until the plan is gone. A stream that
        breaks continues after its last event; ``on_cut`` is called each time. After a ``reset``, read the plan
        again."""
        return self._follow(_events_path(name), after, _plan_event, on_cut)

    def follow_fleet(self, after: str | None = None) -> Generator[documents.FleetEvent, None, None]:
        """The runs, devices and notices that change, as it happens, after the position of an earlier event or from now
        on. A stream that breaks continues after its last event. After a ``reset``, which also comes first, read the
        lists again."""
        return self._follow(f"{API}/events", after, _fleet_event)

    def _follow(
        self, path: str, after: str | None, read: Callable[[ReceivedEvent], Event], on_cut: OnCut | None = None
    ) -> Generator[Event, None, None]:
        lines, pause = EventLines(after), RECONNECT[0]
        while True:
            try:
                with self._http.stream("GET", path, headers=_stream_headers(lines), timeout=_STREAM) as answer:
                    if answer.status_code >= 300:
                        answer.read()
                        raise self._stream_error(answer)
                    for line in answer.iter_lines():
                        received = lines.add(line)
                        if received is not None:
                            pause = RECONNECT[0]
                            event = read(received)
                            yield event
                            if event.kind == GONE:
                                return
            except AnswerRefused:  # a long stream goes on with the next connection
                pass
            except httpx.HTTPError as error:
                if on_cut is not None:
                    on_cut(error)
            lines.reset()
            time.sleep(pause)
            pause = min(2 * pause, RECONNECT[1])

    def wait_plan(self, name: str) -> documents.Plan:
        """The plan when it has ended."""
        while not self.watch_plan(name).ended:
            pass
        return self.show_plan(name)


class AsyncClient(_Connection, ServerOperations, Operations):
    """The same for asyncio: every operation is awaited. See ``Client``."""

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        timeout: float = TIMEOUT,
        verify: ssl.SSLContext | bool = True,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        super().__init__(url, token, timeout, verify)
        hooks = {"response": [bound_hook(LARGEST_SERVER_ANSWER)]}
        self._http = httpx.AsyncClient(transport=transport, event_hooks=hooks, **self._terms)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def call(self, operation: Operation[Any, Request, Answer], request: Request, /) -> Answer:
        """See ``Client.call``."""
        form, tries = http_form(operation, request), self._tries(operation)
        while True:
            try:
                answer = await self._http.send(_message(self._http, form, tries))
            except (httpx.HTTPError, AnswerRefused) as error:
                pause: float | None = tries.after_error(error)
            else:
                pause = tries.after_answer(answer)
            if pause is None:
                return _read(operation, answer, tries)
            await asyncio.sleep(pause)

    def follow_plan(
        self, name: str, after: str | None = None, *, on_cut: OnCut | None = None
    ) -> AsyncGenerator[documents.PlanEvent, None]:
        """See ``Client.follow_plan``."""
        return self._follow(_events_path(name), after, _plan_event, on_cut)

    def follow_fleet(self, after: str | None = None) -> AsyncGenerator[documents.FleetEvent, None]:
        """See ``Client.follow_fleet``."""
        return self._follow(f"{API}/events", after, _fleet_event)

    async def _follow(
        self, path: str, after: str | None, read: Callable[[ReceivedEvent], Event], on_cut: OnCut | None = None
    ) -> AsyncGenerator[Event, None]:
        lines, pause = EventLines(after), RECONNECT[0]
        while True:
            try:
                async with self._http.stream("GET", path, headers=_stream_headers(lines), timeout=_STREAM) as answer:
                    if answer.status_code >= 300:
                        await answer.aread()
                        raise self._stream_error(answer)
                    async for line in answer.aiter_lines():
                        received = lines.add(line)
                        if received is not None:
                            pause = RECONNECT[0]
                            event = read(received)
                            yield event
                            if event.kind == GONE:
                                return
            except AnswerRefused:  # a long stream goes on with the next connection
                pass
            except httpx.HTTPError as error:
                if on_cut is not None:
                    on_cut(error)
            lines.reset()
            await asyncio.sleep(pause)
            pause = min(2 * pause, RECONNECT[1])

    async def wait_plan(self, name: str) -> documents.Plan:
        """See ``Client.wait_plan``."""
        while not (await self.watch_plan(name)).ended:
            pass
        return await self.show_plan(name)


# -- answers -----------------------------------------------------------------------------------------------------------

_STREAM = httpx.Timeout(TIMEOUT, read=STREAM_TIMEOUT)


def trusting(authority: str) -> ssl.SSLContext:
    """The TLS context that also trusts a private certificate authority, by the file of its certificate. Raises
    AsterismError."""
    try:
        return ssl.create_default_context(cafile=authority)
    except (OSError, ssl.SSLError) as error:
        raise AsterismError(
            f"the certificate authority {authority} cannot be read: {error.strerror or error}; log in again with --ca"
        ) from None


def checked_url(url: str) -> str:
    """The address of a server. Raises AsterismError for one to which a token must not be sent."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme not in ("http", "https") or not host:
        raise AsterismError(f"{masked_url(url)!r} is not the address of a server (example: https://host:7400)")
    if parts.scheme == "http" and not is_loopback(host):
        raise AsterismError(f"{masked_url(url)!r}: a token is sent to another machine only over https")
    if parts.username is not None or parts.query or parts.fragment:
        raise AsterismError(f"{masked_url(url)!r}: the address of a server has no login, query or fragment")
    return f"{parts.scheme}{url[len(parts.scheme) :]}".rstrip("/")  # the scheme in lower case


def _bound(response: httpx.Response) -> None:
    bound_answer(response, LARGEST_SERVER_ANSWER)


def _message(http: httpx.Client | httpx.AsyncClient, form: HttpForm, tries: RequestTries) -> httpx.Request:
    """What is sent. Raises ApiError for a request that a server refuses before it has read it: its answer may be
    lost."""
    message = http.build_request(form.method, form.path, json=form.body, params=dict(form.query), headers=tries.headers)
    if (size := len(message.content)) > LARGEST_BODY:
        raise ApiError(413, "", f"the request has {size:,} bytes; a server accepts at most {LARGEST_BODY:,}")
    return message


def _read(operation: Operation[Any, Any, Answer], answer: httpx.Response, tries: RequestTries) -> Answer:
    if operation.answer is str:
        return answer.text  # type: ignore[return-value]
    try:
        return read_document(operation.answer, answer.json())
    except (ValueError, RecursionError) as error:
        raise tries.unreadable(answer, error) from None


def _events_path(name: str) -> str:
    return f"{API}/plans/{path_part(name)}/events"


def _stream_headers(lines: EventLines) -> dict[str, str]:
    found = {"accept": "text/event-stream"}
    return found if lines.last_id is None else {**found, "last-event-id": lines.last_id}


def _fleet_event(received: ReceivedEvent) -> documents.FleetEvent:
    fields = json.loads(received.data)
    return documents.FleetEvent(position=received.id, kind=fields["kind"], fields=fields)


def _plan_event(received: ReceivedEvent) -> documents.PlanEvent:
    fields = json.loads(received.data)
    return documents.PlanEvent(position=fields["position"], at=fields["at"], kind=fields["kind"], fields=fields)
