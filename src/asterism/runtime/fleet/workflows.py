"""The workflows of a store: each version is written once, and a name points at the latest.

What peers send is kept beside, under its own version: it never becomes the latest of a name, so nothing that a peer
sends changes what is executed when somebody here creates a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asterism.core.errors import AsterismError, InvalidWorkflow
from asterism.core.workflow import Workflow
from asterism.runtime import conditions
from asterism.store.errors import Conflict
from asterism.store.protocol import PutRegister, Store


class UnknownWorkflow(AsterismError):
    """A name under which nothing was added."""


class Workflows:
    """Versions never change, so those that were read once are remembered."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[tuple[str, int], Workflow] = {}

    async def add(self, workflow: Workflow) -> Workflow:
        """Make it the latest version of its name. The same again changes nothing. Raises InvalidWorkflow for an
        expression that does not parse."""
        name = workflow.name
        problem = _problem(workflow)
        if problem is not None:
            raise InvalidWorkflow(problem)
        same: int | None = None  # the version that peers have under which it is kept already
        others: set[int] = set()  # those under which they have another one
        while True:
            latest = await self._store.register(f"workflow/{name}")
            version = latest.value["version"] if latest is not None else 0
            if version:
                current = await self.get(name, version)
                if current.to_json() == workflow.at_version(version).to_json():
                    return current
            version += 1
            while version in others:
                version += 1
            new = workflow.at_version(version)
            pointer = PutRegister(f"workflow/{name}", {"version": version}, latest and latest.revision)
            there = PutRegister(_key(name, version), new.to_json(), None)
            try:
                await self._store.commit([pointer] if version == same else [there, pointer])
            except Conflict as conflict:
                if conflict.what == f"register {there.key}":  # a peer's, or somebody adds one at this moment
                    found = await self._store.register(there.key)
                    same = version if found is not None and found.value == there.value else same
                    others |= {version} - {same}
                continue
            self._known[name, version] = new
            return new

    async def keep(self, workflow: Workflow) -> str | None:
        """One that a peer has, under its own version. Says what is wrong if another one is kept under that version, or
        if an expression of it does not parse."""
        problem = _problem(workflow)
        if problem is not None:
            return problem
        if workflow.version < 1:
            return f"workflow {workflow.name!r} has no version"
        data = workflow.to_json()
        while True:
            found = await self._store.register(_key(workflow.name, workflow.version))
            if found is not None:
                return None if found.value == data else _differ(workflow, found.value)
            try:
                await self._store.commit([PutRegister(_key(workflow.name, workflow.version), data, None)])
            except Conflict:
                continue
            return None

    async def latest(self, name: str) -> Workflow:
        found = await self._store.register(f"workflow/{name}")
        if found is None:
            raise UnknownWorkflow(f"there is no workflow {name!r}; add it with `asterism workflow add {name} …`")
        return await self.get(name, found.value["version"])

    async def get(self, name: str, version: int) -> Workflow:
        known = self._known.get((name, version))
        if known is None:
            found = await self._store.register(_key(name, version))
            if found is None:
                raise UnknownWorkflow(f"there is no version {version} of workflow {name!r}")
            known = self._known[name, version] = Workflow.from_json(found.value)
        return known

    def remembered(self, name: str, version: int) -> Workflow | None:
        """Without asking the store."""
        return self._known.get((name, version))

    def remember(self, workflow: Workflow) -> None:
        """One that is in the store, or will be before it is needed."""
        self._known[workflow.name, workflow.version] = workflow

    async def all(self) -> list[Workflow]:
        """The latest version of each."""
        pointers = [one for one in await self._store.registers("workflow/") if set(one.value) == {"version"}]
        return [await self.get(one.key.removeprefix("workflow/"), one.value["version"]) for one in pointers]


def _problem(workflow: Workflow) -> str | None:
    for what, expression in (("requires", workflow.requires), ("prefers", workflow.prefers)):
        problem = conditions.check(expression) if expression is not None else None
        if problem is not None:
            return f"workflow {workflow.name!r}: {what} does not parse: {problem}"
    return None


def _differ(workflow: Workflow, ours: Mapping[str, Any]) -> str:
    theirs = workflow.to_json()
    fields = sorted(name for name in {*ours, *theirs} if ours.get(name) != theirs.get(name))
    return (
        f"{workflow.name}@{workflow.version} is one workflow here and another one there: they differ in "
        f"{', '.join(fields)}. Add yours again under another name"
    )


def _key(name: str, version: int) -> str:
    return f"workflow-version/{name}@{version}"
