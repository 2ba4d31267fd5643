"""Workflows of a store: templates of work with a name. Each version is written once, the latest also under its name.

A run carries its work, so no run needs a workflow once it is created, and a removed one is gone at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asterism.base import expressions
from asterism.core.errors import AsterismError, InvalidWorkflow, suggestion
from asterism.core.run.work import Work, Workflow
from asterism.execution import task_inputs
from asterism.store.optimistic_update import retried
from asterism.store.protocol import PutRegister, Register, Store, read_slot
from asterism.store.row_codec import readable
from asterism.store.store_errors import CorruptRecord

LATEST = "workflow/"
VERSIONS = "workflow-version/"
"""Prefixes of the keys of registers: the latest version of each name, and all versions."""

REMOVED = "removed_at"
"""A field of the latest version of a removed workflow. It stays: another version must not get a number again that runs
name."""

RULES = ("requires", "prefers")
"""The fields of a workflow that are expressions over devices."""


class UnknownWorkflow(AsterismError):
    """No workflow has this name, or this version."""


class WorkflowInUse(AsterismError):
    """A workflow cannot be removed: a schedule needs it."""


class MissingInput(AsterismError):
    """A run lacks an input that its workflow names."""


class Workflows:
    def __init__(self, store: Store) -> None:
        self._store = store

    @retried
    async def add(self, workflow: Workflow) -> Workflow:
        """Make a workflow the latest version of its name. Adding it again changes nothing. Raises InvalidWorkflow for
        an expression that is not valid."""
        for what in RULES:
            problem = expressions.check(text) if (text := getattr(workflow, what)) is not None else None
            if problem is not None:
                raise InvalidWorkflow(f"workflow {workflow.name!r}: {what} is not valid: {problem}")
        latest = await read_slot(self._store, f"{LATEST}{workflow.name}", {"version": 0, REMOVED: 0.0})
        same = workflow.at_version(latest.value["version"])
        if latest.value == same.to_json():
            return same
        new = workflow.at_version(same.version + 1)
        data = new.to_json()
        await self._store.commit([PutRegister(_key(new.name, new.version), data, None), latest.put(data)])
        return new

    async def latest(self, name: str) -> Workflow:
        """The latest version of a workflow. Raises UnknownWorkflow."""
        register = await self._store.register(f"{LATEST}{name}")
        if register is None or is_removed(register.value):
            hint = suggestion(name, await self.names()) or f"; add it with `asterism workflow add {name} …`"
            raise UnknownWorkflow(f"there is no workflow {name!r}{hint}")
        return _stored(register)

    async def names(self) -> list[str]:
        """The names of all workflows."""
        latest = await self._store.registers(LATEST)
        return [register.key.removeprefix(LATEST) for register in latest if not is_removed(register.value)]

    async def all(self) -> list[Workflow]:
        """The latest version of each workflow."""
        latest = [register for register in await self._store.registers(LATEST) if not is_removed(register.value)]
        return readable(_stored, latest)

    @retried
    async def remove(self, name: str) -> Workflow:
        """Remove a workflow with all its versions, and return the latest. Raises UnknownWorkflow."""
        slot = await read_slot(self._store, f"{LATEST}{name}")
        latest, prefix = await self.latest(name), f"{VERSIONS}{name}@"
        versions = [
            register
            for register in await self._store.registers(prefix)
            if register.key.removeprefix(prefix).isdecimal()  # a name may contain @
        ]
        gone = [PutRegister(register.key, None, register.revision) for register in versions]
        await self._store.commit([slot.put({"version": latest.version, REMOVED: self._store.clock()}), *gone])
        return latest

    async def find(self, text: str) -> Workflow:
        """The latest version of a workflow, or the version in ``NAME@VERSION``. Raises UnknownWorkflow."""
        name, at, version = text.rpartition("@")
        try:
            return await self.latest(text)
        except UnknownWorkflow:
            if not at or not name or not (version.isascii() and version.isdigit()):
                raise
        return await self.get(name, int(version))

    async def get(self, name: str, version: int) -> Workflow:
        """One version of a workflow. Raises UnknownWorkflow."""
        register = await self._store.register(_key(name, version))
        if register is None:
            raise UnknownWorkflow(f"there is no version {version} of workflow {name!r}")
        return _stored(register)


def is_removed(latest: Any) -> bool:
    """Whether a workflow was removed, by its register."""
    return isinstance(latest, Mapping) and REMOVED in latest


def _stored(register: Register) -> Workflow:
    """The workflow in a register. Raises CorruptRecord."""
    try:
        return register.read(Workflow.from_json)
    except InvalidWorkflow as error:
        raise CorruptRecord(f"register {register.key} cannot be read: {error}", revision=register.revision) from error


def _key(name: str, version: int) -> str:
    return f"{VERSIONS}{name}@{version}"


# -- inputs ------------------------------------------------------------------------------------------------------------


def input_names(work: Work) -> set[str]:
    """The inputs that the command or the URL of a workflow names."""
    texts = work.argv or ((str(work.http["url"]),) if work.http is not None else ())
    return set[str]().union(*map(task_inputs.names_in, texts))


def check_input(workflow: Workflow, run_input: Mapping[str, Any]) -> None:
    """Raise MissingInput if the command or the URL of a workflow names inputs that are not given."""
    texts = workflow.argv or ((str(workflow.http["url"]),) if workflow.http is not None else ())
    inputs = _RecordingInputs(run_input)
    for text in texts:
        task_inputs.fill_template(text, inputs)
    if inputs.missing:
        missing = sorted(inputs.missing)
        example = ", ".join(f'"{name}": …' for name in missing)
        names = ", ".join(missing[:-1]) + f" and {missing[-1]}" if len(missing) > 1 else missing[0]
        raise MissingInput(f"workflow {workflow.name!r} needs {names}: give --input '{{{example}}}'")


class _RecordingInputs(dict[str, Any]):
    """Inputs that contain every name, and record the names that were not given."""

    def __init__(self, inputs: Mapping[str, Any]) -> None:
        super().__init__(inputs)
        self.missing: set[str] = set()

    def __contains__(self, name: object) -> bool:
        if not super().__contains__(name):
            self.missing.add(str(name))
        return True

    def __missing__(self, name: str) -> str:
        return ""
