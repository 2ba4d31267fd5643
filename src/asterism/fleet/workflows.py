"""The workflows of a store: each version is written once, and a name points at the latest.

What peers send is kept beside, under its own version: it never becomes the latest of a name, so nothing that a peer
sends changes what is executed when somebody here creates a run. It is marked as theirs, and forgotten when no run that
is kept here needs it any more (retention.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from asterism.base import expressions
from asterism.core.errors import AsterismError, InvalidWorkflow
from asterism.core.run.workflow import Workflow
from asterism.store.protocol import PutRegister, Store, Write
from asterism.store.store_errors import Conflict

VERSIONS = "workflow-version/"
OF_PEERS = "workflow-of-peers/"
"""How the keys of the registers begin with the workflows, and with the marks of those that a peer sent."""

AGE = 3600.0
"""How long one that a peer sent is kept though no run needs it (yet), in seconds."""


RULES = ("requires", "prefers")
"""The fields of a workflow that are expressions over devices."""


class UnknownWorkflow(AsterismError):
    """A name under which nothing was added."""


class Workflows:
    """Versions never change, so those that were read once are remembered."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[tuple[str, int], Workflow] = {}

    async def add(self, workflow: Workflow) -> Workflow:
        """Make it the latest version of its name. The same again changes nothing. Raises InvalidWorkflow for an
        expression that is not valid."""
        name = workflow.name
        problem = _problem(workflow)
        if problem is not None:
            raise InvalidWorkflow(problem)
        taken: dict[int, Any] = {}  # what peers have under later versions
        while True:
            latest = await self._store.register(f"workflow/{name}")
            version = latest.value["version"] if latest is not None else 0
            if version:
                current = await self.get(name, version)
                if current.to_json() == workflow.at_version(version).to_json():
                    return current
            version += 1
            while version in taken and taken[version] != workflow.at_version(version).to_json():
                version += 1
            new = workflow.at_version(version)
            pointer = PutRegister(f"workflow/{name}", {"version": version}, latest and latest.revision)
            there = PutRegister(_key(name, version), new.to_json(), None)
            ours: list[Write] = [there] if version not in taken else await self._made_ours(name, version)
            try:
                await self._store.commit([*ours, pointer])
            except Conflict as conflict:
                if conflict.what == f"register {there.key}":  # a peer's, or somebody adds one at this moment
                    taken = await self._versions(name)
                continue
            self._known[name, version] = new
            return new

    async def _versions(self, name: str) -> dict[int, Any]:
        """Everything that is kept under a name, by version: a peer may have sent thousands."""
        found = {}
        for one in await self._store.registers(f"{VERSIONS}{name}@"):
            whose, _, version = one.key.removeprefix(VERSIONS).rpartition("@")
            if whose == name and version.isdecimal():
                found[int(version)] = one.value
        return found

    async def _made_ours(self, name: str, version: int) -> list[Write]:
        """What makes one that a peer sent our own: it is not forgotten any more."""
        mark = await self._store.register(_mark(name, version))
        return [] if mark is None else [PutRegister(mark.key, None, mark.revision)]

    async def is_kept(self, name: str, version: int) -> bool:
        """Whether it is in the store now, not only remembered."""
        return await self._store.register(_key(name, version)) is not None

    async def objection(self, workflow: Workflow) -> str | None:
        """What is wrong with one that a peer has: if another one is kept under its version. Rules make no difference:
        a peer that had it from us has dropped them."""
        if workflow.version < 1:
            return f"workflow {workflow.name!r} has no version"
        found = await self._store.register(_key(workflow.name, workflow.version))
        ours = None if found is None else {name: value for name, value in found.value.items() if name not in RULES}
        theirs = without_rules(workflow)
        return _differ(theirs, ours) if ours is not None and ours != theirs.to_json() else None

    async def keep(self, workflow: Workflow) -> str | None:
        """One that a peer has, under its own version, for a run that is about to be taken. Says what is wrong if it
        cannot be kept."""
        name, version = workflow.name, workflow.version
        while True:
            problem = await self.objection(workflow)
            if problem is not None:
                return problem
            kept = await self._store.register(_key(name, version))
            mark = await self._store.register(_mark(name, version))
            now = self._store.clock()
            if kept is not None and (mark is None or abs(now - mark.value["at"]) < AGE / 2):
                return None
            # who is about to forget it sees that it is needed again
            writes: list[Write] = [PutRegister(_mark(name, version), {"at": now}, mark and mark.revision)]
            if kept is None:
                writes.append(PutRegister(_key(name, version), workflow.to_json(), None))
            try:
                await self._store.commit(writes)
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


def without_rules(workflow: Workflow) -> Workflow:
    """A workflow as it is taken from a peer. Its rules are judged by the peer, which knows our devices; we evaluate
    none of them, as we evaluate no rule of its devices."""
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


def _key(name: str, version: int) -> str:
    return f"{VERSIONS}{name}@{version}"


def _mark(name: str, version: int) -> str:
    return f"{OF_PEERS}{name}@{version}"
