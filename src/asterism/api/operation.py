"""An operation: what can be done to a system, declared once for every door.

::

    class CancelRun(Request):
        run: Annotated[str, Doc("The id of the run, or a part that no other id has.")]
        reason: Reason = ""

    class RunOperations:
        cancel_run = Operation(CancelRun, documents.Run, "Cancel a run.", "POST /runs/{run}/cancel")

From this come the HTTP endpoint and its OpenAPI, ``client.cancel_run("7c…")`` of ``Client`` and ``AsyncClient``, the
MCP tool, and what ``asterism runs cancel`` sends and prints as JSON. The function that does it on a store has the same
name in ``api/local/run_handlers.py``, after the name of the class, and is imported when it is called: a declaration
imports only records, so that neither a client nor a command loads what it does not use.

A *system* is where operations happen: a store opened here (``LocalSystem``) or a server (``AsyncClient``). Both have
every operation as a method, which takes the fields of the request::

    await system.cancel_run(run="7c…", reason="wrong input")
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, wraps
from importlib import import_module
from typing import Annotated, Any, Generic, NamedTuple, ParamSpec, Protocol, Self, TypeVar, cast, overload

from asterism.api.documents import Doc
from asterism.api.request import Request as AnyRequest
from asterism.base.text import path_part
from asterism.core.errors import AsterismError
from asterism.core.record import Meta, asdict, defaults_of

Parameters = ParamSpec("Parameters")
Request = TypeVar("Request")
Answer = TypeVar("Answer")


Name = Annotated[str, Meta(min_length=1, max_length=500)]
"""The name or the id of something."""

Word = Annotated[str, Meta(max_length=40)]
Line = Annotated[str, Meta(max_length=200)]
Priority = Annotated[int, Meta(ge=-1_000_000, le=1_000_000)]
Number = Annotated[int, Meta(ge=0, le=999_999_999)]
"""The number of a version, a cycle or an edit."""

Moment = Annotated[float, Meta(ge=0, le=1e12)]
"""A time in seconds since 1970, or a number of seconds."""

Reason = Annotated[str, Meta(max_length=10_000), Doc("Why, for the story.")]
"""Every request that changes something may say why."""


class NoFields(AnyRequest):
    """A request that says no more than the name of its operation."""


class Awaiting(Protocol):
    """A system whose operations are awaited."""

    async def call(self, operation: Operation[Any, Request, Answer], request: Request, /) -> Answer: ...


class Blocking:
    """The base of a client that blocks: a class of its own, so that types tell it from ``Awaiting``."""

    def call(self, operation: Operation[Any, Request, Answer], request: Request, /) -> Answer:
        raise NotImplementedError


@dataclass(frozen=True)
class Operation(Generic[Parameters, Request, Answer]):
    """``request`` is the class of what is asked, ``answer`` that of the document which answers. ``http`` is the method
    and the path below the prefix of the API, with fields of the request in braces. ``needs`` is what the scopes of the
    caller have to satisfy (``credentials.py``); by default its path says it. ``edits``: it counts against the edits per
    minute of a caller. ``secret``: its answer has a secret, so no server keeps it for a repeated request. ``once``: no
    client repeats it, as a login, whose code the first request uses up. ``reads``: it changes nothing, though it is no
    GET, since its request is long. ``lasts`` is how long it may take, in seconds, if that is longer than other
    requests: a client waits so long, and sends it again with the same key if the connection breaks meanwhile."""

    request: Callable[Parameters, Request]
    answer: type[Answer]
    text: str
    http: str
    needs: str = ""
    status: int = 200
    edits: bool = False
    secret: bool = False
    once: bool = False
    reads: bool = False
    lasts: float = 0.0
    name: str = field(default="", init=False)
    noun: str = field(default="", init=False)

    def __post_init__(self) -> None:
        if not self.needs:
            object.__setattr__(self, "needs", _need(self.changes, self.path))

    def __set_name__(self, owner: type, name: str) -> None:
        """It has the name of its attribute in the class of the operations on a noun, such as ``PlanListOperations``."""
        noun = re.sub(r"(?<!^)(?=[A-Z])", "_", owner.__name__.removesuffix("Operations")).lower()
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "noun", noun)

    @property
    def fields(self) -> type[AnyRequest]:
        """The class of the request, as a class."""
        return cast("type[AnyRequest]", self.request)

    @property
    def method(self) -> str:
        return self.http.partition(" ")[0]

    @property
    def path(self) -> str:
        return self.http.partition(" ")[2]

    @property
    def changes(self) -> bool:
        """Whether it changes something."""
        return self.method != "GET" and not self.reads

    @cached_property
    def function(self) -> Callable[[Any, Request], Awaitable[Answer]]:
        """What does it on a store that is open here."""
        function: Callable[[Any, Request], Awaitable[Answer]]
        function = getattr(import_module(f"asterism.api.local.{self.noun}_handlers"), self.name)
        return function

    @overload
    def __get__(self, system: None, owner: type) -> Self: ...
    @overload
    def __get__(self, system: Blocking, owner: type) -> Callable[Parameters, Answer]: ...
    @overload
    def __get__(self, system: Awaiting, owner: type) -> Callable[Parameters, Awaitable[Answer]]: ...
    def __get__(self, system: Any, owner: type) -> Any:
        """The operation as a method of a system."""
        if system is None:
            return self

        @wraps(self.request)
        def call(*positional: Parameters.args, **named: Parameters.kwargs) -> Any:
            return system.call(self, self.request(*positional, **named))

        return call


READ = "observe plan {plan}"
"""What reading a plan needs."""


def _need(changes: bool, path: str) -> str:
    """What an operation needs that does not say it: series have a scope of their own, and who may edit a plan may read
    it."""
    if path.startswith("/series"):
        return "series" if changes else "observe series"
    if changes:
        return "operate"
    return READ if path.startswith("/plans/{plan}") else "observe"


# -- the http form of an operation -------------------------------------------------------------------------------------


API = "/api/v1"
LARGEST_BODY = 4 * 1024 * 1024
"""The largest body of a request, in bytes."""

VERSION_HEADER = "asterism-version"
"""The version of who sends a request or an answer."""

KEY_HEADER = "idempotency-key"
"""The same for each repeat of a request that changes something: the server does it once."""


class KeyReused(AsterismError):
    """A key came with another request than before. Nothing was done."""


class NotKept(AsterismError):
    """A repeat of a request that was done, whose answer is not kept."""


class OutcomeLost(AsterismError):
    """It is unknown whether the first request with this key was done."""


class NoProposal(AsterismError):
    """A model has proposed no edits. The message says why, and what to do."""


class HttpForm(NamedTuple):
    """A request of an operation as it is sent. ``body`` is None for one without a body."""

    method: str
    path: str
    query: Mapping[str, str]
    body: Mapping[str, Any] | None


def path_fields(path: str) -> list[str]:
    """The names of the fields in a path."""
    return re.findall(r"{(\w+)}", path)


def http_form(operation: Operation[Any, Any, Any], request: Any) -> HttpForm:
    """What to send for a request. Fields that have their default are left out: an older server need not know them."""
    in_path = path_fields(operation.path)
    path = operation.path.format(**{name: path_part(str(getattr(request, name))) for name in in_path})
    defaults = defaults_of(type(request))
    fields = {
        name: value
        for name, value in asdict(request).items()
        if name not in in_path and (name not in defaults or value != defaults[name])
    }
    if operation.method in ("GET", "DELETE"):
        return HttpForm(operation.method, API + path, {name: _text(value) for name, value in fields.items()}, None)
    if "edits" in fields and fields["edits"] is not None:
        fields["edits"] = [dict(edit) if isinstance(edit, Mapping) else edit.to_json() for edit in fields["edits"]]
    return HttpForm(operation.method, API + path, {}, fields)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
