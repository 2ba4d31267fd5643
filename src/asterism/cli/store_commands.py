"""``asterism store``: inspect, check, back up and restore a store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from asterism.base.text import clean
from asterism.cli.cli_context import CommandGroup, fleet_options, print_json, with_fleet
from asterism.cli.option_types import writable_file

if TYPE_CHECKING:
    from asterism.fleet.fleet import Fleet

DAMAGED = 64


@click.group(cls=CommandGroup)
def store() -> None:
    """Inspect and back up a store: info, check, backup, restore."""


@store.command()
@fleet_options
def info(store: str | None, as_json: bool) -> None:
    """Show the address of the store and what it contains."""

    async def read(fleet: Fleet) -> None:
        from asterism.cli.screen import print_lines
        from asterism.cli.store_contents import contents, contents_lines

        found = await contents(fleet)
        if as_json:
            print_json(found)
        else:
            print_lines(lambda width: contents_lines(found))

    with_fleet(store, read)


@store.command()
@fleet_options
def check(store: str | None, as_json: bool) -> int:
    """Check the whole store for damage.

    Exits with 0 if the store is intact, with 64 if not."""
    from asterism.store.store_errors import StoreCorrupt

    async def look(fleet: Fleet) -> tuple[str, list[str], int]:
        problems = await fleet.store.check() or await _unreadable(fleet)
        return fleet.store.url, problems, sum((await fleet.store.counts()).values())

    try:
        url, problems, runs = with_fleet(store, look)
    except StoreCorrupt as error:
        url, problems, runs = "the store", [error.problem], 0
    if as_json:
        print_json({"problems": problems, "runs": runs})
    elif problems:
        for problem in problems:
            click.echo(clean(problem))
        click.echo(f"{_count(len(problems), 'problem')} in {url}.", err=True)
    else:
        click.echo(f"{url} is intact: {_count(runs, 'run')}.")
    return DAMAGED if problems else 0


async def _unreadable(fleet: Fleet) -> list[str]:
    """Plans whose journal is cut or damaged, which the check of the store itself does not see."""
    from asterism.cli.stored_plans import UnreadablePlan, list_plans

    found = [one for one in await list_plans(fleet) if isinstance(one, UnreadablePlan)]
    return [f"plan {one.name} cannot be read: {one.why}" for one in found]


def _count(number: int, what: str) -> str:
    from asterism.base.text import plural

    return plural(number, what)


@store.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path), callback=writable_file)
@fleet_options
def backup(file: Path, store: str | None, as_json: bool) -> None:
    """Write a consistent backup of the store to FILE.

    FILE has a JSON document on each line, and is compressed if its name ends in .gz. The fleet continues to work. FILE
    appears when it is complete, and only you can read it. It can be restored into a store of any kind."""

    async def write(fleet: Fleet) -> int:
        from asterism.cli.backup_file import write_backup

        return await write_backup(fleet.store, file)

    try:
        runs = with_fleet(store, write)
    except OSError as error:
        raise click.ClickException(f"{clean(str(file))} cannot be written: {error.strerror}") from None
    written = file.stat().st_size
    if as_json:
        print_json({"file": str(file), "runs": runs, "size": written})
        return
    from asterism.cli.formats import format_size

    click.echo(f"{clean(str(file))}: {_count(runs, 'run')}, {format_size(written)}.")


@store.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@fleet_options
def restore(file: Path, store: str | None, as_json: bool) -> None:
    """Restore a backup from FILE into an empty store.

    A store that is not empty is refused. Restored runs have no owner: runs that were in progress are assigned again."""

    async def read(fleet: Fleet) -> None:
        from asterism.cli.backup_file import restore_backup

        runs = await restore_backup(fleet.store, file)
        if as_json:
            print_json({"file": str(file), "runs": runs, "store": fleet.store.url})
        else:
            click.echo(f"{fleet.store.url}: {_count(runs, 'run')} restored.")

    if not file.exists():
        raise click.UsageError(f"there is no file {clean(str(file))}")
    from asterism.cli.backup_file import check_backup

    check_backup(file)  # before a store is created for it
    with_fleet(store, read, create=True)
