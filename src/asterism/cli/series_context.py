"""How a command gets at series: the options that all of them take, the register they mean, how it ends.

Importing this is quick: git, stores and GitHub are imported when one of them is meant.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from click.core import ParameterSource

from asterism.base.extras import install_hint
from asterism.base.safe_text import clean
from asterism.cli.cli_context import current_user, json_option, options, print_json, run_interruptible
from asterism.cli.option_types import duration, positive_duration

if TYPE_CHECKING:
    from asterism.series.compare_and_swap import RetryOptions
    from asterism.series.github.github_register import GitHubRegister
    from asterism.series.register import SeriesRegister

UNUSABLE = 64
UNREADABLE = 65
OUT_OF_REACH = 69
QUEUED = 75
CONTENDED = 76

MENDED = "It counts as taken; `asterism series rebuild` writes it anew from the issues that live"


class Place(NamedTuple):
    """Where the series are kept, as it was said on the command line."""

    remote: str | None
    github: str | None
    store: str | None


class Terms(NamedTuple):
    """How a change is made."""

    by: str
    tries: int
    deadline: float | None
    dry_run: bool
    metrics: Path | None = None

    @property
    def patience(self) -> RetryOptions:
        from asterism.series.compare_and_swap import RetryOptions

        return RetryOptions(tries=self.tries, deadline=self.deadline)


class Given(NamedTuple):
    """What the options said that commands on series share."""

    place: Place
    terms: Terms
    as_json: bool


def issue_number(text: str) -> int:
    """``123``, or ``#123`` as people write it."""
    digits = text.strip().removeprefix("#")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 16 and int(digits) > 0):
        raise click.BadParameter(f"{text!r} is no number of an issue: write 123.")
    return int(digits)


def legible(text: str) -> str:
    """What can be written down. Bytes that are no UTF-8 reach a program as letters that are none."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise click.BadParameter("this is not UTF-8.") from None
    return text


def login(text: str) -> str:
    """Of somebody on GitHub; ``@`` may stand before it."""
    if not text.removeprefix("@") or not text.isprintable() or " " in text:
        raise click.BadParameter(f"{text!r} is no login: write the one that GitHub shows.")
    return text


dry_run_option = click.option("--dry-run", is_flag=True, help="Say what would happen, and change nothing.")

place_options = options(
    click.option("--remote", metavar="URL", help="A git remote: file, ssh, https, or a name such as origin."),
    click.option("--github", metavar="ORG/REPO", help="A repository on GitHub, through its interface."),
    click.option(
        "--store",
        metavar="URL",
        envvar="ASTERISM_STORE",
        help="sqlite:///file.db or postgresql://…; $ASTERISM_STORE if nothing is said, or a file in your data "
        "directory.",
    ),
    dry_run_option,
    json_option,
)
"""What every command on series takes; ``--dry-run`` also where nothing is changed anyhow, so that whoever adds it to
any of them is not told off."""


trying_options = options(
    click.option("--by", type=legible, metavar="NAME", help="Who acts, for the history; your user name if left out."),
    click.option(
        "--tries",
        type=click.IntRange(min=0),
        default=5,
        show_default=True,
        help="How often to try while others are first; 0 for no limit.",
    ),
    click.option(
        "--deadline",
        type=duration,
        callback=positive_duration,
        metavar="DURATION",
        help="How long to try, such as 60s.",
    ),
)
"""Who acts, and how long to try: for every command that changes a series."""

change_options = options(
    place_options,
    trying_options,
    click.option(
        "--metrics",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Write what was counted as JSON, and add it to the totals there.",
    ),
)
"""What every command takes that changes a series."""


def taken_from(said: dict[str, Any]) -> Given:
    """What the options above said. A command that changes nothing takes only some of them."""
    place = Place(*(said[name] for name in Place._fields))
    limits = said.get("tries", 5), said.get("deadline")
    terms = Terms(said.get("by") or current_user(), *limits, said["dry_run"], said.get("metrics"))
    return Given(place, terms, said["as_json"])


def with_register(given: Given, use: Callable[[SeriesRegister], Awaitable[int]], *, create: bool) -> int:
    """Open the register that the options name, use it, and close it. Returns the exit code: what can go wrong with a
    series has codes of its own, so that a script can tell who has to wait from who has to look. A store that is not
    there is made if ``create`` says so; a rehearsal of that sees an empty one, and makes none."""
    from asterism.core.series.machine import UnreadableSeries
    from asterism.series.compare_and_swap import Contended
    from asterism.series.register import NotClaimable, RegisterUnavailable, OutcomeUnknown
    from asterism.store.store_errors import StoreCorrupt, StoreError, UnknownSchema

    place, terms, as_json = given
    _only_one(place)

    async def main() -> int:
        register = await _opened(place, terms, create)
        try:
            return await use(register)
        finally:
            await register.close()

    try:
        return run_interruptible(main())
    except Contended as error:
        return _failed("contended", error, CONTENDED, as_json)
    except NotClaimable as error:
        return _failed("refused", error, UNUSABLE, as_json)
    except UnreadableSeries as error:
        return _failed("unreadable", f"{error}. {MENDED}", UNREADABLE, as_json)
    except OutcomeUnknown as error:
        return _failed("unsure", error, OUT_OF_REACH, as_json)
    except (StoreCorrupt, UnknownSchema) as error:
        return _failed("unreadable", error, UNREADABLE, as_json)
    except (RegisterUnavailable, StoreError) as error:
        return _failed("unavailable", error, OUT_OF_REACH, as_json)


def _failed(status: str, error: object, code: int, as_json: bool) -> int:
    if as_json:
        print_json({"status": status, "error": str(error)})
    for line in f"Error: {error}".split("\n"):  # git's own words may be several
        click.echo(fit_to_print(line), err=True)
    return code


def _only_one(place: Place) -> None:
    context = click.get_current_context()
    named = [
        f"--{name}"
        for name in Place._fields
        if getattr(place, name) is not None and context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    ]
    if len(named) > 1:
        raise click.UsageError(f"{' and '.join(named)} name different places: give one of them.")


def github_register(
    repository: str, deadline: float | None, cache: Path | None = None, keep: bool = True
) -> GitHubRegister:
    """The register on GitHub; unless ``keep``, the cache is read and not written. Raises ClickException if
    what it takes is not installed."""
    try:
        from asterism.series.github.github_register import open_github
    except ImportError as error:
        raise click.ClickException(f"this needs more than is installed ({error}): {install_hint('github')}") from None
    return open_github(repository, cache=cache, keep=keep, deadline=deadline)


async def _opened(place: Place, terms: Terms, create: bool) -> SeriesRegister:
    if place.remote is not None:
        from asterism.cli.git_checkout import remote_named
        from asterism.series.git_register import GitRegister

        address, environment = remote_named(place.remote)
        return GitRegister(address, environment=environment)
    if place.github is not None:
        return github_register(place.github, terms.deadline)
    if place.store is not None and place.store.lower().startswith("memory:"):
        raise click.UsageError(
            "A store in memory lasts as long as one process, so nobody could share a series in it; "
            "use sqlite:///file.db, or --remote."
        )
    from asterism.series.store_register import StoreRegister
    from asterism.store.memory import MemoryStore
    from asterism.store.store_errors import StoreNotFound
    from asterism.store.url import open_store

    try:
        return StoreRegister(await open_store(place.store, create=create and not terms.dry_run))
    except StoreNotFound as error:
        if create and terms.dry_run:
            return StoreRegister(MemoryStore())
        raise StoreNotFound(f"{error}; the first `asterism series claim` makes it; --store names another") from None


def fit_to_print(line: str) -> str:
    """What others wrote may begin a line of its own, which some programs read as a command."""
    return clean(line)
