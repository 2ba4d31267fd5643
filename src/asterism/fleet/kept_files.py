"""The files of tasks that a store refers to: what retention keeps, a check reads and a backup contains.

A manifest is referred to by the run that made it, by the plan that has recorded it, and by the record of an unchanged
task. Content that was put since the start of a run under way is kept, too: the end of that run may be about to refer to
it, and then does so in one commit. The same holds for what a process that runs a plan executes itself. A run whose
epoch is over cannot end any more, so nothing waits for it.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any

from asterism.base.content_store import ContentAccess, ContentStore
from asterism.core.run.run import OWNED
from asterism.core.run.session import OPEN
from asterism.execution.artifacts import ArtifactProblem, Artifacts, chunks_of
from asterism.fleet.retention import UNCHANGED
from asterism.store.protocol import FILE_USES, Query, Store
from asterism.store.row_codec import run_of

CONTENT_AGE = 3600.0
"""How long content to which nothing refers is kept, in seconds. The clocks of a store and of a bucket may differ."""


async def manifests(store: Store) -> set[str]:
    """The manifests that the store refers to."""
    runs = await store.find(Query(with_files=True))  # first: a run stays at least until its plan has recorded its files
    uses = [*await store.registers(FILE_USES), *await store.registers(UNCHANGED)]
    names = {run.files for run in runs} | {use.value.get("manifest") for use in uses}
    return {name for name in names if isinstance(name, str)}


def manifests_of_dump(record: Mapping[str, Any]) -> set[str]:
    """The manifests that a record of a dump of the store refers to."""
    match record:
        case {"run": row}:
            name = run_of(row).files
        case {"register": {"key": str(key), "value": {"manifest": str(name)}}}:
            name = name if key.startswith((FILE_USES, UNCHANGED)) else None
        case _:
            name = None
    return set() if name is None else {name}


async def collect(
    store: Store,
    content: ContentStore,
    *,
    age: float | None = None,
    apart: Callable[..., Awaitable[Any]] = asyncio.to_thread,
) -> int:
    """Remove content to which nothing refers, and that is older than ``age``, an hour by default. ``apart`` calls what
    blocks. Returns how many pieces. Raises OSError."""
    if content.is_new():
        return 0
    live = await store.find(Query(statuses=OWNED))
    begun = [store.clock(), *(run.assigned_at for run in live if run.assigned_at is not None)]
    # a task that the process of a plan executes has begun after that has joined
    begun += [session.joined_at for session in await store.sessions() if session.runs_plan and session.state == OPEN]
    before = min(begun) - (CONTENT_AGE if age is None else age)
    # listed before the references are read: what is put again after that is younger than ``before``
    old = await apart(lambda: set(content.names(before)))
    if old:
        used = await manifests(store)
        old -= await apart(lambda: used | set(_files_of(content, used)))
    await apart(_remove, content, old, before)
    return len(old)


def _remove(content: ContentStore, names: Iterable[str], before: float) -> None:
    for name in names:
        content.remove(name, before)
    content.sweep(before)


def _files_of(content: ContentAccess, names: Iterable[str]) -> Iterator[str]:
    """The content of all files in manifests. That of a manifest that cannot be read is out of reach anyway."""
    artifacts = Artifacts(content)
    for name in names:
        try:
            yield from artifacts.names(name)
        except ArtifactProblem:
            continue


def names_of(content: ContentAccess, used: Iterable[str]) -> list[str]:
    """All content of these manifests, the manifests first."""
    used = sorted(used)
    return list(dict.fromkeys([*used, *sorted(_files_of(content, used))]))


def problems(content: ContentAccess, used: Iterable[str]) -> Iterator[str]:
    """What is wrong with the content of manifests. Reads all of it. Raises OSError."""
    artifacts, seen = Artifacts(content), set[str]()
    for name in sorted(used):
        try:
            manifest = artifacts.manifest(name)
        except ArtifactProblem as problem:
            yield str(problem)
            continue
        for entry in (entry for entries in manifest.values() for entry in entries):
            if entry.sha256 in seen:
                continue
            seen.add(entry.sha256)
            try:
                hashed = hashlib.sha256()
                with artifacts.open_file(entry) as file:
                    for chunk in chunks_of(file, lambda: None):
                        hashed.update(chunk)
                artifacts.verify(hashed, entry)
            except ArtifactProblem as problem:
                yield str(problem)
