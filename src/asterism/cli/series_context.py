"""What the commands on series share: options, opening the register, making a change, exit codes.

Importing this module is cheap: git, stores and GitHub are imported when one of them is used.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from asterism.base.startup import install_hint
from asterism.base.text import clean
from asterism.cli.cli_context import (
    HOW_TO_CREATE_A_STORE,
    current_user,
    json_option,
    options,
    print_json,
    run_interruptible,
)
from asterism.cli.option_types import positive_duration

if TYPE_CHECKING:
    from asterism.series.compare_and_swap import Outcome, RetryOptions, Step, UpdateCounts
    from asterism.series.github.github_register import GitHubRegister
    from asterism.series.register import Change, SeriesRegister, Snapshot

EXIT_UNUSABLE = 64
EXIT_UNREADABLE = 65
EXIT_UNAVAILABLE = 69
EXIT_QUEUED = 75
EXIT_CONTENDED = 76

UNREADABLE_HINT = "The series counts as taken. Rebuild it from the open issues with: asterism series rebuild"
REGISTERS = ("remote", "github", "store")


# -- options -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SeriesOptions:
    """The options that the commands on series share. At most one of the registers is given on the command line."""

    remote: str | None
    github: str | None
    store: str | None
    dry_run: bool
    as_json: bool
    by: str
    tries: int | None
    deadline: float | None
    metrics: Path | None

    @classmethod
    def of(cls, given: dict[str, Any]) -> SeriesOptions:
        """From the options of a command; one that changes nothing has only some of them. Raises UsageError."""
        context = click.get_current_context()
        named = [
            f"--{name}"
            for name in REGISTERS
            if given[name] is not None and context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        ]
        if len(named) > 1:
            raise click.UsageError(f"{' and '.join(named)} name different registers: give one of them.")
        defaults = {"tries": None, "deadline": None, "metrics": None}
        return cls(**{**defaults, **given, "by": given.get("by") or current_user()})

    @property
    def retry(self) -> RetryOptions:
        from asterism.series.compare_and_swap import RetryOptions

        return RetryOptions.limited(self.tries, self.deadline)

    def verb(self, past: str, present: str) -> str:
        """``claimed``, or ``would claim`` in a dry run."""
        return f"would {present}" if self.dry_run else past


def issue_number(text: str) -> int:
    """``123`` or ``#123``."""
    digits = text.strip().removeprefix("#")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 16 and int(digits) > 0):
        raise click.BadParameter(f"{text!r} is not the number of an issue (example: 123).")
    return int(digits)


def utf8_text(text: str) -> str:
    """Text without the surrogates that stand for bytes that are not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise click.BadParameter("the text is not valid UTF-8.") from None
    return text


def login(text: str) -> str:
    """A login of GitHub, with or without ``@``."""
    if not text.removeprefix("@") or not text.isprintable() or " " in text:
        raise click.BadParameter(f"{text!r} is not a login of GitHub (example: copilot-swe-agent).")
    return text


dry_run_option = click.option("--dry-run", is_flag=True, help="Print what would happen, and change nothing.")

register_options = options(
    click.option("--remote", metavar="URL", help="A git remote: file, ssh, https, or a name such as origin."),
    click.option("--github", metavar="ORG/REPO", help="A repository on GitHub, through its API."),
    click.option(
        "--store",
        metavar="URL",
        envvar="ASTERISM_STORE",
        help="sqlite:///file.db or postgresql://…; default: $ASTERISM_STORE, or a file in your data directory.",
    ),
    dry_run_option,
    json_option,
)
"""The options of every command on series. Commands that change nothing also accept ``--dry-run``, for scripts."""


retry_options = options(
    click.option("--by", type=utf8_text, metavar="NAME", help="The author, for the history; default: your user name."),
    click.option(
        "--tries",
        type=click.IntRange(min=0),
        metavar="N",
        help="How often to try while other writers are faster; 0 for no limit. Default: until the deadline.",
    ),
    click.option(
        "--deadline",
        type=positive_duration,
        metavar="DURATION",
        help="How long to try, such as 60s; default: 2m, and no limit with --tries.",
    ),
)
"""The author and the limits of a change."""

change_options = options(
    register_options,
    retry_options,
    click.option(
        "--metrics",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Write metrics as JSON, and add them to the totals in the file.",
    ),
)
"""The options of every command that changes a series."""


# -- the register ------------------------------------------------------------------------------------------------------


def with_register(given: SeriesOptions, use: Callable[[SeriesRegister], Awaitable[int]], *, create: bool) -> int:
    """Open the register that the options name, use it, and close it. Returns the exit code.

    Each kind of failure has its own exit code, so that scripts can tell waiting from failing. With ``create`` a missing
    store is created; a dry run uses an empty one instead."""
    from asterism.core.series.machine import UnreadableSeries
    from asterism.series.compare_and_swap import Contended
    from asterism.series.register import AssignmentFailed, NotClaimable, OutcomeUnknown, RegisterUnavailable
    from asterism.store.store_errors import StoreCorrupt, StoreError, UnknownSchema

    try:
        return run_interruptible(_use_register(given, use, create))
    except Contended as error:
        return _report("contended", error, EXIT_CONTENDED, given.as_json)
    except NotClaimable as error:
        return _report("refused", error, EXIT_UNUSABLE, given.as_json)
    except AssignmentFailed as error:
        return _report("unassignable", error, EXIT_UNUSABLE, given.as_json)
    except UnreadableSeries as error:
        return _report("unreadable", f"{error}. {UNREADABLE_HINT}", EXIT_UNREADABLE, given.as_json)
    except OutcomeUnknown as error:
        return _report("unsure", error, EXIT_UNAVAILABLE, given.as_json)
    except (StoreCorrupt, UnknownSchema) as error:
        return _report("unreadable", error, EXIT_UNREADABLE, given.as_json)
    except (RegisterUnavailable, StoreError) as error:
        return _report("unavailable", error, EXIT_UNAVAILABLE, given.as_json)


def _report(status: str, error: object, code: int, as_json: bool) -> int:
    if as_json:
        print_json({"status": status, "error": str(error)})
    for line in f"Error: {error}".split("\n"):  # a message of git may have several lines
        click.echo(clean(line), err=True)
    return code


async def _use_register(given: SeriesOptions, use: Callable[[SeriesRegister], Awaitable[int]], create: bool) -> int:
    register: SeriesRegister
    if given.remote is not None:
        from asterism.cli.git_remote_option import resolve_remote
        from asterism.series.git_register import GitRegister

        address, environment = resolve_remote(given.remote)
        register = GitRegister(address, environment=environment)
    elif given.github is not None:
        register = open_github_register(given.github, given.deadline)
    else:
        register = await _open_store_register(given, create)
    try:
        return await use(register)
    finally:
        await register.close()


def open_github_register(
    repository: str, deadline: float | None, cache: Path | None = None, read_only_cache: bool = False
) -> GitHubRegister:
    """The register on GitHub. Raises ClickException if the extra is not installed."""
    try:
        from asterism.series.github.github_register import open_github
    except ImportError as error:
        raise click.ClickException(f"a package is missing ({error}): {install_hint('github')}") from None
    return open_github(repository, cache=cache, read_only_cache=read_only_cache, deadline=deadline)


async def _open_store_register(given: SeriesOptions, create: bool) -> SeriesRegister:
    from asterism.series.store_register import StoreRegister
    from asterism.store.store_errors import StoreMissing, StoreNotFound
    from asterism.store.url import open_store

    if given.store is not None and given.store.lower().startswith("memory:"):
        raise click.UsageError(
            "A store in memory ends with its process, so commands cannot share a series in it; "
            "use sqlite:///file.db, or --remote."
        )
    try:
        return StoreRegister(await open_store(given.store, create=create and not given.dry_run))
    except StoreMissing as error:
        if create and given.dry_run:
            from asterism.store.memory import MemoryStore

            return StoreRegister(MemoryStore())
        if create or not isinstance(error, StoreNotFound):
            raise
        raise StoreNotFound(f"{error}; {HOW_TO_CREATE_A_STORE}") from None


class DryRunRegister:
    """Reads from a register, and discards what is written."""

    def __init__(self, register: SeriesRegister) -> None:
        self._register = register

    @property
    def url(self) -> str:
        return self._register.url

    def clock(self) -> float:
        return self._register.clock()

    async def read(self, name: str) -> Snapshot:
        return await self._register.read(name)

    async def swap(self, name: str, expected: str | None, text: str, message: str) -> str:
        return "not written"

    async def names(self) -> list[str]:
        return await self._register.names()

    async def history(self, name: str, limit: int) -> list[Change]:
        return await self._register.history(name, limit)

    async def close(self) -> None:
        """The register belongs to the command."""


# -- changes -----------------------------------------------------------------------------------------------------------


def run_change(
    name: str,
    given: SeriesOptions,
    step: Step,
    message: str,
    describe: Callable[[Outcome], str],
    *,
    prepare_repair: Callable[[SeriesRegister], Awaitable[None]] | None = None,
) -> int:
    """Change a series by a step, and print the outcome.

    With ``prepare_repair``, which runs first, the state need not be readable."""
    from asterism.series.claims import signed
    from asterism.series.compare_and_swap import update

    async def use(register: SeriesRegister) -> int:
        if prepare_repair is not None:
            await prepare_repair(register)
        with change_of(register, given) as (target, counts):
            outcome = await update(
                target,
                name,
                step,
                signed(message, given.by),
                repair=prepare_repair is not None,
                retry=given.retry,
                counts=counts,
            )
        if given.as_json:
            print_outcome(outcome, given, status="changed" if outcome.changed else "unchanged")
        elif outcome.token is None:
            click.echo(clean(no_such_series(name, register)))
        else:
            click.echo(clean(describe(outcome)))
        return 0

    return with_register(given, use, create=False)


@contextmanager
def change_of(register: SeriesRegister, given: SeriesOptions) -> Iterator[tuple[SeriesRegister, UpdateCounts]]:
    """The register to change, and the counts of the change. The counts are written when the block ends, however it
    ends. A dry run changes and counts nothing."""
    from asterism.series.compare_and_swap import Contended, UpdateCounts

    counts, contended = UpdateCounts(), False
    try:
        yield DryRunRegister(register) if given.dry_run else register, counts
    except Contended:
        contended = True
        raise
    finally:
        if given.metrics is not None and not given.dry_run:
            _write_metrics(given.metrics, counts, contended)


def _write_metrics(path: Path, counts: UpdateCounts, contended: bool) -> None:
    from asterism.series.series_metrics import SeriesMetrics

    metrics = SeriesMetrics()
    metrics.add("contended", contended)
    for name in ("promotion_events", "duplicate_prevented", "retries", "conflicts", "unsure", "rate_limited"):
        metrics.add(name, getattr(counts, name))
    try:
        metrics.write(path)
    except OSError as error:  # the change was made, and the exit code says so
        click.echo(f"cannot write the metrics to {path}: {error.strerror}", err=True)


def print_outcome(outcome: Outcome, given: SeriesOptions, **first: Any) -> None:
    print_json(
        {
            **first,
            "active": outcome.after.active,
            "promoted": outcome.promoted,
            "tries": outcome.tries,
            "dry_run": given.dry_run,
            "state": outcome.after.to_document(),
        }
    )


def active_now(outcome: Outcome, given: SeriesOptions) -> str:
    """``#12 is now active (revision 7)``."""
    after = outcome.after
    who = "no issue" if after.active is None else f"#{after.active}"
    if outcome.promoted is not None:
        return f"{who} {given.verb('is now', 'then be')} active (revision {after.revision})"
    waiting = f", {len(after.queue)} waiting" if after.queue else ""
    return f"{who} {given.verb('is', 'be')} active{waiting} (revision {after.revision})"


def no_such_series(name: str, register: SeriesRegister) -> str:
    """For a change that changes nothing because the series does not exist: the name may be mistyped."""
    return f"series {name} does not exist in {register.url}: nothing to change"
