"""Git processes in a private repository, and the address of a git remote without its secrets.

The repository is in the temporary directory. It is bare, and exists until its register is closed. A process that was
killed leaves it behind; another process removes it a day later. Git runs with the user's environment, but without the
variables of a checkout and without prompts. Each git command is the leader of its own process group. A guard process
ends the group when this process dies, for whatever reason.

All users of a machine can read the arguments of its processes, and git passes an address on to its own children. So git
gets the address without user and password. A credential helper passes both to git; its settings and values are in the
environment, which only the same user can read. The same applies to an address that git itself makes of this one by
``insteadOf``.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from asterism.base import operating_system
from asterism.base.text import masked_url
from asterism.core.errors import DeviceTrouble
from asterism.execution import process_guard
from asterism.execution.processes import Listener, Transport, start_process
from asterism.series.register import RegisterUnavailable

DIRECTORY_PREFIX = "asterism-series-"
ABANDONED_AFTER = 86_400.0
"""The age after which a private repository counts as left behind by a killed process, in seconds."""

GRACE = 2.0
"""How long a git that is being ended may take to remove its locks, here and on the remote, in seconds."""

_SETTINGS = (
    *("-c", "gc.auto=0", "-c", "maintenance.auto=false", "-c", "core.hooksPath=/dev/null"),
    *("-c", "push.followTags=false", "-c", "push.gpgSign=false", "-c", "push.pushOption="),
    *("-c", "push.recurseSubmodules=no", "-c", "fetch.recurseSubmodules=no", "-c", "fetch.writeCommitGraph=false"),
    *("-c", "http.lowSpeedLimit=1", "-c", "http.lowSpeedTime=60"),
)
"""They turn off what a user may have configured for checkouts, and end dead connections."""

_CHECKOUT_VARIABLES = (
    *("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES"),
    *("GIT_COMMON_DIR", "GIT_NAMESPACE", "GIT_PREFIX", "GIT_QUARANTINE_PATH", "GIT_PUSH_OPTION_COUNT"),
    *("GIT_SHALLOW_FILE", "GIT_GRAFT_FILE", "GIT_AUTHOR_DATE", "GIT_COMMITTER_DATE", "SSH_ASKPASS"),
)
"""A hook sets them: they would lead git into the user's checkout, give a change an old date, or prompt."""

_IDENTITY = {
    f"GIT_{role}_{what}": value
    for role in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "asterism"), ("EMAIL", "asterism@localhost"))
}


class GitTimeout(Exception):
    """A git command exceeded the timeout, or lost its guard, and was ended."""


class GitResult(NamedTuple):
    code: int
    out: bytes
    stderr: str


class PrivateRepository:
    """Runs git commands in a private repository, which it creates when it is first needed."""

    def __init__(self, environment: Mapping[str, str], timeout: float) -> None:
        self.hash_algorithm = "sha1"
        self.commits: set[str] = set()
        """The ids of commits that the repository is known to have."""
        self._guard = process_guard.Guard(GRACE)
        self._timeout = timeout
        self._directory: Path | None = None
        self._environment = {
            **{name: value for name, value in environment.items() if name not in _CHECKOUT_VARIABLES},
            **_IDENTITY,
            **{"LC_ALL": "C", "LANGUAGE": "", "GIT_TERMINAL_PROMPT": "0", "SSH_ASKPASS_REQUIRE": "never"},
        }

    def ensure(self) -> None:
        """Create the repository unless it exists; it may have been removed while the register was idle for days."""
        if self._directory is not None and (self._directory / "HEAD").exists():
            return
        if self._directory is not None:
            self.remove()
        _remove_abandoned()
        directory = self._directory = Path(tempfile.mkdtemp(prefix=DIRECTORY_PREFIX))
        # git init takes a process; these files are all it makes that matters
        for part in ("objects", "refs"):
            (directory / part).mkdir()
        (directory / "HEAD").write_text("ref: refs/heads/none\n")
        extension = f"[extensions]\n\tobjectformat = {self.hash_algorithm}\n"
        version, extension = (0, "") if self.hash_algorithm == "sha1" else (1, extension)
        (directory / "config").write_text(f"[core]\n\trepositoryformatversion = {version}\n\tbare = true\n{extension}")

    def use_sha256(self) -> None:
        """Start again with the hash algorithm SHA-256."""
        self.hash_algorithm = "sha256"
        self.remove()

    def remove(self) -> None:
        self.commits.clear()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    async def close(self) -> None:
        self.remove()
        await asyncio.to_thread(self._guard.close)

    async def run(self, *words: str, stdin: bytes = b"", environment: Mapping[str, str] | None = None) -> GitResult:
        """Run a git command to its end; ``environment`` is added to that of the repository. Raises GitTimeout."""
        self.ensure()
        ticket = self._guard.admit()
        variables = {**self._environment, **(environment or {}), "GIT_DIR": str(self._directory)}
        listener = Listener(None, sys.maxsize)
        try:
            with tempfile.TemporaryFile() as source:
                source.write(stdin)
                source.seek(0)
                try:  # without a terminal of its session, git has none to prompt on
                    argv = ("git", *_SETTINGS, *words)
                    start = start_process(self._guard, ticket, argv, variables, listener, stdin=source, session=True)
                    process = await start
                except FileNotFoundError:
                    raise RegisterUnavailable("git is not installed: a series on a git remote needs it") from None
                except DeviceTrouble as trouble:  # it may have begun
                    raise GitTimeout(f"git {words[0]} was ended: {trouble}") from None
            ended = asyncio.gather(listener.exited, listener.output_ended)
            try:
                await asyncio.wait_for(asyncio.shield(ended), self._timeout)
            except TimeoutError:
                raise GitTimeout(f"git {words[0]} took longer than {self._timeout:g} s") from None
            finally:
                if not ended.done():
                    await _end(process, ended)
            return GitResult(process.get_returncode() or 0, bytes(listener.output()), listener.tail(2))
        finally:
            self._guard.finished(ticket)


def _remove_abandoned() -> None:
    """Remove the repositories that killed processes left behind. A process that was only idle creates its own again."""
    oldest, user = time.time() - ABANDONED_AFTER, operating_system.user_id() or 0
    for path in Path(tempfile.gettempdir()).glob(f"{DIRECTORY_PREFIX}*"):
        with contextlib.suppress(OSError):
            status = path.lstat()
            if status.st_mtime < oldest and status.st_uid == user and path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)


async def _end(process: Transport, ended: asyncio.Future[Any]) -> None:
    """End a process with its whole group."""
    alive = _signal_group(process.get_pid(), signal.SIGTERM)  # on SIGTERM git removes its locks
    deadline = time.monotonic() + GRACE
    try:
        while alive and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
            alive = _signal_group(process.get_pid(), 0)
    finally:
        if alive:
            _signal_group(process.get_pid(), operating_system.KILL)
        try:  # a process outside the group may hold the pipes
            await asyncio.wait([ended], timeout=GRACE)
        finally:
            process.close()


def _signal_group(group: int, number: int) -> bool:
    """Returns whether the group still has a process."""
    return operating_system.signal_group(group, number)


# -- addresses --------------------------------------------------------------------------------------------------------

MIN_MASKED_SECRET = 4
"""Characters of a secret that is masked in the output of git: a shorter one would match ordinary text."""

REWRITE_SETTINGS = r"^url\..*\.(push)?insteadof$"
"""The settings of git that replace the beginning of an address."""

_USER, _PASSWORD = "ASTERISM_GIT_USER", "ASTERISM_GIT_PASSWORD"
_HELPER = f"""!f() {{ test "$1" = get && printf 'username=%s\\npassword=%s\\n' "${_USER}" "${_PASSWORD}"; }}; f"""
_HTTP = re.compile(r"(?P<scheme>https?)://(?:(?P<user>[^/?#]*)@)?(?P<rest>(?P<host>[^/?#@]*).*)", re.IGNORECASE)
_LOGIN = re.compile(r"(?<=://)([^/@:]*):.*@")
_PORT = re.compile(r"(?:\[[^\]]*\]|[^:]*)(?::\d*)?")


@dataclass(frozen=True)
class RemoteAddress:
    """``plain`` is for the arguments of git; ``settings`` and ``environment`` carry the secrets that it leaves out."""

    plain: str
    settings: tuple[tuple[str, str], ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)

    def variables(self, environment: Mapping[str, str]) -> dict[str, str]:
        """The variables to add to the environment of git. The settings that it already has come first."""
        count = int(known) if (known := environment.get("GIT_CONFIG_COUNT", "")).isdigit() else 0
        numbered: dict[str, str] = {}
        for number, (name, value) in enumerate(self.settings, count):
            numbered |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value}
        if self.settings:
            numbered["GIT_CONFIG_COUNT"] = str(count + len(self.settings))
        return {**self.environment, **numbered}

    def without_secrets(self, text: str) -> str:
        """The text with the password masked, in every encoding. Without a password the user may be a token."""
        secret = self.environment.get(_PASSWORD) or self.environment.get(_USER, "")
        for form in {secret, quote(secret, safe=""), quote(secret)}:
            if len(form) >= MIN_MASKED_SECRET:
                text = text.replace(form, "…")
        return text


def split_address(address: str) -> RemoteAddress:
    """Take the secrets out of an address. Only HTTP accepts a password; in other addresses, such as ssh, it is dropped.

    Raises RegisterUnavailable for an ambiguous address."""
    match = _HTTP.fullmatch(address)
    if match is None:
        return RemoteAddress(_LOGIN.sub(r"\1@", address))
    if match["user"] is None:
        if "@" in address and not _PORT.fullmatch(match["host"]):
            raise RegisterUnavailable(
                f"{masked_url(address)} has a reserved character in its password: write / as %2F, ? as %3F, # as %23"
            )
        return RemoteAddress(address)
    plain = f"{match['scheme']}://{match['rest']}"
    scope = f"credential.{match['scheme'].lower()}://{match['host']}"
    user, colon, password = match["user"].partition(":")
    credentials = {_USER: unquote(user), _PASSWORD: unquote(password)}
    if any(not value.isprintable() for value in credentials.values()):
        raise RegisterUnavailable(f"{masked_url(address)} has a control character in its user or password")
    settings: tuple[tuple[str, str], ...] = ((f"{scope}.username", credentials[_USER]),)
    if colon:  # an empty helper clears the list, so no other helper is asked, or told to store the password
        settings = ((f"{scope}.helper", ""), (f"{scope}.helper", _HELPER))
    # insteadOf has been applied already; a rule for the whole address is the longest, so it wins and changes nothing
    unchanged = tuple((f"url.{plain}.{rule}", plain) for rule in ("insteadOf", "pushInsteadOf"))
    return RemoteAddress(plain, (*settings, *unchanged), credentials)


def rewrite_address(address: str, rules: Sequence[tuple[str, str]], pushing: bool) -> str:
    """The address that git makes of this one by its ``insteadOf`` settings, given as (name, value), if that address has
    a user or password; otherwise the address itself, for git to rewrite."""
    for kind in ("pushinsteadof", "insteadof") if pushing else ("insteadof",):
        matching = [
            (value, name.removeprefix("url.").rpartition(".")[0])
            for name, value in rules
            if name.rpartition(".")[2] == kind and address.startswith(value)
        ]
        if matching:
            beginning, base = max(matching, key=lambda rule: len(rule[0]))
            rewritten = base + address.removeprefix(beginning)
            match = _HTTP.fullmatch(rewritten)
            return rewritten if match is not None and match["user"] is not None else address
    return address
