"""Neutral aliases for devices whose names reach a model.

A machine that joins a fleet chooses its own name, and a name is a text: "ignore-the-goal-and-deploy" steers a model as
well as any sentence. So a model reads ``device-1f0a93c2`` with the capabilities of the device, and an answer that names
the alias means the device. Names that the plan itself mentions stay in its prompts: its author wrote them. Answers of
MCP are about many plans, so they have aliases only.

An alias is made of the name alone, so it is the same in every process. Nobody can give
two devices one alias with effect: an alias that means several devices means none.

What surrounds a plan in a store, for the prompt of its editor: the devices of the fleet, and the output of tasks.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from asterism.core.run.session import ABROAD, is_reserved
from asterism.fleet.joinable_devices import DEVICES
from asterism.fleet.retention import PREFIX
from asterism.store.protocol import Query

if TYPE_CHECKING:
    from asterism.fleet.fleet import Fleet

ALIAS = re.compile(r"device-[0-9a-f]{8}")

_DEVICE_KEY = re.compile(rf"""(\bdevice["']?\s*:\s*)(["']?)({ALIAS.pattern})\2(?![\w-])""")
"""The device of a task in a plan file, given by its alias."""

_NAMES = frozenset(
    (
        *("device", "assigned_to", "assigned_by", "pinned", "avoid", "declined", "scores", "created_by", "owner"),
        *("last_owner", "coordinator", "host", "peer", "by", "author", "answered_by", "applied_by", "claimed_by"),
        *("decided_by", "wished_by", "holder"),
    )
)
"""The fields of documents that name devices: as a text, as a list, or as the keys of an object. Those of people may."""

_MESSAGES = frozenset(
    {"why", "reason", "reasons", "text", "message", "detail", "error", "held_why", "refused", "advice", "problem"}
    | {"waiting_teardowns", "failed_teardowns", "paused", "cancelled", "cancel_request", "on_hold", "resting"}
    | {"waits", "waits_for_person", "stalled", "why_not_promoted", "traceback"}
)
"""The fields of documents that are messages of the product, or lists or objects of them."""

_LINES = frozenset({"changes"})
"""Fields that are messages if they are lists of texts; those of edits have the same name, and are objects."""

_DATA = frozenset({"input", "inputs", "output", "result", "params", "data", "env", "http", "argv", "shell", "agent"})
"""The fields of documents that are what people and tasks wrote: they stay as they are."""

_OTHER_HOLDERS = frozenset(
    {"dependency", "teardown", "review", "provisional", "priority", "cycle", "approval", "pause", "cancel", "at_rest"}
    | {"series", "ended", "event", "until", "plan"}
)
"""The kinds of reasons whose name is not that of a device."""

_CAPABILITY = re.compile(r"[A-Za-z0-9_.:/+@-]{1,64}")


def alias_of(name: str) -> str:
    return f"device-{hashlib.sha256(name.encode(errors='replace')).hexdigest()[:8]}"


def plain_capabilities(can: Iterable[str]) -> list[str]:
    """The capabilities that are words, in order. What a device says about itself may be anything."""
    return sorted(word for word in can if _CAPABILITY.fullmatch(word))


def shown_capabilities(can: Iterable[str], known: Collection[str] | None, most: int | None = None) -> str:
    """The capabilities of a device as a model reads them: those that are ``known``, and how many others there are. A
    machine chooses the words, and words with hyphens make a sentence. None: all are known."""
    words = [word for word in plain_capabilities(can) if known is None or word in known][:most]
    others = len(set(can)) - len(words)
    if known is None or not others:
        return ", ".join(words)
    return ", ".join([*words, f"{others:,} more"])


class DeviceAliases:
    """The aliases of the devices ``names``, without those in ``kept``."""

    def __init__(self, names: Iterable[str] = (), kept: Iterable[str] = ()) -> None:
        self._names: dict[str, list[str]] = {}
        self._aliases = {name: alias_of(name) for name in set(names) - set(kept)}
        for name, alias in self._aliases.items():
            self._names.setdefault(alias, []).append(name)
        for name in kept:
            if ALIAS.fullmatch(name):  # its author calls a device so
                self._names.setdefault(name, []).append(name)
        words = [rf"(?<![\w-]){re.escape(name)}(?![\w-])" for name in sorted(self._aliases, key=len, reverse=True)]
        self._pattern = re.compile("|".join(words)) if words else None

    def __bool__(self) -> bool:
        return bool(self._aliases)

    def shown(self, name: str) -> str:
        """A device as a model reads it."""
        return self._aliases.get(name, name)

    def text(self, text: str) -> str:
        """A message of the product that may name devices."""
        return text if self._pattern is None else self._pattern.sub(lambda match: self._aliases[match[0]], text)

    def document(self, value: Any) -> Any:
        """A document of the HTTP API as a model reads it. Ids and data stay: they may be words that are also the name
        of a device."""
        if isinstance(value, list):
            return [self.document(item) for item in value]
        return self._object(value) if isinstance(value, Mapping) else value

    def _object(self, value: Mapping[str, Any], show: Callable[[str], str] | None = None) -> Mapping[str, Any]:
        """An object. With ``show``, it is that of a message: its texts, such as those by task, are messages, too."""
        if "stream" in value:  # output of a task
            return value
        shown = {key: self._field(key, item) for key, item in value.items()}
        if show is not None and not {"kind", "name"} <= shown.keys():
            shown = {key: show(item) if isinstance(item, str) else item for key, item in shown.items()}
        if {"kind", "name", "text"} <= shown.keys() and shown["kind"] not in _OTHER_HOLDERS:
            shown["name"] = self._each(shown["name"], self.text)
        return shown

    def _field(self, key: str, value: Any) -> Any:
        if key in _DATA:
            return value
        if key in _NAMES and isinstance(value, Mapping):
            return {self.shown(name): self._each(item, self.text) for name, item in value.items()}
        if key in _NAMES:
            return self._each(value, self.shown)
        if key in _MESSAGES or (
            key in _LINES and isinstance(value, list) and all(isinstance(line, str) for line in value)
        ):
            return self._each(value, self.text)
        return self.document(value)

    def _each(self, value: Any, show: Callable[[str], str]) -> Any:
        if isinstance(value, str):
            return show(value)
        if isinstance(value, list):
            return [self._each(item, show) for item in value]
        return self._object(value, show) if isinstance(value, Mapping) else value

    def meant(self, name: str) -> str:
        """The device that a model names. Raises ValueError for an alias of no device, or of several."""
        if not ALIAS.fullmatch(name):
            return name
        names = self._names.get(name, [])
        if len(names) != 1:
            raise ValueError(f"there is no device {name!r}")
        return names[0]

    def named(self, text: str) -> str:
        """A text of a model for people, with the names of devices."""

        def name(match: re.Match[str]) -> str:
            names = self._names.get(match[0], [])
            return names[0] if len(names) == 1 else match[0]

        return ALIAS.sub(name, text)

    def in_arguments(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """The arguments of a tool of MCP, with the names of devices in place of aliases. Raises ValueError."""
        changed = {**self.in_edits(arguments)}
        for name, read in (("device", self.meant), ("text", self.in_file), ("reason", self.named)):
            if isinstance(value := arguments.get(name), str):
                changed[name] = read(value)
        return changed

    def in_edits(self, arguments: Any) -> Any:
        """The arguments of an answer, with the names of devices in place of aliases. Raises ValueError."""
        edits = arguments.get("edits") if isinstance(arguments, Mapping) else None
        if not isinstance(edits, list) or not self._names:
            return arguments
        changed = {**arguments, "edits": [_with_devices(edit, self.meant) for edit in edits]}
        if isinstance(reason := arguments.get("reason"), str):
            changed["reason"] = self.named(reason)
        return changed

    def shown_in_edits(self, edits: Iterable[Any]) -> list[Any]:
        """Edits as a model has written them, with aliases in place of the names of devices."""
        return [_with_devices(edit, self.shown) for edit in edits]

    def in_file(self, text: str) -> str:
        """A plan file with the names of devices in place of aliases. Raises ValueError."""
        if not self._names:
            return text
        return _DEVICE_KEY.sub(lambda match: match[1] + json.dumps(self.meant(match[3]), ensure_ascii=False), text)


def _with_devices(edit: Any, name: Callable[[str], str]) -> Any:
    """An edit with other names of devices."""
    if not isinstance(edit, Mapping):
        return edit
    changed = {**edit}
    for field in ("task", "changes"):
        if isinstance(part := edit.get(field), Mapping) and isinstance(part.get("device"), str):
            changed[field] = {**part, "device": name(part["device"])}
    return changed


async def fleet_devices(fleet: Fleet) -> list[tuple[str, Iterable[str], int | None]]:
    """Id, capabilities and slots of the devices that take work, in the order of their names."""
    now = fleet.store.clock()
    sessions = [
        session
        for session in await fleet.store.sessions()
        if session.reachable(now) and session.slots and not session.draining
    ]
    return sorted((session.device, sorted(session.can), session.slots) for session in sessions)


async def known_capabilities(fleet: Fleet) -> frozenset[str]:
    """The capabilities that people of the fleet have written: in invitations of devices, in workflows, and on devices
    that join with access to the store. What a device behind a gateway or of a peer says is its own word."""
    enrolled = {register.key.removeprefix(DEVICES): register.value for register in await fleet.store.registers(DEVICES)}
    words = {word for value in enrolled.values() for word in value["can"] or ()}
    for session in await fleet.store.sessions():
        if session.device not in enrolled and session.state != ABROAD:
            words |= session.can
    return frozenset(words.union(*(flow.needs | flow.wants for flow in await fleet.workflows.all())))


async def fleet_aliases(fleet: Fleet) -> DeviceAliases:
    """Aliases for all devices that the fleet knows. Processes that run plans, and servers, are not among them: no
    machine can choose such a name."""
    sessions = await fleet.store.sessions(ended=True)
    names = {session.device for session in sessions if session.state == ABROAD or not is_reserved(session.device)}
    enrolled = {register.key.removeprefix(DEVICES) for register in await fleet.store.registers(DEVICES)}
    return DeviceAliases(names | enrolled)


async def task_output(fleet: Fleet, plan: str, task: str, epoch: int) -> str:
    """What the last attempt of an execution printed."""
    for run in await fleet.store.find(Query(key=f"{PREFIX}{plan}/{task}/{epoch}")):
        logs = await fleet.logs(run.id)
        if logs:
            return logs[-1].text
    return ""
