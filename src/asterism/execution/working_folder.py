"""The working folder of a task with files: made clean, filled with its input files, and emptied after the end.

A command runs in the folder. A function gets it as its parameter ``folder``, a ``pathlib.Path``, since the directory of
a process belongs to all its threads. An input with ``files_from`` stands for the folder, too: its files lie there at
the paths where they were made.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from asterism.core.errors import AsterismError, DeviceTrouble
from asterism.execution.artifacts import ArtifactProblem, Artifacts, FileEntry
from asterism.execution.processes import EXHAUSTED, own_part

if TYPE_CHECKING:
    from asterism.execution.actions import Attempt

log = logging.getLogger("asterism.execution")

Answer = TypeVar("Answer")


class InputFiles(NamedTuple):
    """The files of an input: those of one output of an execution, or of several, the elements of a group."""

    manifests: tuple[str, ...]
    output: str


class WorkFiles:
    """The files of one execution: ``inputs`` by name, and the patterns of its ``outputs``. ``on_kept`` is called with
    the hash of the manifest when the outputs are kept. If the action fails, or its time is up (``expired``), those
    that exist are kept."""

    def __init__(
        self,
        artifacts: Artifacts,
        inputs: Mapping[str, InputFiles],
        outputs: Mapping[str, str],
        on_kept: Callable[[str], None],
        expired: Callable[[], bool] | None = None,
    ) -> None:
        self._artifacts, self._inputs, self._outputs, self._on_kept = artifacts, inputs, outputs, on_kept
        self._expired = expired
        self._stopped = False

    async def execute(self, attempt: Attempt, action: Callable[[Attempt], Awaitable[Any]]) -> Any:
        """Execute an action in a folder of its own, and keep its outputs. Raises ArtifactProblem for an output that is
        missing, and what the action raises."""
        with own_part("the working folder could not be made"):
            root = attempt.make_folder()
        try:
            folder = root / "work"
            with own_part("the input files could not be written", EXHAUSTED):
                await self._in_thread(lambda: self._place_inputs(folder))
            attempt.root, attempt.folder = root, folder
            is_call = attempt.action.call is not None
            attempt.resolved.inputs.update(dict.fromkeys(self._inputs, folder if is_call else str(folder)))
            try:
                value = await action(attempt)
                if self._outputs:
                    keep = self._artifacts.keep_outputs
                    with own_part("the output files could not be kept", EXHAUSTED):
                        self._on_kept(await self._in_thread(lambda: keep(folder, self._outputs, self._check)))
            except DeviceTrouble:
                raise
            except Exception:
                await self._keep_what_exists(folder)
                raise
            except asyncio.CancelledError:
                if self._expired is not None and self._expired():
                    await self._keep_what_exists(folder)
                raise
            return value
        finally:
            await asyncio.shield(asyncio.to_thread(remove_folder, root))

    async def _keep_what_exists(self, folder: Path) -> None:
        """Keep the outputs of work that failed. What keeps them from being kept must not hide why it failed."""
        try:
            keep = self._artifacts.keep_what_exists
            manifest = await self._in_thread(lambda: keep(folder, self._outputs, self._check))
        except (AsterismError, OSError) as error:
            log.warning("the outputs of work that failed could not be kept: %s", error)
        else:
            if manifest is not None:
                self._on_kept(manifest)

    def _place_inputs(self, folder: Path) -> None:
        folder.mkdir()
        placed: dict[str, tuple[str, str]] = {}
        for name, files in self._inputs.items():
            is_empty = bool(files.manifests)
            for manifest in files.manifests:
                made = self._artifacts.manifest(manifest)
                if files.output not in made:
                    raise ArtifactProblem(f"the files of the input {name!r} have no output {files.output!r}")
                for entry in made[files.output]:
                    is_empty = False
                    known = placed.get(entry.path)
                    if known is None:
                        placed[entry.path] = (entry.sha256, name)
                        self._place(entry, folder, name)
                    elif known[0] != entry.sha256:
                        raise ArtifactProblem(_two_files(entry.path, known[1], name))
            if is_empty:  # those who have made files failed before they made these
                raise ArtifactProblem(f"the input {name!r} has no files: nobody has made the output {files.output!r}")

    def _place(self, entry: FileEntry, folder: Path, name: str) -> None:
        try:
            self._artifacts.place(entry, folder, self._check)
        except (FileExistsError, NotADirectoryError):
            text = (
                f"the file {entry.path!r} of the input {name!r} cannot be written: another input file, or its folder,"
            )
            raise ArtifactProblem(f"{text} has this name; this system may not distinguish 'A' from 'a'") from None

    async def _in_thread(self, function: Callable[[], Answer]) -> Answer:
        """Call a function in a thread. When cancelled, wait until it has stopped: its folder is removed next."""
        job = asyncio.ensure_future(asyncio.to_thread(function))
        try:
            return await asyncio.shield(job)
        except asyncio.CancelledError:
            self._stopped = True
            await asyncio.wait([job])
            job.exception()
            raise

    def _check(self) -> None:
        if self._stopped:
            raise ArtifactProblem("it was stopped")


def remove_folder(folder: Path) -> None:
    """Remove a folder with all that is in it, also in folders that were made unwritable. What stays is ignored."""
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        folder.chmod(0o700)  # which is still there
        for inner, folders, _ in os.walk(folder):
            for path in [os.path.join(inner, name) for name in folders]:
                if not os.path.islink(path):
                    os.chmod(path, 0o700)
    shutil.rmtree(folder, ignore_errors=True)


def _two_files(path: str, first: str, second: str) -> str:
    if first != second:
        return f"the inputs {first!r} and {second!r} both have a file {path!r}, and the two differ"
    advice = "name it after the element, such as {item} or {index}"
    return f"two elements in the input {first!r} have a file {path!r}, and the two differ; {advice}"
