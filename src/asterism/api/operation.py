"""An operation: what can be done to a system, declared once for every door.

::

    @dataclass(frozen=True)
    class CancelRun:
        run: Annotated[str, Doc("The id of the run, or a part that no other id has.")]
        reason: Reason = ""

    cancel_run = Operation(
        "cancel_run", CancelRun, documents.Run,
        "Cancel a run.", http="POST /runs/{run}/cancel", needs="operate",
    )

From this come the HTTP endpoint and its OpenAPI, ``client.cancel_run("7c…")`` of ``Client`` and ``AsyncClient``, the
MCP tool, and what ``asterism runs cancel`` sends and prints as JSON. The function that does it on a store has the same
name in ``api/local/run_handlers.py``, and is imported when it is called: a declaration imports only dataclasses, so
that neither a client nor a command loads what it does not use.

A *system* is where operations happen: a store opened here (``LocalSystem``) or a server (``AsyncClient``). Both have
every operation as a method, which takes the fields of the request::

    await system.cancel_run(run="7c…", reason="wrong input")
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import cached_property, wraps
from importlib import import_module
from typing import Annotated, Any, Generic, ParamSpec, Protocol, Self, TypeVar, overload

from asterism.api.documents import Doc

Parameters = ParamSpec("Parameters")
Request = TypeVar("Request")
Answer = TypeVar("Answer")


class Limit:
    """Limits of a field, which a server checks: ``Annotated[str, Limit(min_length=1, max_length=500)]``. Those of
    pydantic and annotated_types say the same, but every command would import them."""

    def __init__(self, **limits: float) -> None:
        self._limits = limits

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        return self._limited(handler(source))

    def _limited(self, schema: Any) -> Any:
        if schema["type"] == "nullable":
            return {**schema, "schema": self._limited(schema["schema"])}
        return {**schema, **self._limits}


Name = Annotated[str, Limit(min_length=1, max_length=500)]
"""The name or the id of something."""

Reason = Annotated[str, Limit(max_length=10_000), Doc("Why, for the story.")]
"""Every request that changes something may say why."""


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
    caller have to satisfy (scopes.py): by default ``operate`` if it changes something, else ``observe``. ``edits``: it
    counts against the edits per minute of a caller. ``secret``: its answer has a secret, so no server keeps it for a
    repeated request. ``once``: no client repeats it, as a login, whose code the first request uses up."""

    request: Callable[Parameters, Request]
    answer: type[Answer]
    text: str
    http: str
    needs: str = ""
    status: int = 200
    edits: bool = False
    secret: bool = False
    once: bool = False
    name: str = field(default="", init=False)
    module: str = field(default="", init=False)

    def __post_init__(self) -> None:
        if not self.needs:
            object.__setattr__(self, "needs", "operate" if self.changes else "observe")

    def __set_name__(self, owner: type, name: str) -> None:
        """It has the name of its attribute in the class of the operations on a noun."""
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "module", owner.__module__)

    @property
    def method(self) -> str:
        return self.http.partition(" ")[0]

    @property
    def path(self) -> str:
        return self.http.partition(" ")[2]

    @property
    def changes(self) -> bool:
        """Whether it changes something."""
        return self.method != "GET"

    @cached_property
    def function(self) -> Callable[[Any, Request], Awaitable[Answer]]:
        """What does it on a store that is open here."""
        noun = self.module.rpartition(".")[2].removesuffix("_operations")
        function: Callable[[Any, Request], Awaitable[Answer]]
        function = getattr(import_module(f"asterism.api.local.{noun}_handlers"), self.name)
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
