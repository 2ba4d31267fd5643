"""Kinds of actions that plug-ins add: the class that they derive, and the check of what a plan says for them.

A plug-in is a dataclass below ``Action``, named in the entry points of its package::

    @dataclass(frozen=True)
    class Resize(Action):
        \"\"\"Resize a picture.\"\"\"

        picture: str
        width: int

        async def execute(self, attempt: Attempt) -> Any:
            return await attempt.run(["convert", attempt.fill(self.picture), "-resize", str(self.width), "small.png"])

    [project.entry-points."asterism.actions"]
    resize = "my_package:Resize"

A task of a plan is then ``resize: {picture: a.png, width: 100}``. The fields of the dataclass are the JSON Schema of
the work, and a value that does not fit is a mistake in the plan.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, cast

from asterism.base.plugins import PluginProblem
from asterism.core.errors import AsterismError, DeviceUnavailable, InvalidTask, error_text
from asterism.core.json_values import JsonObject, plain_json
from asterism.core.plan.task import ACTIONS as CORE_KINDS
from asterism.core.plan.task import PLUGIN_NEED, plugin_name
from asterism.core.record import asdict, decode, mistakes, record_of, schema
from asterism.execution.actions import ACTIONS, Attempt

if TYPE_CHECKING:
    from typing import Self

log = logging.getLogger("asterism.device")

CANCEL_TIMEOUT = 30.0
"""How long ``cancel`` may take, in seconds."""


class Action:
    """The base class of an action that a plug-in adds. An instance is the work of one task: a value that does not fit
    the annotations of its fields, or an unknown field, is refused before the work begins."""

    secrets: ClassVar[tuple[str, ...]] = ()
    """The environment variables of the device that it reads with ``attempt.secret``. Their values are masked in all
    output, and a device policy has to list them."""

    starts_processes: ClassVar[bool] = False
    uses_network: ClassVar[bool] = False

    def problems(self) -> Iterable[str]:
        """What is wrong with the work beyond the types of its fields. A text may still have placeholders."""
        return ()

    @classmethod
    def unavailable(cls) -> str | None:
        """Why this machine cannot do such work now; None if it can. Another device is tried then."""
        return None

    async def execute(self, attempt: Attempt) -> Any:
        """Do the work and return its result, which is JSON. An exception is a failure of the task. When cancelled,
        because of a timeout too, stop: ``attempt.run`` kills its process by itself."""
        raise NotImplementedError

    async def cancel(self, attempt: Attempt) -> None:
        """Called after a cancelled ``execute``: end what it has left outside of this process and its children."""

    @classmethod
    async def run(cls, attempt: Attempt) -> Any:
        """Read the work of an attempt and do it. Raises InvalidTask, DeviceUnavailable, and what ``execute`` raises."""
        assert attempt.action.plugin is not None
        action, why = cls.read(attempt.action.plugin), cls.unavailable()
        if why is not None:
            raise DeviceUnavailable(why)
        try:
            return await action.execute(attempt)
        except asyncio.CancelledError:
            try:
                await asyncio.shield(asyncio.wait_for(action.cancel(attempt), CANCEL_TIMEOUT))
            except Exception as error:  # of foreign code; the work is cancelled all the same
                name, why = plugin_name(attempt.action.plugin), attempt.resolved.mask.text(error_text(error))
                log.warning("the plug-in %r may have left something behind: %s", name, why)
            raise

    @classmethod
    def read(cls, plugin: Mapping[str, Any]) -> Self:
        """The action in a field ``plugin``. Raises InvalidTask, with every mistake."""
        name, kind = plugin_name(plugin), record_of(cast("Any", cls))
        work = plain_json(plugin[name], name)
        texts = [mistake.text for mistake in mistakes(kind, work)]
        if not texts:
            action = cls(**asdict(decode(kind, work)))
            texts = list(action.problems())
        if texts:
            raise InvalidTask(f"{name}: {'; '.join(texts)}")
        return action

    @classmethod
    def schema(cls) -> JsonObject:
        """The JSON Schema of the work."""
        return schema(record_of(cast("Any", cls)))


def action_class(name: str) -> type[Action]:
    """The class of a plug-in. Raises PluginProblem."""
    found: Any = ACTIONS.load(name)
    if not (isinstance(found, type) and issubclass(found, Action)):
        raise PluginProblem(f"the plug-in {name!r} is not usable: {found!r} is no class below asterism.Action")
    return found


def check_plugin(plugin: Mapping[str, Any]) -> str | None:
    """What is wrong with the work of a plug-in; None if nothing is, or if the plug-in is not installed here, since the
    device that has it judges then."""
    name = plugin_name(plugin)
    try:
        if ACTIONS.find(name) is not None:
            action_class(name).read(plugin)
    except AsterismError as error:
        return str(error)
    return None


def device_objection(plugin: Mapping[str, Any]) -> str | None:
    """Why this machine does not do the work of a plug-in, whatever the work is; None if it does."""
    try:
        return action_class(plugin_name(plugin)).unavailable()
    except PluginProblem as error:
        return str(error)


def plugin_capabilities() -> frozenset[str]:
    """The capabilities of a device because of its plug-ins. One that is installed counts by its name, and is not
    imported; one of this package counts if this machine can do its work."""
    names = [plugin.name for plugin in ACTIONS if plugin.name not in CORE_KINDS and ACTIONS.is_used(plugin)]
    usable = (name for name in names if name not in ACTIONS.built_in or action_class(name).unavailable() is None)
    return frozenset(PLUGIN_NEED + name for name in usable)


def plugin_secrets(plugin: Mapping[str, Any] | None) -> tuple[str, ...]:
    """The secrets that a plug-in reads. Raises PluginProblem."""
    return () if plugin is None else action_class(plugin_name(plugin)).secrets
