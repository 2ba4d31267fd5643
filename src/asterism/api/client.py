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
import os
import ssl
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Self, TypeVar
from urllib.parse import urlsplit

from asterism.api import documents
from asterism.api.client_errors import ApiError, ServerUnreachable, TryLater, error_of
from asterism.api.operation import (
    API,
    KEY_HEADER,
    LARGEST_BODY,
    VERSION_HEADER,
    Blocking,
    HttpForm,
    Operation,
    http_form,
)
from asterism.api.operations import Operations, ServerOperations
from asterism.api.server_logins import token_for
from asterism.base.http_answers import ACCEPTED, LARGEST_SERVER_ANSWER, AnswerRefused, bound_hook
from asterism.base.https_session import is_loopback
from asterism.base.loop_thread import LastingLoop
from asterism.base.startup import VERSION, install_hint
from asterism.base.text import clean, masked_url, path_part
from asterism.core.backoff import retry_delay
from asterism.core.errors import AsterismError
from asterism.core.record import MISSING, UNKNOWN, decode_json

try:
    import httpx
except ImportError as missing:
    raise AsterismError(f"a client of a server needs httpx: {install_hint('http')}") from missing

OnCut = Callable[[Exception], None]
"""Called with the error when a stream is cut, before it connects again."""

Answer = TypeVar("Answer")
Request = TypeVar("Request")
Value = TypeVar("Value")
Event = TypeVar("Event", documents.PlanEvent, documents.FleetEvent)

GONE = "gone"
"""The kind of the last event of a plan."""

TIMEOUT = 60.0
"""How long a request may take, in seconds: an edit waits for the process that runs the plan."""

STREAM_TIMEOUT = 45.0
"""How long a stream may be silent, in seconds. The server sends a comment every 15 s."""

RECONNECT = (0.5, 15.0)
"""The first and the longest pause before a stream connects again, in seconds."""


class AsyncClient(ServerOperations, Operations):
    """A client for asyncio: every operation is awaited. ``url`` is the address of the server, ``token`` a token of
    ``asterism token create``, by default $ASTERISM_TOKEN, or that of ``asterism login``. ``verify`` is the TLS context
    for a certificate that the system does not trust."""

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        timeout: float = TIMEOUT,
        verify: ssl.SSLContext | bool = True,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.url = checked_url(url)
        authority = None
        if token is None:
            token, authority = token_for(self.url)
        if authority is not None and verify is True:
            verify = trusting(authority)
        self._http = httpx.AsyncClient(
            base_url=self.url,
            headers={"accept-encoding": ACCEPTED} | ({"authorization": f"Bearer {token}"} if token else {}),
            timeout=timeout,
            # without TLS no certificates are read, which takes long; that context would trust no server
            verify=verify if self.url.startswith("https:") else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
            trust_env=False,  # the token is not for a proxy
            transport=transport,
            event_hooks={"response": [bound_hook(LARGEST_SERVER_ANSWER)]},
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def call(self, operation: Operation[Any, Request, Answer], request: Request, /) -> Answer:
        """Do an operation at the server. Raises ApiError, EditRejected and ServerUnreachable."""
        form = http_form(operation, request)
        tries = RequestTries(self.url, operation.name, operation.changes, operation.once, operation.lasts)
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
        """The events of a plan as they happen, after a position or from now on, until the plan is gone. A stream that
        breaks continues after its last event; ``on_cut`` is called each time. After a ``reset``, read the plan
        again."""
        return self._follow(f"{API}/plans/{path_part(name)}/events", after, _plan_event, on_cut)

    def follow_fleet(self, after: str | None = None) -> AsyncGenerator[documents.FleetEvent, None]:
        """The runs, devices and notices that change, as it happens, after the position of an earlier event or from now
        on. A stream that breaks continues after its last event. After a ``reset``, which also comes first, read the
        lists again."""
        return self._follow(f"{API}/events", after, _fleet_event)

    async def _follow(
        self, path: str, after: str | None, read: Callable[[ReceivedEvent], Event], on_cut: OnCut | None = None
    ) -> AsyncGenerator[Event, None]:
        lines, failures = EventLines(after), 0
        while True:
            try:
                async with self._http.stream("GET", path, headers=_stream_headers(lines), timeout=_STREAM) as answer:
                    if answer.status_code >= 300:
                        await answer.aread()
                        raise self._stream_error(answer)
                    async for line in answer.aiter_lines():
                        received = lines.add(line)
                        if received is not None:
                            failures = 0
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
            failures += 1
            await asyncio.sleep(retry_delay(failures, *RECONNECT))

    def _stream_error(self, answer: httpx.Response) -> Exception:
        """The error of a stream that was refused. An error that passes is one of httpx: the client connects again."""
        if answer.status_code in (429, 502, 503, 504):
            return httpx.ReadError("try again later")
        return RequestTries(self.url, "the event stream", changes=False).problem(answer)

    async def wait_plan(self, name: str) -> documents.Plan:
        """The plan when it has ended."""
        while not (await self.watch_plan(name)).ended:
            pass
        return await self.show_plan(name)


class Client(ServerOperations, Operations, Blocking):
    """A client that blocks: an ``AsyncClient`` in a thread, with the same parameters and methods."""

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        timeout: float = TIMEOUT,
        verify: ssl.SSLContext | bool = True,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._connect = partial(AsyncClient, url, token, timeout=timeout, verify=verify, transport=transport)
        self._begin()
        self.url = self._client.url

    def _begin(self) -> None:
        self._client, self._thread = self._connect(), LastingLoop("asterism-client")
        self._process, self._closed = os.getpid(), False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections. A call that another thread waits for raises AsterismError."""
        if self._closed or self._process != os.getpid():
            return
        self._closed = True
        try:
            self._thread.wait_for(self._client.close())
        finally:
            self._thread.stop()

    def call(self, operation: Operation[Any, Request, Answer], request: Request, /) -> Answer:
        """See ``AsyncClient.call``."""
        return self._wait(self._open().call(operation, request))

    def follow_plan(
        self, name: str, after: str | None = None, *, on_cut: OnCut | None = None
    ) -> Generator[documents.PlanEvent, None, None]:
        """See ``AsyncClient.follow_plan``. ``on_cut`` is called in the thread of the client, and must not call it."""
        return self._each(self._open().follow_plan(name, after, on_cut=on_cut))

    def follow_fleet(self, after: str | None = None) -> Generator[documents.FleetEvent, None, None]:
        """See ``AsyncClient.follow_fleet``."""
        return self._each(self._open().follow_fleet(after))

    def wait_plan(self, name: str) -> documents.Plan:
        """See ``AsyncClient.wait_plan``."""
        return self._wait(self._open().wait_plan(name))

    def _open(self) -> AsyncClient:
        if self._process != os.getpid():  # neither the thread nor its connections belong to a forked process
            self._begin()
        if self._closed:
            raise AsterismError("the client is closed")
        return self._client

    def _wait(self, work: Coroutine[Any, Any, Value]) -> Value:
        try:
            return self._thread.wait_for(work)
        except CancelledError:
            raise AsterismError("the client was closed while a call waited for its answer") from None

    def _each(self, events: AsyncGenerator[Event, None]) -> Generator[Event, None, None]:
        try:
            while (event := self._wait(_next(events))) is not None:
                yield event
        finally:
            self._thread.finish(events.aclose())


async def _next(events: AsyncGenerator[Event, None]) -> Event | None:
    return await anext(events, None)


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


def _message(http: httpx.AsyncClient, form: HttpForm, tries: RequestTries) -> httpx.Request:
    """What is sent. Raises ApiError for a request that a server refuses before it has read it: its answer may be
    lost."""
    message = http.build_request(
        form.method,
        form.path,
        json=form.body,
        params=dict(form.query),
        headers=tries.headers,
        timeout=httpx.Timeout(**{**http.timeout.as_dict(), "read": tries.lasts}) if tries.lasts else http.timeout,
    )
    if (size := len(message.content)) > LARGEST_BODY:
        raise ApiError(413, "", f"the request has {size:,} bytes; a server accepts at most {LARGEST_BODY:,}")
    return message


def _read(operation: Operation[Any, Any, Answer], answer: httpx.Response, tries: RequestTries) -> Answer:
    if operation.answer is str:
        return answer.text  # type: ignore[return-value]
    try:
        return decode_json(operation.answer, answer.content)
    except (ValueError, RecursionError) as error:
        raise tries.unreadable(answer, error) from None


def _stream_headers(lines: EventLines) -> dict[str, str]:
    headers = {"accept": "text/event-stream"}
    return headers if lines.last_id is None else {**headers, "last-event-id": lines.last_id}


def _fleet_event(received: ReceivedEvent) -> documents.FleetEvent:
    fields = json.loads(received.data)
    return documents.FleetEvent(position=received.id, kind=fields["kind"], fields=fields)


def _plan_event(received: ReceivedEvent) -> documents.PlanEvent:
    fields = json.loads(received.data)
    return documents.PlanEvent(position=fields["position"], at=fields["at"], kind=fields["kind"], fields=fields)


# -- server-sent events ------------------------------------------------------------------------------------------------


class ReceivedEvent(NamedTuple):
    id: str
    kind: str
    data: str


class EventLines:
    """Collects lines until an event is complete. ``last_id`` is what to continue after."""

    def __init__(self, last_id: str | None = None) -> None:
        self.last_id, self._id = last_id, last_id
        self._kind, self._data = "message", list[str]()

    def add(self, line: str) -> ReceivedEvent | None:
        """The event that this line completes."""
        if not line:
            kind, data = self._kind, "\n".join(self._data)
            complete = bool(self._data)
            self.last_id = self._id  # only now: an event that breaks off comes again
            self._kind, self._data = "message", []
            return ReceivedEvent(self.last_id or "", kind, data) if complete else None
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "id" and "\0" not in value:
            self._id = value
        elif name == "event":
            self._kind = value
        elif name == "data":
            self._data.append(value)
        return None

    def reset(self) -> None:
        """Forget an event that is not complete: the stream has broken."""
        self._kind, self._data, self._id = "message", [], self.last_id


# -- tries -------------------------------------------------------------------------------------------------------------


MOST_TRIES = 5
REPEAT_TIME = 30.0
"""How often a request is sent, and for how many seconds after the first time it may be sent again."""

PAUSE = 0.25
"""The pause before the second try, in seconds; it doubles with each."""

_REPEATED = (429, 502, 503)
_LONGEST_SHOWN = 200


@dataclass
class RequestTries:
    """``operation`` is the name of what is asked, for messages; ``changes`` is whether it changes something, and
    ``once`` whether it is never repeated, as a login, whose code the first try uses up. ``lasts`` is how long it may
    take, in seconds; 0 if no longer than other requests."""

    url: str
    operation: str
    changes: bool
    once: bool = False
    lasts: float = 0.0
    now: Callable[[], float] = time.monotonic
    headers: dict[str, str] = field(default_factory=dict)
    _tries: int = 1
    _was_cut: bool = False

    def __post_init__(self) -> None:
        self.headers[VERSION_HEADER] = VERSION
        if self.changes:
            self.headers[KEY_HEADER] = uuid.uuid4().hex
        self._until = self.now() + max(self.lasts, REPEAT_TIME)

    def after_error(self, error: Exception) -> float:
        """How long to wait before the next try, after an error of the connection. Raises AsterismError if there is
        none."""
        if isinstance(error, AnswerRefused):
            raise error
        sent = not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.UnsupportedProtocol)
        self._was_cut |= sent
        pause = self._next_pause(None) if self._was_cut and not isinstance(error, httpx.TimeoutException) else None
        if pause is None:
            raise self._unreachable(error) from None
        return pause

    def after_answer(self, answer: httpx.Response) -> float | None:
        """How long to wait before the next try; None if this answer is to be read. Raises AsterismError for a problem,
        and if something else than a server of Asterism answered."""
        if answer.status_code < 300:
            if VERSION_HEADER not in answer.headers:
                raise self._foreign(answer)
            return None
        problem = self.problem(answer)
        cut_by_proxy = self.lasts > 0 and answer.status_code == 504 and VERSION_HEADER not in answer.headers
        if answer.status_code in _REPEATED or cut_by_proxy:
            wait = problem.retry_after if isinstance(problem, ApiError) else None
            pause = self._next_pause(wait)
            if pause is not None:
                return pause
        raise problem

    def unreadable(self, answer: httpx.Response, error: Exception) -> AsterismError:
        """The error of an answer without a problem that cannot be read."""
        other = self._other_version(answer)
        if other is not None:
            text = f"the answer of {self.url} to {self.operation} cannot be read: {other}"
            return ApiError(answer.status_code, "", text)
        first = clean(str(error)).partition("\n")[0][:_LONGEST_SHOWN]
        return ApiError(answer.status_code, "", f"the answer of {self.url} cannot be read: {first}")

    def _next_pause(self, wanted: float | None) -> float | None:
        pause = retry_delay(self._tries, PAUSE) if wanted is None else wanted
        if self.once or self._tries >= MOST_TRIES or self.now() + pause >= self._until:
            return None
        self._tries += 1
        return pause

    # -- sentences -----------------------------------------------------------------------------------------------------

    def _unreachable(self, error: Exception) -> ServerUnreachable:
        certificate = _certificate_error(error)
        if certificate is not None:
            return ServerUnreachable(
                f"the certificate of {self.url} is not trusted ({certificate}): if it is of a private certificate "
                f"authority, log in with its certificate: asterism login {self.url} --ca FILE"
            )
        what = clean(str(error)) or type(error).__name__
        if not self._was_cut:
            return ServerUnreachable(f"{self.url} does not answer: {what}; check the address, and whether it runs")
        text = f"{self.url} closed the connection or did not answer in time: {what}"
        if self.once:
            text += "; the code may be used up: ask for a new one"
        elif self.changes:
            text += f"; it is unknown whether {self.operation} was done: look before you try again"
        return ServerUnreachable(text)

    def problem(self, answer: httpx.Response) -> AsterismError:
        """The error of an answer that is not a success."""
        status = answer.status_code
        if status < 400:
            where = masked_url(clean(answer.headers.get("location", "")))[:_LONGEST_SHOWN]
            text = f"{self.url} redirects to {where or 'another address'}; give the address of the server itself"
            return ApiError(status, "", text)
        try:
            document = answer.json()
        except (ValueError, RecursionError):
            document = None
        if VERSION_HEADER not in answer.headers or not isinstance(document, dict):
            return self._foreign(answer)
        problem = error_of(status, document, answer.headers.get("retry-after"))
        if status == 401 and isinstance(problem, ApiError):
            return type(problem)(status, problem.problem, f"{problem}; log in with: asterism login {self.url}")
        return self._lacking(answer, problem) or problem

    def _foreign(self, answer: httpx.Response) -> ApiError:
        """The error of an answer of something else, such as a proxy."""
        kind = clean(answer.headers.get("content-type", "")).partition(";")[0][:_LONGEST_SHOWN] or "nothing"
        text = (
            f"{self.url} answered with status {answer.status_code} and {kind}, which is no answer of an Asterism "
            "server: check the address, and what is between you and the server"
        )
        kind_of_error = TryLater if answer.status_code in (*_REPEATED, 504) else ApiError
        return kind_of_error(answer.status_code, "", text)

    def _lacking(self, answer: httpx.Response, problem: AsterismError) -> ApiError | None:
        """The error that names what a server of another version lacks; None if it lacks nothing."""
        if not isinstance(problem, ApiError):
            return None
        other = self._other_version(answer)
        if other is not None and problem.problem in ("unknown-path", "unknown-method"):
            text = f"{self.url} has no operation {self.operation}: {other}"
            return type(problem)(problem.status, problem.problem, text)
        unknown = [
            violation.message.partition(":")[0]
            for violation in problem.violations
            if violation.rule in (UNKNOWN, MISSING)
        ]
        missing = any(violation.rule == MISSING for violation in problem.violations)
        if other is None and not missing and not any("." in name for name in unknown):
            other = "it is older than this program, and has to be updated"  # a client sends no other fields
        if other is not None and unknown:
            what = "needs more for" if missing else "does not know this of"
            text = f"{self.url} {what} {self.operation}: {', '.join(unknown)}; {other}"
            return type(problem)(problem.status, problem.problem, text)
        return None

    def _other_version(self, answer: httpx.Response) -> str | None:
        """A sentence about the version of the server, if it is another one."""
        version = clean(answer.headers.get(VERSION_HEADER, ""))[:40]
        if version in ("", VERSION):
            return None
        return f"it has version {version}, and this is {VERSION}: use the same version"


def _certificate_error(error: BaseException | None) -> str | None:
    """Why a certificate is refused, if that is the cause of an error."""
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return str(error.verify_message)
        error = error.__cause__ or error.__context__
    return None
