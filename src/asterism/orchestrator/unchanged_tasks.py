"""Tasks that are skipped if nothing has changed: ``skip_if_unchanged``, as in make.

Such a task declares the files that it reads and the files that it writes. After it has completed, a record keeps the
hashes of these files, a hash of what was executed (command, inputs, results of other tasks), and its result. If all of
this is the same the next time, the task completes at once with the result of the record.

A recorded result counts as if the task had been assigned to the device that made it. So it counts only if

* that device could run the task now: the task names no other device, and the device has what the task needs. A device
  that was revoked and enrolled again is another one;
* the plans are starts of the same plan file by the same author, or both tasks give the same name ``shared``;
* an editor that wrote or changed the work of one of the tasks wrote or changed that of the other, under the same
  scopes.

A task with a working folder (core/plan/task_files.py) names no files here. Its input files are those of the outputs
that it takes, with their paths and modes; the record has the manifest of its outputs, and keeps them from collection.
When it is used, it must have been there all the time, and all its files must be there.

The files are those of the process that runs the plan. The inputs are hashed before the execution: a file that changes
meanwhile counts as changed. A record that cannot be read or written costs an execution, never the task. Values of
secrets are not part of the record, nor is the code of functions.

Hashes of the content of files, to find out whether any of them has changed.

The names of the files come from plans and their editors. So only regular files are read: a device, a pipe or a socket
never ends, or acts when it is opened. Number, size and time are bounded, and the caller may stop the work at any time:
it runs in a thread, which cannot be stopped from outside.
"""

from __future__ import annotations

import asyncio
import glob
import hashlib
import json
import logging
import os
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from asterism.base.file_patterns import matching_paths
from asterism.core.errors import AsterismError, NotJson
from asterism.core.json_values import JsonObject, mappings_in, plain_json
from asterism.core.plan.task import Task
from asterism.core.plan.task_files import handles_files
from asterism.execution.function_calls import call_in_thread
from asterism.execution.working_folder import InputFiles
from asterism.orchestrator.devices import Work, input_files

if TYPE_CHECKING:
    from asterism.orchestrator.execution import Execution
    from asterism.orchestrator.roster import Active


MAX_FILES = 100_000
"""How many files the patterns of one task may match."""

MAX_BYTES = 16 * 1024**3
"""How many bytes the files of one task may have in all."""

MAX_SECONDS = 600.0
"""How long the files of one task may take."""

CHUNK = 1024 * 1024
"""How many bytes are read between two looks whether to stop."""


class UnsuitableFiles(ValueError):
    """The files cannot be compared: there are too many, they are too large, or one of them is not a regular file."""


class HashingStopped(Exception):
    """The caller has stopped the work."""


def hash_files(
    patterns: Iterable[str], folder: str, stopped: Callable[[], bool] = lambda: False
) -> dict[str, str | None]:
    """The SHA-256 of each file that the patterns name, relative to ``folder``; None for a file that does not exist or
    cannot be read. ``stopped`` says whether to stop.

    ``*``, ``?`` and ``[…]`` match as in a shell, ``**`` any folders; a folder stands for all files in it. Links to
    folders are followed only where a pattern names them. Raises UnsuitableFiles and HashingStopped."""
    return _Hashing(folder, stopped).hashes(patterns)


class _Hashing:
    def __init__(self, folder: str, stopped: Callable[[], bool]) -> None:
        self._folder, self._stopped = folder, stopped
        self._until, self._bytes = time.monotonic() + MAX_SECONDS, 0

    def hashes(self, patterns: Iterable[str]) -> dict[str, str | None]:
        hashes: dict[str, str | None] = {}
        for pattern in patterns:
            for path in self._files(pattern):
                hashes[path] = self._hash(path)
                if len(hashes) > MAX_FILES:
                    raise UnsuitableFiles(f"{pattern!r} matches more than {MAX_FILES:,} files; name fewer of them")
        return hashes

    def _check(self) -> None:
        if self._stopped():
            raise HashingStopped
        if time.monotonic() > self._until:
            raise UnsuitableFiles(f"to read them takes more than {MAX_SECONDS:,.0f} s; name fewer of them")

    def _files(self, pattern: str) -> Iterator[str]:
        names = matching_paths(pattern, self._folder, self._check) if glob.has_magic(pattern) else [pattern]
        for name in names:
            path = os.path.join(self._folder, name)
            if not os.path.isdir(path):
                yield name
                continue
            for inner, folders, files in os.walk(path):
                folders.sort()
                for file in sorted(files):
                    self._check()
                    yield os.path.join(name, os.path.relpath(os.path.join(inner, file), path))

    def _hash(self, path: str) -> str | None:
        full = os.path.join(self._folder, path)
        try:
            if not stat.S_ISREG(os.stat(full).st_mode):  # before it is opened: that alone may do something
                raise UnsuitableFiles(f"{path!r} is not a regular file")
            descriptor = os.open(full, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        except OSError:
            return None
        with open(descriptor, "rb", buffering=0) as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):  # it was replaced meanwhile
                raise UnsuitableFiles(f"{path!r} is not a regular file")
            digest = hashlib.sha256()
            try:
                while chunk := file.read(CHUNK):
                    self._check()
                    self._bytes += len(chunk)
                    if self._bytes > MAX_BYTES:
                        raise UnsuitableFiles(f"they have more than {MAX_BYTES:,} bytes; name fewer of them")
                    digest.update(chunk)
            except OSError:
                return None
            return digest.hexdigest()


log = logging.getLogger("asterism.unchanged")

LONGEST_RECORD = 512 * 1024
"""The longest record, in characters. A task with a larger result, or with too many files, is always executed."""

UNKNOWN = ["", ""]
"""The maker of a record that never counts: of a device that was revoked."""

_EXECUTED = ("call", "argv", "shell", "http", "inputs", "env", "data")
"""The fields of a task that decide what is executed."""


class ResultRecords(Protocol):
    """Where the records are kept."""

    async def get(self, key: str) -> Mapping[str, Any] | None:
        """The record under a key; None if there is none."""

    async def put(self, key: str, record: Mapping[str, Any]) -> None:
        """Replace the record under a key."""

    async def renew(self, key: str) -> bool:
        """Note that the record under a key is used now. Returns whether it is still there."""


async def execute_unless_unchanged(execution: Execution, work: Active) -> Any:
    """The recorded result of a task if nothing has changed, with a note in the story; else that of its execution."""
    records, execute = execution.options.records, work.member.device.execute
    roster, plan_id = execution.roster, execution.plan.id
    if records is None or work.resumed:  # its execution may be under way, and its files about to change
        return await execute(work)
    try:
        scope = _scope_of_records(execution, work.task)
        files = _MadeFiles(work, scope) if handles_files(work.task) else _NamedFiles(work.task, scope)
        executed = _digest(_executed(work))
        inputs = await files.inputs()
        key = files.key(executed, inputs)
        record = await records.get(key)
        same = record is not None and (record.get("executed"), record.get("inputs")) == (executed, inputs)
        able = record is not None and same and await roster.could_run(record["maker"], plan_id, work.task)
        why = None if record is None or not able else await files.unchanged(inputs, record)
        if record is not None and why is not None and await records.renew(key):
            work.files = record.get("manifest")
            execution.plan.note(execution.plan.clock(), "unchanged", work.task.id, why)
            execution.events.task_changed("task_unchanged", work.node)
            return record.get("result")
    except (AsterismError, UnsuitableFiles, OSError) as error:
        log.warning("task %s is executed without a comparison of its files: %s", work.task.id, error)
        return await execute(work)
    result = await execute(work)
    try:
        node = work.node
        maker = await roster.maker(plan_id, node.device or "", node.begun_at if node.span is None else node.span[0])
        record = {"executed": executed, "inputs": inputs, "maker": maker, **await files.made(), "result": result}
        if len(json.dumps(plain_json(record))) > LONGEST_RECORD:
            raise NotJson(f"the record is longer than {LONGEST_RECORD:,} characters")
        await records.put(key, plain_json(record))
    except (AsterismError, UnsuitableFiles, OSError) as error:
        log.warning("task %s will be executed again: its result is not recorded: %s", work.task.id, error)
    return result


def _scope_of_records(execution: Execution, task: Task) -> Any:
    """What the tasks have in common that may use each other's records."""
    plan, shared = execution.plan, (task.skip_if_unchanged or {}).get("shared")
    plans = ["plan", plan.source or plan.id, plan.author] if shared is None else ["shared", shared]
    editor = plan.edited.get(task.id)
    if editor is None:
        return [plans]
    return [plans, editor, [scope.to_json() for scope in execution.waiting.scopes if scope.is_for(editor)]]


class _MadeFiles:
    """The files of a task with a working folder."""

    def __init__(self, work: Active, scope: Any) -> None:
        self._work, self._scope = work, scope
        if work.artifacts is None or work.artifacts.is_temporary:
            raise AsterismError("its files are kept as long as this process only; run the plan in a store")
        self._artifacts = work.artifacts

    async def inputs(self) -> dict[str, str]:
        """The hashes of the lists of its input files."""
        taken = input_files(self._work)
        return await asyncio.to_thread(lambda: {name: self._digest(files) for name, files in taken.items()})

    def _digest(self, files: InputFiles) -> str:
        return _digest([self._artifacts.manifest(name).get(files.output, ()) for name in files.manifests])

    def key(self, executed: str, inputs: Mapping[str, Any]) -> str:
        """Whatever was made stays, so there is a record of each work on each input."""
        return _digest([executed, inputs, dict(self._work.task.outputs), self._scope])

    async def unchanged(self, inputs: Mapping[str, Any], record: Mapping[str, Any]) -> str | None:
        """Says what is unchanged, if all files of a record are there."""
        manifest = record.get("manifest")
        if (manifest is None) != (not self._work.task.outputs):
            return None
        if manifest is not None and not await asyncio.to_thread(self._artifacts.has_all, manifest):
            return None
        return f"the files of {len(inputs)} inputs are as before its last execution"

    async def made(self) -> JsonObject:
        return {"manifest": self._work.files}


class _NamedFiles:
    """The files that a task names in ``skip_if_unchanged``, in its directory."""

    def __init__(self, task: Task, scope: Any) -> None:
        self._spec, self._scope = task.skip_if_unchanged or {}, scope
        self._folder = os.path.abspath(task.cwd or ".")

    async def inputs(self) -> dict[str, str | None]:
        return await self._hashes(self._spec.get("inputs", ()))

    def key(self, executed: str, inputs: Mapping[str, Any]) -> str:
        """There is one record for the same outputs: the last task that wrote them counts."""
        return _digest([self._folder, list(self._spec["outputs"]), self._scope])

    async def unchanged(self, inputs: Mapping[str, Any], record: Mapping[str, Any]) -> str | None:
        """Says what is unchanged, if the outputs are as the record says."""
        if record.get("outputs") != await self._hashes(self._spec["outputs"]):
            return None
        return f"{len(inputs)} input and {len(record['outputs'])} output files are as after its last execution"

    async def made(self) -> JsonObject:
        """Raises NotJson if the task did not write its outputs."""
        outputs = await self._hashes(self._spec["outputs"])
        missing = [path for path, digest in outputs.items() if digest is None]
        if missing or not outputs:
            raise NotJson(f"it did not write {missing[0]!r}" if missing else "no file matches its outputs")
        return {"outputs": outputs}

    async def _hashes(self, patterns: Sequence[str]) -> dict[str, str | None]:
        """The hashes. When this is cancelled, the thread that reads the files stops."""
        stop = threading.Event()
        arguments = {"patterns": patterns, "folder": self._folder, "stopped": stop.is_set}
        reading = asyncio.create_task(call_in_thread(hash_files, arguments))
        try:
            hashes: dict[str, str | None] = await asyncio.shield(reading)
        except asyncio.CancelledError:
            stop.set()
            await asyncio.wait([reading])
            reading.exception()  # retrieved, so that asyncio does not log it
            raise
        return hashes


def _executed(work: Work) -> Any:
    """What decides the outcome of an execution, beside files: the action, its inputs, and the results that it gets.
    Raises NotJson for a function without an import path."""
    task = work.task
    results = dict(work.results) if task.call is not None else {name: work.results[name] for name in _sources(task)}
    executed = {name: task.field_to_json(name) for name in _EXECUTED}
    for kind in ("agent", "plugin"):
        if getattr(task, kind) is not None:  # left out otherwise: the records of other tasks stay valid
            executed[kind] = task.field_to_json(kind)
    return [executed, plain_json(results)]


def _sources(task: Task) -> set[str]:
    """The tasks to whose results inputs, variables or the request refer."""
    parts = mappings_in([task.inputs, task.env, task.http])
    return {part["from"] for part in parts if isinstance(part.get("from"), str)}


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(plain_json(value), sort_keys=True).encode()).hexdigest()
