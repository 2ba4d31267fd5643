"""The workflows of a store: each version is written once, and a name points at the latest."""

from __future__ import annotations

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
        for what, expression in (("requires", workflow.requires), ("prefers", workflow.prefers)):
            problem = conditions.check(expression) if expression is not None else None
            if problem is not None:
                raise InvalidWorkflow(f"workflow {name!r}: {what} does not parse: {problem}")
        while True:
            latest = await self._store.register(f"workflow/{name}")
            version = latest.value["version"] if latest is not None else 0
            if version:
                current = await self.get(name, version)
                if current.to_json() == workflow.at_version(version).to_json():
                    return current
            new = workflow.at_version(version + 1)
            pointer = PutRegister(f"workflow/{name}", {"version": version + 1}, latest and latest.revision)
            try:
                await self._store.commit([PutRegister(_key(name, version + 1), new.to_json(), None), pointer])
            except Conflict:
                continue
            self._known[name, version + 1] = new
            return new

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


def _key(name: str, version: int) -> str:
    return f"workflow-version/{name}@{version}"
