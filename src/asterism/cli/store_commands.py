"""``asterism store``: create, inspect, check, back up and restore a store.

A backup file has JSON lines, compressed if its name ends in ``.gz``. It is complete or absent: it is written under
another name and renamed at the end. Its last line counts the lines before it, so that a truncated file is recognised
before anything is restored from it.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gzip
import json
import os
import tempfile
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, TextIO, cast

import click

from asterism.base.text import clean, plural
from asterism.cli.cli_context import (
    Answer,
    CommandGroup,
    fleet_options,
    format_size,
    on_fleet,
    open_fleet,
    refuse_server,
    run_interruptible,
    view,
    with_fleet,
)
from asterism.cli.option_types import option, size_option, writable_file
from asterism.core.record import replace
from asterism.store.store_errors import StoreCorrupt, StoreNotFound

if TYPE_CHECKING:
    from asterism.api.system import System
    from asterism.base.content_store import ContentAccess
    from asterism.fleet.fleet import Fleet
    from asterism.store.protocol import Store

DAMAGED = 64
END = "end"

LONGEST_LINE = 256 << 20
"""The longest line of a backup by default, in bytes: four times the largest result that a fleet accepts by default."""

_PART = 1 << 20


@click.group(cls=CommandGroup)
def store() -> None:
    """Create, inspect and back up a store: init, info, check and more."""


@store.command()
@fleet_options
def init(store: str | None, as_json: bool) -> int:
    """Create an empty store.

    A store that exists stays as it is. Commands that add something to a store create it, too."""
    refuse_server(store, "A server has its store already; `asterism store init` creates one where its files are.")

    async def create() -> tuple[str, bool]:
        try:
            fleet, created = await open_fleet(store), False
        except StoreNotFound:
            fleet, created = await open_fleet(store, create=True), True
        async with fleet:
            return fleet.store.url, created

    url, created = run_interruptible(create())
    text = f"{url} is created: an empty store." if created else f"{url} exists already."
    return Answer({"store": url, "created": created}, text).print(as_json)


@store.command()
async def info(system: System) -> Answer:
    """Show where the store is, and what it contains."""
    answer = await system.show_store()
    answer = replace(answer, store=answer.store or system.url)
    return Answer(answer, view("fleet.fleet_views:store_lines", answer))


def _refuse_server(store: str | None, command: str) -> None:
    why = f"`asterism store {command}` acts on the files of a store"
    refuse_server(store, f"{why}: use it where they are, with --store sqlite:///file.db or postgresql://…")


@store.command()
@fleet_options
def check(store: str | None, as_json: bool) -> int:
    """Check the whole store for damage.

    Exits with 0 if the store is intact, with 64 if not."""
    _refuse_server(store, "check")

    async def look(fleet: Fleet) -> tuple[str, list[str], int]:
        problems = await fleet.store.check() or await _unreadable(fleet) or await _damaged_files(fleet)
        return fleet.store.url, problems, sum((await fleet.store.counts()).values())

    try:
        url, problems, runs = with_fleet(store, look)
    except StoreCorrupt as error:
        url, problems, runs = "the store", [error.problem], 0
    text, notes = f"{url} is intact: {plural(runs, 'run')}.", list[str]()
    if problems:
        text, notes = "\n".join(map(clean, problems)), [f"{plural(len(problems), 'problem')} in {url}."]
    code = DAMAGED if problems else 0
    return Answer({"problems": problems, "runs": runs}, text, notes, code).print(as_json)


async def _unreadable(fleet: Fleet) -> list[str]:
    """Registers that those who read them would leave out, and plans whose journal is cut or damaged: the check of the
    store itself does not see them."""
    from asterism.cli.register_kinds import unreadable_registers
    from asterism.durable.plan_summaries import damaged_summaries
    from asterism.durable.stored_plans import unreadable_plans

    summaries = await damaged_summaries(fleet.store)
    plans = [f"plan {plan.name} cannot be read: {plan.why}" for plan in await unreadable_plans(fleet)]
    return [*await unreadable_registers(fleet.store), *plans, *summaries]


async def _damaged_files(fleet: Fleet) -> list[str]:
    """Files of tasks that are missing or damaged."""
    from asterism.execution.artifacts import ArtifactProblem
    from asterism.fleet import kept_files

    used = await kept_files.manifests(fleet.store)
    if not used:
        return []
    try:
        content = await fleet.artifacts()
        return await asyncio.to_thread(lambda: list(kept_files.problems(content, used)))
    except (ArtifactProblem, OSError) as error:
        return [f"the files of tasks cannot be read: {error}"]


@store.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path), callback=writable_file)
@fleet_options
def backup(file: Path, store: str | None, as_json: bool) -> int:
    """Write a consistent backup of the store to FILE.

    FILE has a JSON document on each line, also for the files of tasks, and is compressed if its name ends in .gz. The
    fleet continues to work. FILE appears when it is complete, and only you can read it. It can be restored into a store
    of any kind."""
    _refuse_server(store, "backup")

    async def write(fleet: Fleet) -> tuple[int, int]:
        return await write_backup(fleet.store, file, fleet.artifacts)

    try:
        runs, missing = with_fleet(store, write)
    except OSError as error:
        raise click.ClickException(f"{clean(str(file))} cannot be written: {error.strerror or error}") from None
    written = file.stat().st_size
    text = f"{clean(str(file))}: {plural(runs, 'run')}, {format_size(written)}."
    notes = [f"{plural(missing, 'file')} of tasks {'is' if missing == 1 else 'are'} missing."] if missing else []
    return Answer({"file": str(file), "runs": runs, "size": written}, text, notes).print(as_json)


@store.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@option("--keep-devices", "Keep enrolled devices that were not revoked at the time of the backup.")
@size_option(
    "--line-limit",
    str(LONGEST_LINE),
    shown="256M",
    help="A backup with a longer line is refused. Each record, and each large result, is one line.",
)
@on_fleet(create=True)
def restore(file: Path, keep_devices: bool, line_limit: int, store: str | None) -> Any:
    """Restore a backup from FILE into an empty store.

    A store that is not empty is refused. Restored runs have no owner: runs that were in progress are assigned again. A
    backup has no tokens: create them again. Schedules start paused, since those of the old store may still work.
    Devices that joined through a server are revoked, since one may have been
    revoked after the backup: invite them again, or use --keep-devices if none was."""
    _refuse_server(store, "restore")

    async def read(fleet: Fleet) -> Answer:
        from asterism.fleet.joinable_devices import DEVICES

        files = _FilesAfter(file, line_limit)
        runs = await fleet.store.load(files.records(), keep_devices=keep_devices)
        if files.any:
            await _restore_files(fleet, file, line_limit)
        enrolled = await fleet.store.registers(DEVICES)
        kept, revoked = (
            [
                register.key.removeprefix(DEVICES)
                for register in enrolled
                if (register.value.get("revoked_at") is None) is valid
            ]
            for valid in (True, False)
        )
        notes = []
        if kept:
            notes.append(
                f"{plural(len(kept), 'device')} enrolled at the time of the backup may join again: "
                f"{clean(', '.join(kept))}. If one was revoked since, revoke it with: asterism device revoke NAME"
            )
        if revoked:
            notes.append(
                f"{plural(len(revoked), 'device')} of the backup may not join: {clean(', '.join(revoked))}. "
                "Invite them again with: asterism device invite --name NAME"
            )
        paused = [schedule.name for schedule in await fleet.schedules.all()]
        if paused:
            notes.append(
                f"{plural(len(paused), 'schedule')} {'is' if len(paused) == 1 else 'are'} paused: "
                f"{clean(', '.join(paused))}. If the old store no longer creates their work, resume each with: "
                "asterism schedule resume NAME"
            )
        devices = {"kept": kept, "revoked": revoked}
        document = {"file": str(file), "runs": runs, "store": fleet.store.url, "devices": devices, "paused": paused}
        return Answer(document, f"{fleet.store.url}: {plural(runs, 'run')} restored.", notes)

    if not file.exists():
        raise click.UsageError(f"there is no file {clean(str(file))}")
    check_backup(file, line_limit)  # before a store is created for it
    return read


# -- backup files ------------------------------------------------------------------------------------------------------


async def write_backup(
    store: Store, path: Path, artifacts: Callable[[], Awaitable[ContentAccess]] | None = None
) -> tuple[int, int]:
    """Write a consistent snapshot of the store, and the files of its tasks from where ``artifacts`` opens them. Returns
    the number of runs, and of files that are missing. Raises OSError, and ArtifactProblem."""

    used = BackedUpFiles()
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # readable by this user only
    os.close(handle)
    try:
        lines = runs = 0
        with _open(Path(name), "wt", gzip_it=path.suffix == ".gz") as file:
            async for line in store.dump():
                file.write(json.dumps(line, separators=(",", ":")) + "\n")
                lines += 1
                runs += "run" in line
                used.note(line)
            for line in used.lines(await artifacts()) if used and artifacts is not None else ():
                file.write(json.dumps(line, separators=(",", ":")) + "\n")
                lines += 1
            file.write(json.dumps({END: lines}) + "\n")
        _publish(Path(name), path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
    return runs, used.missing


def check_backup(path: Path, limit: int) -> None:
    """Raise StoreCorrupt if a file is not a complete backup. To be called before a store is created for it. Raises
    OSError."""
    for _ in read_backup(path, limit):
        pass


_PART_SIZE = 128
"""About how much memory a part of a JSON value takes, in bytes: more than 20 times its text."""

_FREE_PARTS = 250_000
"""How many parts a line may have with any limit."""


def read_backup(path: Path, limit: int = LONGEST_LINE) -> Iterator[Mapping[str, Any]]:
    """The lines of a backup, without the last. Raises StoreCorrupt at the first damage, and for a line of more than
    ``limit`` characters, or with so many parts that they would take more memory than such a line."""
    count = 0
    ended = False
    try:
        with _open(path, "rt", gzip_it=_is_gzip(path)) as file:
            while text := file.readline(limit + 1):
                if len(text) > limit and not text.endswith("\n"):
                    raise StoreCorrupt(
                        f"{path}: line {count + ended + 1:,} has {_length(file, len(text))}, and the limit is "
                        f"{format_size(limit)}; if the backup is yours, give a larger one with --line-limit"
                    )
                if (parts := sum(map(text.count, ",[{"))) > max(limit // _PART_SIZE, _FREE_PARTS):
                    raise StoreCorrupt(
                        f"{path}: line {count + ended + 1:,} has {parts:,} parts, which take too much memory; if the "
                        "backup is yours, give a larger limit with --line-limit"
                    )
                line = json.loads(text)
                if ended or not isinstance(line, dict):
                    raise ValueError("it is not a backup")
                if set(line) == {END}:
                    ended = True
                    if line[END] != count:
                        raise ValueError(f"it should have {line[END]} lines")
                    continue
                count += 1
                yield line
    except (ValueError, EOFError, zlib.error, gzip.BadGzipFile, RecursionError) as error:
        if not count:
            raise StoreCorrupt(f"{path} is not a backup, or is damaged from the start: {error}") from None
        raise StoreCorrupt(f"{path} is damaged after line {count}: {error}") from None
    if not ended:
        raise StoreCorrupt(f"{path} is not a complete backup: it is truncated after line {count}")


def _length(file: TextIO, read: int) -> str:
    """The length of a line in words; ``read`` characters were read. Not all is counted: a compressed line may be
    endless."""
    most = 4 * read
    while read < most:
        part = file.readline(_PART)
        read += len(part)
        if not part or part.endswith("\n"):
            return format_size(read)
    return f"more than {format_size(most)}"


class _FilesAfter:
    """The records of a backup. ``any`` says whether files of tasks come after them, once all are read."""

    def __init__(self, path: Path, limit: int) -> None:
        self._path, self._limit, self.any = path, limit, False

    async def records(self) -> AsyncIterator[Mapping[str, Any]]:
        for line in read_backup(self._path, self._limit):
            if "content" in line:
                self.any = True
            else:
                yield line


async def _restore_files(fleet: Fleet, path: Path, limit: int) -> None:
    """Put the files of tasks where the restored store has them."""
    from asterism.execution.artifacts import ArtifactProblem

    try:
        content = await fleet.artifacts()
        await asyncio.to_thread(restore_files, read_backup(path, limit), content)
    except (ArtifactProblem, OSError) as error:
        where = clean(str(path))
        raise click.ClickException(f"The records of {where} are restored, but not its files: {error}") from None


def _open(path: Path, mode: Literal["rt", "wt"], *, gzip_it: bool) -> TextIO:
    if gzip_it:
        return cast(TextIO, gzip.open(path, mode, compresslevel=6, encoding="utf-8"))
    return open(path, mode, encoding="utf-8")


def _is_gzip(path: Path) -> bool:
    with open(path, "rb") as file:
        return file.read(2) == b"\x1f\x8b"


def _publish(written: Path, place: Path) -> None:
    """Flush a file to the disk and rename it to its place."""
    with open(written, "rb") as file:
        os.fsync(file.fileno())
    os.replace(written, place)
    folder = os.open(place.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


# -- the files of tasks in a backup, behind the records ----------------------------------------------------------------


CONTENT = "content"


class BackedUpFiles:
    """The files to which the records of a backup refer. ``missing`` counts those that are not there."""

    def __init__(self) -> None:
        self.missing = 0
        self._used: set[str] = set()

    def note(self, record: Mapping[str, Any]) -> None:
        """Note the manifests that a record of a backup refers to."""
        from asterism.fleet.kept_files import manifests_of_dump

        self._used |= manifests_of_dump(record)

    def __bool__(self) -> bool:
        return bool(self._used)

    def lines(self, content: ContentAccess) -> Iterator[Mapping[str, Any]]:
        """The lines of the files. Raises OSError."""
        from asterism.fleet.kept_files import names_of

        for name in names_of(content, self._used):
            file = content.open(name)
            if file is None:
                self.missing += 1
                continue
            with file:
                yield from _parts(name, file)


def _parts(name: str, file: BinaryIO) -> Iterator[Mapping[str, Any]]:
    from asterism.execution.artifacts import chunks_of

    size = 0
    for chunk in chunks_of(file, lambda: None):
        size += len(chunk)
        yield {CONTENT: name, "part": base64.b64encode(chunk).decode()}
    yield {CONTENT: name, "size": size}


def restore_files(lines: Iterable[Mapping[str, Any]], content: ContentAccess) -> int:
    """Put the files among the lines of a backup. Returns how many. Raises StoreCorrupt for one that does not match its
    name, and OSError."""
    from asterism.execution.artifacts import CHUNK

    count = 0
    with tempfile.TemporaryFile() as spool:
        for line in lines:
            if CONTENT not in line:
                continue
            try:
                name = line[CONTENT]
                if "part" in line:
                    spool.write(base64.b64decode(line["part"], validate=True))
                    continue
            except (TypeError, ValueError) as error:
                raise StoreCorrupt(f"a file in the backup cannot be read: {error}") from error
            spool.seek(0)
            if content.put(iter(lambda: spool.read(CHUNK), b"")).name != name:
                raise StoreCorrupt(f"the file {name} in the backup is damaged: its content does not match its name")
            spool.seek(0)
            spool.truncate()
            count += 1
    return count
