"""Workflows of a store: each version is written once, and a name points at the latest version.

Workflows that peers send are kept beside, under their own version. They never become the latest of a name, so nothing
that a peer sends changes what is executed when a run is created here. They are marked, and removed when no run needs
them any more (retention.py); so are the versions of a workflow that a person removed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asterism.base import expressions
from asterism.base.remembered import Remembered
from asterism.core.errors import AsterismError, InvalidWorkflow, suggestion
from asterism.core.record import decode, replace
from asterism.core.run.run import OWNED, UNOWNED
from asterism.core.run.workflow import Workflow
from asterism.execution import task_inputs
from asterism.store.optimistic_update import retried, retry_on_conflict
from asterism.store.protocol import PutRegister, Query, Store, Write, read_slot
from asterism.store.row_codec import readable
from asterism.store.store_errors import Conflict

LATEST = "workflow/"
VERSIONS = "workflow-version/"
OF_PEERS = "workflow-of-peers/"
"""Prefixes of the keys of registers: pointers to the latest version, workflows, and marks of those that peers sent."""

REMOVED = "removed_at"
"""The field of the pointer of a removed workflow. The pointer stays: another version must not get a number again under
which processes remember an earlier one."""

MOST_KNOWN = 5_000
"""How many workflows a process remembers: each plan in a store has some of its own."""

UNUSED_AGE = 3600.0
"""How long a workflow of a peer is kept though no run needs it (yet), in seconds."""

RULES = ("requires", "prefers")
"""The fields of a workflow that are expressions over devices."""


class UnknownWorkflow(AsterismError):
    """No workflow has this name, or this version."""


class WorkflowInUse(AsterismError):
    """A workflow cannot be removed: a run that has not ended, or a schedule, needs it."""


class MissingInput(AsterismError):
    """A run lacks an input that its workflow names."""


class Workflows:
    """Versions never change, so those that were read lately are remembered."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: Remembered[tuple[str, int], Workflow] = Remembered(MOST_KNOWN)

    async def add(self, workflow: Workflow) -> Workflow:
        """Make a workflow the latest version of its name. Adding it again changes nothing. Raises InvalidWorkflow for
        an expression that is not valid."""
        name = workflow.name
        problem = _problem(workflow)
        if problem is not None:
            raise InvalidWorkflow(problem)
        taken: dict[int, Any] = {}  # the versions that peers sent

        async def attempt() -> Workflow:
            nonlocal taken
            latest = await read_slot(self._store, f"{LATEST}{name}", {"version": 0, REMOVED: 0.0})
            version = latest.value["version"]
            if REMOVED not in latest.value:
                current = await self.get(name, version)
                if current.to_json() == workflow.at_version(version).to_json():
                    return current
            version += 1
            while version in taken and taken[version] != workflow.at_version(version).to_json():
                version += 1
            new = workflow.at_version(version)
            put = PutRegister(_key(name, version), new.to_json(), None)
            ours: list[Write] = [put] if version not in taken else await self._unmark(name, version)
            try:
                await self._store.commit([*ours, latest.put({"version": version})])
            except Conflict as conflict:
                if conflict.concerns("register", put.key):  # one of a peer, or another process adds one just now
                    taken = await self._versions(name)
                raise
            self.remember(new)
            return new

        return await retry_on_conflict(attempt)

    async def _versions(self, name: str) -> dict[int, Any]:
        """All workflows of a name, by version: a peer may have sent thousands."""
        versions = {}
        for register in await self._store.registers(f"{VERSIONS}{name}@"):
            whose, _, version = register.key.removeprefix(VERSIONS).rpartition("@")
            if whose == name and version.isdecimal():
                versions[int(version)] = register.value
        return versions

    async def _unmark(self, name: str, version: int) -> list[Write]:
        """The write that makes a workflow of a peer our own: it is not removed any more."""
        mark = await self._store.register(_mark(name, version))
        return [] if mark is None else [PutRegister(mark.key, None, mark.revision)]

    async def is_kept(self, name: str, version: int) -> bool:
        """Whether the store has it now; it may be only remembered."""
        return await self._store.register(_key(name, version)) is not None

    async def objection(self, workflow: Workflow) -> str | None:
        """Why a workflow of a peer cannot be kept: it has no version, or the store has another one under its version.
        Rules are not compared: a peer that got the workflow from this store has dropped them."""
        if workflow.version < 1:
            return f"workflow {workflow.name!r} has no version"
        register = await self._store.register(_key(workflow.name, workflow.version))
        stored = None if register is None else register.value
        ours = None if stored is None else {name: value for name, value in stored.items() if name not in RULES}
        theirs = without_rules(workflow)
        return _differ(theirs, ours) if ours is not None and ours != theirs.to_json() else None

    @retried
    async def keep(self, workflow: Workflow) -> str | None:
        """Keep a workflow of a peer under its own version, for a run that is about to be taken over. Returns why it
        cannot be stored; None if it can."""
        name, version = workflow.name, workflow.version
        problem = await self.objection(workflow)
        if problem is not None:
            return problem
        stored = await self._store.register(_key(name, version))
        mark = await read_slot(self._store, _mark(name, version))
        now = self._store.clock()
        if stored is not None and (mark.value is None or abs(now - mark.value["at"]) < UNUSED_AGE / 2):
            return None
        # a new mark, so that a process that is about to remove the workflow meets a conflict
        writes: list[Write] = [mark.put({"at": now})]
        if stored is None:
            writes.append(PutRegister(_key(name, version), workflow.to_json(), None))
        await self._store.commit(writes)
        return None

    async def latest(self, name: str) -> Workflow:
        """The latest version of a workflow. Raises UnknownWorkflow."""
        version = await self.latest_version(name)
        if version is None:
            hint = suggestion(name, await self.names()) or f"; add it with `asterism workflow add {name} …`"
            raise UnknownWorkflow(f"there is no workflow {name!r}{hint}")
        return await self.get(name, version)

    async def latest_version(self, name: str) -> int | None:
        """The number of the latest version of a workflow; None if there is no such workflow."""
        pointer = await self._store.register(f"{LATEST}{name}")
        if pointer is None:
            return None
        return pointer.read(version_of)

    async def names(self) -> list[str]:
        """The names of all workflows."""
        pointers = await self._store.registers(LATEST)
        removed = {
            pointer.key for pointer in pointers if isinstance(pointer.value, Mapping) and REMOVED in pointer.value
        }
        return [pointer.key.removeprefix(LATEST) for pointer in pointers if pointer.key not in removed]

    @retried
    async def remove(self, name: str) -> Workflow:
        """Remove a workflow with all its versions, and return the latest. Retention deletes a version when no run needs
        it any more, so a run that is created meanwhile keeps its own. Raises UnknownWorkflow, and WorkflowInUse while a
        run that has not ended needs it."""
        pointer, now = await read_slot(self._store, f"{LATEST}{name}"), self._store.clock()
        latest = await self.latest(name)
        needed = await self._store.find(Query(workflow=name, statuses=OWNED | UNOWNED, limit=1))
        if needed:
            raise WorkflowInUse(
                f"workflow {name!r} is not removed: run {needed[0].id} has not ended. "
                f"List such runs with: asterism runs list --status open --workflow {name}"
            )
        writes: list[Write] = [pointer.put({"version": latest.version, REMOVED: now})]
        for version in await self._versions(name):
            mark = await read_slot(self._store, _mark(name, version))
            writes.append(mark.put({"at": now}))
        await self._store.commit(writes)
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
        known = self._known.get((name, version))
        if known is None:
            register = await self._store.register(_key(name, version))
            if register is None:
                raise UnknownWorkflow(f"there is no version {version} of workflow {name!r}")
            known = register.read(Workflow.from_json)
            self.remember(known)
        return known

    def remembered(self, name: str, version: int) -> Workflow | None:
        """A workflow that was read before, without asking the store; None if it was not."""
        return self._known.get((name, version))

    def remember(self, workflow: Workflow) -> None:
        """Remember a workflow that is in the store, or will be before it is needed."""
        self._known[workflow.name, workflow.version] = workflow

    async def all(self) -> list[Workflow]:
        """The latest version of each workflow."""
        versions = readable(
            lambda pointer: (pointer.key, pointer.read(version_of)), await self._store.registers(LATEST)
        )
        return [await self.get(key.removeprefix(LATEST), version) for key, version in versions if version is not None]


def without_rules(workflow: Workflow) -> Workflow:
    """A workflow as it is taken from a peer. The peer, which knows our devices, evaluates its rules; this store
    evaluates neither them nor the rules of the peer's devices."""
    return replace(workflow, requires=None, prefers=None)


def _problem(workflow: Workflow) -> str | None:
    for what in RULES:
        expression = getattr(workflow, what)
        problem = expressions.check(expression) if expression is not None else None
        if problem is not None:
            return f"workflow {workflow.name!r}: {what} is not valid: {problem}"
    return None


def _differ(workflow: Workflow, ours: Mapping[str, Any]) -> str:
    theirs = workflow.to_json()
    fields = sorted(name for name in {*ours, *theirs} if ours.get(name) != theirs.get(name))
    return (
        f"{workflow.name}@{workflow.version} is one workflow here and another one there: they differ in "
        f"{', '.join(fields)}. Add yours again under another name"
    )


def version_of(pointer: Any) -> int | None:
    """The version that a pointer names; None if the workflow was removed."""
    return None if REMOVED in pointer else decode(int, pointer["version"])


def _key(name: str, version: int) -> str:
    return f"{VERSIONS}{name}@{version}"


def _mark(name: str, version: int) -> str:
    return f"{OF_PEERS}{name}@{version}"


# -- inputs ------------------------------------------------------------------------------------------------------------


def input_names(flow: Workflow) -> set[str]:
    """The inputs that the command or the URL of a workflow names."""
    texts = flow.argv or ((str(flow.http["url"]),) if flow.http is not None else ())
    return set[str]().union(*map(task_inputs.names_in, texts))


def check_input(flow: Workflow, run_input: Mapping[str, Any]) -> None:
    """Raise MissingInput if the command or the URL of a workflow names inputs that are not given."""
    texts = flow.argv or ((str(flow.http["url"]),) if flow.http is not None else ())
    inputs = _RecordingInputs(run_input)
    for text in texts:
        task_inputs.fill_template(text, inputs)
    if inputs.missing:
        missing = sorted(inputs.missing)
        example = ", ".join(f'"{name}": …' for name in missing)
        names = ", ".join(missing[:-1]) + f" and {missing[-1]}" if len(missing) > 1 else missing[0]
        raise MissingInput(f"workflow {flow.name!r} needs {names}: give --input '{{{example}}}'")


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
