"""What the commands on series share: options, opening the register, making a change, exit codes.

Importing this module is cheap: git, stores and GitHub are imported when one of them is used.
"""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import click

from asterism.base.startup import install_hint
from asterism.base.text import clean
from asterism.cli.cli_context import (
    HOW_TO_CREATE_A_STORE,
    current_user,
    is_given,
    json_option,
    options,
    print_json,
    refuse_options,
    run_interruptible,
    server_of,
    store_option,
)
from asterism.cli.option_types import duration_option, number_option, option
from asterism.core.record import Record

if TYPE_CHECKING:
    from asterism.api.client import AsyncClient
    from asterism.api.documents import NextIssue, Page, Series, SeriesChange, SeriesCounts, SeriesOutcome
    from asterism.api.series_operations import Change as ChangeRequest
    from asterism.api.series_operations import TakeNextIssue
    from asterism.core.json_values import JsonObject
    from asterism.core.series.machine import Item
    from asterism.core.series.machine import Series as SeriesRecord
    from asterism.series.compare_and_swap import Outcome, RetryOptions, UpdateCounts
    from asterism.series.github.github_register import GitHubRegister
    from asterism.series.register import SeriesRegister

    Make = Callable[..., Awaitable[Outcome]]
    MakeOf = Callable[[Any], Awaitable[Make]]

EXIT_UNUSABLE = 64
EXIT_UNREADABLE = 65
EXIT_UNAVAILABLE = 69
EXIT_QUEUED = 75
EXIT_CONTENDED = 76

UNREADABLE_HINT = "The series counts as taken. Rebuild it from the open issues with: asterism series rebuild"
REGISTERS = ("remote", "github", "store")
HOLDING = ("claim", "next", "release")
"""Commands for which ``--by`` names a holder, beside the author."""


# -- options -----------------------------------------------------------------------------------------------------------


class SeriesOptions(Record):
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
    reason: str = ""

    @classmethod
    def of(cls, option_values: dict[str, Any]) -> SeriesOptions:
        """From the options of a command; one that changes nothing has only some of them. Raises UsageError."""
        named = [f"--{name}" for name in REGISTERS if option_values[name] is not None and is_given(name)]
        if len(named) > 1:
            raise click.UsageError(f"{' and '.join(named)} name different registers: give one of them.")
        if option_values.get("by") == "":
            raise click.UsageError("--by is empty: give a name.")
        defaults = {"tries": None, "deadline": None, "metrics": None}
        return cls(**{**defaults, **option_values, "by": option_values.get("by") or current_user()})

    @property
    def holder(self) -> str | None:
        """Whose a claim is: the name that ``--by`` gives; None by default."""
        return self.by if is_given("by") else None

    @property
    def retry(self) -> RetryOptions:
        from asterism.series.compare_and_swap import RetryOptions

        return RetryOptions.limited(self.tries, self.deadline)

    @property
    def request_fields(self) -> dict[str, Any]:
        """What every request of a change has."""
        return {"reason": self.reason, "dry_run": self.dry_run, "tries": self.tries, "deadline": self.deadline}

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


dry_run_option = option("--dry-run", "Print what would happen, and change nothing.")

register_options = options(
    option("--remote URL", "A git remote: file, ssh, https, or a name such as origin."),
    option("--github ORG/REPO", "A repository on GitHub, through its API."),
    store_option,
    dry_run_option,
    json_option,
)
"""The options of every command on series. Commands that change nothing also accept ``--dry-run``, for scripts."""


by_option = option("--by NAME", "The author, for the history; default: your user name.", type=utf8_text)
limit_options = options(
    number_option(
        "--tries",
        least=0,
        help="How often to try while other writers are faster; 0 for no limit. Default: until the deadline.",
    ),
    duration_option(
        "--deadline", positive=True, help="How long to try, such as 60s; default: 2m, and no limit with --tries."
    ),
)
"""How long a change is tried."""

retry_options = options(by_option, limit_options)
"""The author and the limits of a change."""

_changing_options = options(
    register_options,
    limit_options,
    option("--reason TEXT", "The reason, for the history.", type=utf8_text, default=""),
)
metrics_option = option(
    "--metrics FILE",
    "Write metrics as JSON, and add them to the totals in the file.",
    type=click.Path(dir_okay=False, path_type=Path),
)

change_options = options(by_option, _changing_options, metrics_option)
"""The options of every command that changes a series."""


def holding_options(text: str) -> Callable[[Any], Any]:
    """The same without metrics, for a command whose ``--by`` also names a holder; ``text`` says what that means."""
    return options(option("--by NAME", text, type=utf8_text), _changing_options)


# -- the register ------------------------------------------------------------------------------------------------------


class RegisterSeries:
    """Series in a register that is open here."""

    def __init__(self, register: SeriesRegister, series_options: SeriesOptions) -> None:
        self.register, self._options = register, series_options

    @property
    def url(self) -> str:
        return self.register.url

    async def all(self) -> Page[Series]:
        from asterism.api.local.series_handlers import all_series

        return await all_series(self.register)

    async def show(self, name: str) -> tuple[Series | None, float]:
        """A series, None if it does not exist; and the time of the register."""
        from asterism.api.local.series_handlers import series_document

        snapshot, now = await self.register.read(name), self.register.clock()
        return None if snapshot.token is None else series_document(name, snapshot.text, now), now

    async def history(self, name: str, limit: int) -> list[SeriesChange]:
        from asterism.api.local.series_handlers import series_changes

        return await series_changes(self.register, name, limit)

    async def change(self, request: ChangeRequest, make: Make | None = None) -> SeriesOutcome:
        """Make the change of a request, or the other one that ``make`` makes."""
        from asterism.api.local.series_handlers import change_series
        from asterism.series.compare_and_swap import Contended, UpdateCounts

        counts, contended = UpdateCounts(), False
        try:
            return await change_series(self.register, request, self._options.by, counts=counts, make=make)
        except Contended:
            contended = True
            raise
        finally:
            _write_metrics(self._options, counts, contended)

    async def take_next(self, request: TakeNextIssue, make: Make | None = None) -> NextIssue:
        """Claim the next issue, by ``make`` if it is given."""
        from asterism.api.local.series_handlers import next_issue

        return await next_issue(self.register, request, self._options.by, make=make)


class ServerSeries:
    """Series in the store of a server."""

    def __init__(self, client: AsyncClient, series_options: SeriesOptions) -> None:
        self._client, self._options = client, series_options
        self.url = client.url

    async def all(self) -> Page[Series]:
        return await self._client.list_series()

    async def show(self, name: str) -> tuple[Series | None, float]:
        from asterism.api.client_errors import NotFound

        try:
            details = await self._client.show_series(name)
        except NotFound as error:
            if error.problem != "unknown-series":
                raise
            return None, 0.0
        return details, details.now

    async def history(self, name: str, limit: int) -> list[SeriesChange]:
        return (await self._client.list_series_changes(name, limit)).items

    async def change(self, request: ChangeRequest, make: Make | None = None) -> SeriesOutcome:
        from asterism.api import documents
        from asterism.api.client_errors import ApiError
        from asterism.api.series_operations import CHANGES

        counts, contended = documents.SeriesCounts(), False
        try:
            outcome = await self._client.call(CHANGES[type(request)], request)
            counts = outcome.counts
            return outcome
        except ApiError as error:
            contended = error.problem == "series-contended"
            raise
        finally:
            _write_metrics(self._options, counts, contended)

    async def take_next(self, request: TakeNextIssue, make: Make | None = None) -> NextIssue:
        from asterism.api.series_operations import SeriesOperations

        return await self._client.call(SeriesOperations.take_next_issue, request)


SeriesPlace: TypeAlias = RegisterSeries | ServerSeries
"""Where series are: a register that is open here, or a server."""

PROBLEMS = {
    "series-contended": ("contended", EXIT_CONTENDED),
    "series-refused": ("refused", EXIT_UNUSABLE),
    "series-unreadable": ("unreadable", EXIT_UNREADABLE),
    "answer-lost": ("unsure", EXIT_UNAVAILABLE),
    "store-unavailable": ("unavailable", EXIT_UNAVAILABLE),
}
"""The status and the exit code of problems that a server answers with."""


def with_series(series_options: SeriesOptions, use: Callable[[SeriesPlace], Awaitable[int]], *, create: bool) -> int:
    """Open the register or the server that the options name, use it, and close it. Returns the exit code.

    Each kind of failure has its own exit code, so that scripts can tell waiting from failing. With ``create`` a missing
    store is created; a dry run uses an empty one instead."""
    from asterism.api.client_errors import ApiError
    from asterism.core.series.machine import UnreadableSeries
    from asterism.series.compare_and_swap import Contended
    from asterism.series.register import AssignmentFailed, NotClaimable, OutcomeUnknown, RegisterUnavailable
    from asterism.store.store_errors import StoreCorrupt, StoreError, UnknownSchema

    failures: dict[type[Exception], tuple[str, int]] = {
        Contended: ("contended", EXIT_CONTENDED),
        NotClaimable: ("refused", EXIT_UNUSABLE),
        AssignmentFailed: ("unassignable", EXIT_UNUSABLE),
        UnreadableSeries: ("unreadable", EXIT_UNREADABLE),
        OutcomeUnknown: ("unsure", EXIT_UNAVAILABLE),
        StoreCorrupt: ("unreadable", EXIT_UNREADABLE),
        UnknownSchema: ("unreadable", EXIT_UNREADABLE),
        RegisterUnavailable: ("unavailable", EXIT_UNAVAILABLE),
        StoreError: ("unavailable", EXIT_UNAVAILABLE),
    }
    try:
        return run_interruptible(_use_series(series_options, use, create))
    except ApiError as error:
        if error.problem not in PROBLEMS:
            raise
        status, code = PROBLEMS[error.problem]
        hint = f". {UNREADABLE_HINT}" if code == EXIT_UNREADABLE else ""
        return _report(status, f"{error}{hint}", code, series_options.as_json)
    except tuple(failures) as error:
        status, code = next(failures[kind] for kind in failures if isinstance(error, kind))
        hint = f". {UNREADABLE_HINT}" if isinstance(error, UnreadableSeries) else ""
        return _report(status, f"{error}{hint}", code, series_options.as_json)


def _report(status: str, error: object, code: int, as_json: bool) -> int:
    if as_json:
        print_json({"status": status, "error": str(error)})
    for line in f"Error: {error}".split("\n"):  # a message of git may have several lines
        click.echo(clean(line), err=True)
    return code


async def _use_series(series_options: SeriesOptions, use: Callable[[SeriesPlace], Awaitable[int]], create: bool) -> int:
    url = server_of(series_options.store) if series_options.remote is None and series_options.github is None else None
    if url is not None:
        if click.get_current_context().command.name not in HOLDING:
            refuse_options("has no effect at a server: the author is the name of your token there.", "by")
        from asterism.api.client import AsyncClient

        async with AsyncClient(url) as client:
            return await use(ServerSeries(client, series_options))
    register = await _open_register(series_options, create)
    try:
        return await use(RegisterSeries(register, series_options))
    finally:
        await register.close()


async def _open_register(series_options: SeriesOptions, create: bool) -> SeriesRegister:
    if series_options.remote is not None:
        from asterism.series.git_register import GitRegister

        address, environment = resolve_remote(series_options.remote)
        return GitRegister(address, environment=environment)
    if series_options.github is not None:
        return open_github_register(series_options.github, series_options.deadline)
    return await _open_store_register(series_options, create)


def open_github_register(
    repository: str, deadline: float | None, cache: Path | None = None, read_only_cache: bool = False
) -> GitHubRegister:
    """The register on GitHub. Raises ClickException if the extra is not installed."""
    try:
        from asterism.series.github.github_register import open_github
    except ImportError as error:
        raise click.ClickException(f"a package is missing ({error}): {install_hint('github')}") from None
    return open_github(repository, cache=cache, read_only_cache=read_only_cache, deadline=deadline)


async def _open_store_register(series_options: SeriesOptions, create: bool) -> SeriesRegister:
    from asterism.series.store_register import StoreRegister
    from asterism.store.store_errors import StoreMissing, StoreNotFound
    from asterism.store.url import open_store

    if series_options.store is not None and series_options.store.lower().startswith("memory:"):
        raise click.UsageError(
            "A store in memory ends with its process, so commands cannot share a series in it; "
            "use sqlite:///file.db, or --remote."
        )
    try:
        return StoreRegister(await open_store(series_options.store, create=create and not series_options.dry_run))
    except StoreMissing as error:
        if create and series_options.dry_run:
            from asterism.store.memory import MemoryStore

            return StoreRegister(MemoryStore())
        if create or not isinstance(error, StoreNotFound):
            raise
        raise StoreNotFound(f"{error}; {HOW_TO_CREATE_A_STORE}") from None


# -- changes -----------------------------------------------------------------------------------------------------------


def run_change(
    series_options: SeriesOptions,
    request: ChangeRequest,
    describe: Callable[[Outcome], str],
    make: MakeOf | None = None,
) -> int:
    """Change a series, and print the outcome. ``make`` is what makes another change than that of the request, for a
    register that is open here."""

    async def use(place: SeriesPlace) -> int:
        other = await make(place.register) if make is not None and isinstance(place, RegisterSeries) else None
        outcome = outcome_of(await place.change(request, other))
        if series_options.as_json:
            print_outcome(outcome, series_options, status="changed" if outcome.changed else "unchanged")
        elif outcome.token is None:
            click.echo(clean(no_such_series(request.series, place)))
        else:
            click.echo(clean(describe(outcome)))
        return 0

    return with_series(series_options, use, create=False)


def outcome_of(document: SeriesOutcome) -> Outcome:
    """The outcome that a document tells of."""
    from asterism.api.local.series_handlers import series_of
    from asterism.series.compare_and_swap import Outcome

    assert document.state is not None
    after = series_of(document.state)
    token = str(after.revision) if document.exists else None
    return Outcome(series_of(document.before), after, document.changed, token, document.tries, document.promoted)


def _write_metrics(series_options: SeriesOptions, counts: UpdateCounts | SeriesCounts, contended: bool) -> None:
    """Write the counts of a change, however it ended. A dry run counts nothing."""
    if series_options.metrics is None or series_options.dry_run:
        return
    from asterism.series.series_metrics import SeriesMetrics

    metrics = SeriesMetrics()
    metrics.add("contended", contended)
    for name in ("promotion_events", "duplicate_prevented", "retries", "conflicts", "unsure", "rate_limited"):
        metrics.add(name, getattr(counts, name))
    try:
        metrics.write(series_options.metrics)
    except OSError as error:  # the change was made, and the exit code says so
        click.echo(f"cannot write the metrics to {series_options.metrics}: {error.strerror}", err=True)


def print_outcome(outcome: Outcome, series_options: SeriesOptions, **first: Any) -> None:
    print_json(
        {
            **first,
            "active": outcome.after.active,
            "promoted": outcome.promoted,
            "tries": outcome.tries,
            "dry_run": series_options.dry_run,
            "state": outcome.after.to_document(),
        }
    )


def active_now(outcome: Outcome, series_options: SeriesOptions) -> str:
    """``#12 is now active (revision 7)``."""
    after = outcome.after
    who = "no issue" if after.active is None else f"#{after.active}"
    if outcome.promoted is not None:
        return f"{who} {series_options.verb('is now', 'then be')} active (revision {after.revision})"
    waiting = f", {len(after.queue)} waiting" if after.queue else ""
    return f"{who} {series_options.verb('is', 'be')} active{waiting} (revision {after.revision})"


def no_such_series(name: str, place: SeriesPlace) -> str:
    """For a change that changes nothing because the series does not exist: the name may be mistyped."""
    return f"series {name} does not exist in {place.url}: nothing to change"


# -- words -------------------------------------------------------------------------------------------------------------


MAX_QUEUE_SHOWN = 8
"""Issues of a queue that one line shows."""


class SeriesView(NamedTuple):
    """One series as it was read; ``series`` is None if the state is unreadable, and ``problem`` is the reason."""

    name: str
    series: SeriesRecord | None
    problem: str | None = None

    @classmethod
    def of(cls, document: Series) -> SeriesView:
        return cls(document.name, state_of(document), document.problem)

    @classmethod
    def unused(cls, name: str) -> SeriesView:
        """The view of a series that does not exist."""
        from asterism.core.series.machine import Series

        return cls(name, Series(name))

    def to_json(self, now: float) -> JsonObject:
        from asterism.series.register import series_status

        if self.series is None:
            return {"series": self.name, "status": "unreadable", "error": self.problem}
        return series_status(self.series, now)


def state_of(document: Series | SeriesChange) -> SeriesRecord | None:
    """The state in a document; None if it cannot be read."""
    from asterism.api.local.series_handlers import series_of

    return None if document.state is None else series_of(document.state)


def history_json(name: str, changes: Sequence[SeriesChange]) -> JsonObject:
    states = [None if (series := state_of(change)) is None else series.to_document() for change in changes]
    return {
        "series": name,
        "changes": [
            {"at": change.at, "message": change.message, "token": change.token, "state": state}
            for change, state in zip(changes, states, strict=True)
        ],
    }


def describe_issue(item: Item | None) -> str:
    return "no issue" if item is None else f"#{item}"


def describe_queue(queue: Sequence[Item]) -> str:
    shown = ", ".join(describe_issue(item) for item in queue[:MAX_QUEUE_SHOWN])
    return shown + (f" and {len(queue) - MAX_QUEUE_SHOWN} more" if len(queue) > MAX_QUEUE_SHOWN else "")


def describe_active(series: SeriesRecord, now: float) -> str:
    """``#120, active for 2 h, by ann``; ``#120, held by ann for 2 h``."""
    from asterism.base.durations import format_age

    if series.holder is not None and series.held_since is not None:
        return f"{describe_issue(series.active)}, held by {series.holder} for {format_age(now - series.held_since)}"
    since = "" if series.since is None else f", active for {format_age(now - series.since)}"
    return f"{describe_issue(series.active)}{since}" + (f", by {series.by}" if series.by else "")


# -- a remote of the current checkout by its name ----------------------------------------------------------------------


_PASSED_SETTINGS = r"^(http\.|credential\.|url\.|ssh\.|core\.sshcommand$)"
_LIST_SETTINGS = re.compile(r"\.(helper|extraheader)$")
"""Settings with a list of values; of all others the last value counts."""
_NOT_RELATIVE = re.compile(r"\w[\w+.-]*://|[^/]*:|/")
"""The beginning of an address that is not a relative path: a scheme, a host, or the root."""


def resolve_remote(remote: str) -> tuple[str, Mapping[str, str] | None]:
    """The address of a remote, and the environment for git; None for the present one. Raises UsageError."""
    if ":" in remote or "/" in remote or os.path.isdir(remote) or remote.startswith("-"):
        return remote, None
    if not remote.strip():
        raise click.UsageError("--remote is empty: give an address, or the name of a remote of this checkout.")
    address = _git("remote", "get-url", "--", remote)
    if address is None:
        raise click.UsageError(f"{remote!r} is neither a directory nor a remote of this checkout.")
    written = _git("config", "--get-all", f"remote.{remote}.url") or address
    return _absolute(address, written.split("\n")[0]), _with_settings(os.environ)


def _absolute(address: str, written: str) -> str:
    """A path is relative to the top of the checkout. Any other address stays as it is ``written`` in the settings: git
    applies ``insteadOf`` later, and it must be applied only once."""
    if _NOT_RELATIVE.match(address):
        return written
    top = _git("rev-parse", "--show-toplevel") or _git("rev-parse", "--absolute-git-dir") or "."
    return str((Path(top) / address).resolve())


def _with_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment that gives git the settings of this checkout in any directory. The settings of the environment
    itself come last, as they do here."""
    plain = {
        name: environment[name] for name in environment if name not in ("GIT_CONFIG_COUNT", "GIT_CONFIG_PARAMETERS")
    }
    here, elsewhere = _settings(plain), _settings({**plain, "GIT_DIR": os.devnull})
    settings = [(name, value) for name in here for value in _missing(name, here[name], elsewhere.get(name, []))]
    count = int(known) if (known := environment.get("GIT_CONFIG_COUNT", "")).isdigit() else 0
    own = [(environment.get(f"GIT_CONFIG_KEY_{n}"), environment.get(f"GIT_CONFIG_VALUE_{n}")) for n in range(count)]
    settings += [(name, value) for name, value in own if name is not None and value is not None]
    numbered: dict[str, str] = {}
    for number, (name, value) in enumerate(settings):
        numbered |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value}
    return {**environment, **numbered, "GIT_CONFIG_COUNT": str(len(settings))}


def _settings(environment: Mapping[str, str]) -> dict[str, list[str]]:
    """The settings that git sees, by name and in order: of the machine, of the user (also by ``includeIf``), and of the
    checkout unless the environment names another repository."""
    listed = _git("config", "--includes", "-z", "--get-regexp", _PASSED_SETTINGS, environment=environment) or ""
    settings: dict[str, list[str]] = {}
    for setting in filter(None, listed.split("\0")):
        name, line, value = setting.partition("\n")
        settings.setdefault(name, []).append(value if line else "true")  # a name without a value means true
    return settings


def _missing(name: str, here: list[str], elsewhere: list[str]) -> list[str]:
    """The values to add to those that git sees elsewhere. A header must not be sent twice, so a list that does not
    simply continue starts again, with an empty value."""
    if here[: len(elsewhere)] == elsewhere:
        return here[len(elsewhere) :]
    return ["", *here] if _LIST_SETTINGS.search(name) else here


def _git(*words: str, environment: Mapping[str, str] | None = None) -> str | None:
    """The output of a git command in the current directory; None if it fails."""
    import subprocess

    try:
        result = subprocess.run(["git", *words], capture_output=True, text=True, check=False, env=environment)
    except FileNotFoundError:
        raise click.UsageError("git is not installed: a series on a git remote needs it.") from None
    return result.stdout.removesuffix("\n") if result.returncode == 0 else None
