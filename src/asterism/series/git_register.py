"""Series on any git remote, through the ``git`` program: a ref for each, changed by a push that names what it replaces.

Everything happens in a small private repository in the temporary directory, which goes when the register is closed.
Nothing is written to anybody's checkout, and on the remote nothing but refs below ``refs/asterism/series/``: no branch,
no tag. Credentials, proxies and ``insteadOf`` are those of the user's git; nobody is ever prompted. What is secret in
an address never stands in the arguments of a process (``remote_address.py``), and a guard ends git with all it started
when this process dies, however it dies.

A state is a commit with one file, made with plumbing. Its parent is the state that was read, and a random word in its
message makes it unlike any other. It is pushed with ``--force-with-lease=<ref>:<what was read>``, so the remote takes
it only in place of that. What became of it is read from the porcelain output: a push that changes nothing, since the
remote has the very same commit already, exits with 0 too.

A push that was cut off may have arrived or not: that is Unsure. Leases are judged by the clock of this machine, since a
remote has none to ask.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import time
import uuid
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from asterism.base import process_guard
from asterism.base.url_text import masked_url, masked_urls
from asterism.series.git_remote import REWRITES, RemoteAddress, rewritten, split
from asterism.series.private_repo import private_repository, quiet
from asterism.series.register import (
    REF_PREFIX,
    STATE_FILE,
    Change,
    Moved,
    RegisterBusy,
    RegisterUnavailable,
    Snapshot,
    Unsure,
    commit_message,
    name_of,
    ref_of,
    said_in,
)

TIMEOUT = 60.0
"""How long one git command may take, in seconds."""

LONG_AGO = 50
"""How many changes back to look for one of ours that others have built upon in the meantime."""

GRACE = 2.0
"""How long a git that is ended has to remove its locks, here and on the remote, in seconds."""

STUCK = 5
"""So many times in a row a ref may be locked while nobody changes it. Then it is not somebody else who was first."""

_REMOTE = "<remote>"
"""Stands for the address among the words of a command."""

_SETTINGS = (
    *("-c", "gc.auto=0", "-c", "maintenance.auto=false", "-c", "core.hooksPath=/dev/null"),
    *("-c", "push.followTags=false", "-c", "push.gpgSign=false", "-c", "push.pushOption="),
    *("-c", "push.recurseSubmodules=no", "-c", "fetch.recurseSubmodules=no", "-c", "fetch.writeCommitGraph=false"),
    *("-c", "http.lowSpeedLimit=1", "-c", "http.lowSpeedTime=60"),
)
"""What the user may have configured for a checkout and is of no use here, and what ends a connection that is dead."""

_NEVER_SENT = re.compile(
    r"could not resolve|couldn't connect|failed to connect|connection refused|authentication failed|could not read"
    r"|permission denied|returned error: 4\d\d|not found|does not appear to be a git repository|unable to find remote"
    r"|dubious ownership|not supported|not allowed|host key verification failed|no such file or directory|certificate",
    re.IGNORECASE,
)
"""What git says when a push did not even begin."""

_OVERTAKEN = re.compile(r"stale info|fetch first|non-fast-forward|lock|incorrect old value|already exists|failed to")
_TELLING = ("fatal:", "error:", "remote:", "ssh:", "git:")
_NOT_THERE = re.compile(r"couldn't find remote ref", re.IGNORECASE)
_OTHER_HASHES = re.compile(r"mismatched algorithms|hash algorithm", re.IGNORECASE)


class _Answer(NamedTuple):
    code: int
    out: bytes
    said: str


class _Object(NamedTuple):
    id: str
    kind: str
    content: bytes


class _TimedOut(Exception):
    """A git command took too long, and was ended."""


class GitRegister:
    """On the remote at ``url``, whatever git understands: file, ssh, https, or a path."""

    def __init__(self, url: str, *, timeout: float = TIMEOUT, environment: Mapping[str, str] | None = None) -> None:
        if not url or url.startswith("-") or not url.isprintable():
            raise RegisterUnavailable(f"{masked_url(url)!r} is no address of a git remote")
        self._address, self._timeout = url, timeout
        self._given = split(url)
        self._rules: list[tuple[str, str]] | None = None
        self._guard = process_guard.Guard(GRACE)
        self._environment = dict(os.environ if environment is None else environment)
        self._directory: Path | None = None
        self._hashes = "sha1"
        self._fetching = asyncio.Lock()  # git locks what it fetches into, and fails where it could wait
        self._commits: set[str] = set()
        self._locked: dict[str, tuple[str | None, int]] = {}

    @property
    def url(self) -> str:
        return masked_url(self._address)

    def clock(self) -> float:
        return time.time()

    # -- reading -------------------------------------------------------------------------------------------------------

    async def read(self, name: str) -> Snapshot:
        ref = ref_of(name)
        async with self._fetching:
            if not await self._fetched(ref, 1):
                return Snapshot(None, None)
            return await self._state()

    async def _state(self) -> Snapshot:
        """Of what was fetched. A ref that holds something else is not free: it has a token, and no text to go by."""
        head, file = await self._objects(["refs/read", f"refs/read:{STATE_FILE}"])
        assert head is not None
        if head.kind == "commit":
            self._commits.add(head.id)
        return Snapshot(_text(file), head.id)

    async def _objects(self, names: Sequence[str]) -> list[_Object | None]:
        """What the private repository has under these names; None for those it has not."""
        found: list[_Object | None] = []
        rest = (await self._git("cat-file", "--batch", given="".join(f"{name}\n" for name in names).encode())).out
        while rest:
            head, _, rest = rest.partition(b"\n")
            words = head.decode().rsplit(" ", 2)
            if len(words) < 3 or not words[2].isdigit():  # "refs/read:series.json missing"
                found.append(None)
                continue
            size = int(words[2])
            found.append(_Object(words[0], words[1], rest[:size]))
            rest = rest[size + 1 :]
        return found

    async def _fetched(self, ref: str, depth: int) -> bool:
        """Whether there is such a ref; if so, ``refs/read`` is what it holds, now."""
        words = ("fetch", "--quiet", "--no-tags", f"--depth={depth}", "--", _REMOTE, f"+{ref}:refs/read")
        for last in (False, False, True):
            answer = await self._remote(*words)
            if answer.code == 0:
                return True
            if await self._tip(ref) is None:
                return False
            if last or not _NOT_THERE.search(answer.said):
                break
            # it came into being between the two questions, and is never removed: the next answer has it
        raise self._unavailable("cannot be read", answer)

    async def _tip(self, ref: str) -> str | None:
        answer = await self._remote("ls-remote", "--exit-code", "--refs", "--", _REMOTE, ref)
        if answer.code not in (0, 2):
            raise self._unavailable("cannot be reached", answer)
        found = [line.partition("\t") for line in answer.out.decode().splitlines()]
        return next((token for token, _, name in found if name == ref), None)  # others may end in the same words

    async def names(self) -> list[str]:
        answer = await self._remote("ls-remote", "--refs", "--", _REMOTE, f"{REF_PREFIX}*")
        if answer.code != 0:
            raise self._unavailable("cannot be reached", answer)
        refs = [line.partition("\t")[2] for line in answer.out.decode().splitlines()]
        return sorted(name for ref in refs if (name := name_of(ref)) is not None)

    async def read_all(self) -> dict[str, Snapshot]:
        """Of every series, in one question: each by itself would take as many connections."""
        async with self._fetching:
            words = ("fetch", "--quiet", "--no-tags", "--prune", "--depth=1", "--", _REMOTE)
            answer = await self._remote(*words, f"+{REF_PREFIX}*:refs/all/*")
            if answer.code != 0:  # as it is also where there is nothing at all to fetch
                if not await self.names():
                    return {}
                raise self._unavailable("cannot be read", answer)
            told = await self._git("for-each-ref", "--format=%(objectname) %(refname)", "refs/all/")
            pairs = [line.split(" ", 1) for line in told.out.decode().splitlines()]
            files = await self._objects([f"{token}:{STATE_FILE}" for token, _ in pairs])
        found = {}
        for (token, ref), file in zip(pairs, files, strict=True):
            name = name_of(REF_PREFIX + ref.removeprefix("refs/all/"))
            if name is not None:
                found[name] = Snapshot(_text(file), token)
        return found

    async def history(self, name: str, limit: int) -> list[Change]:
        ref = ref_of(name)
        async with self._fetching:
            if limit < 1 or not await self._fetched(ref, limit):
                return []
            [head] = await self._objects(["refs/read"])
            if head is None or head.kind in ("blob", "tree"):  # nothing comes before what is no commit
                return []
            form = "--format=%H%n%ct%n%B"
            told = await self._git("log", "-z", "--first-parent", f"--max-count={limit}", form, "refs/read", "--")
            commits = [one.split("\n", 2) for one in told.out.decode(errors="replace").split("\0") if one]
            files = await self._objects([f"{commit[0]}:{STATE_FILE}" for commit in commits])
        return [
            Change(float(at), said_in(message), _text(file), token)
            for (token, at, message), file in zip(commits, files, strict=True)
        ]

    # -- writing -------------------------------------------------------------------------------------------------------

    async def swap(self, name: str, expected: str | None, text: str, message: str) -> str:
        ref = ref_of(name)
        self._repository()
        if expected is not None and expected not in self._commits:
            seen = await self.read(name)  # what a state is made from has to be here
            if seen.token != expected:
                raise Moved(name)
        commit = await self._committed(expected, text, message)
        lease = f"--force-with-lease={ref}:{expected or ''}"
        try:
            answer = await self._remote("push", "--porcelain", "--no-verify", lease, "--", _REMOTE, f"{commit}:{ref}")
        except _TimedOut as error:
            raise Unsure(f"whether series {name} was changed is not known: {error}") from None
        if self._has_other_hashes(answer):  # the first thing we hear of the remote: what we made has to be made anew
            self._switch_hashes()
            return await self.swap(name, expected, text, message)
        self._commits.add(commit)
        flag, said = _judged(answer.out.decode(errors="replace"), ref)
        if flag in (" ", "+", "*", "="):  # with "=" it is there already: nobody but us could have put this one there
            return commit
        if flag == "!":
            await self._rejected(name, ref, expected, commit, said, self._from_there(answer))
            return commit
        if any(_NEVER_SENT.search(line) for line in answer.said.splitlines() if not line.startswith("remote:")):
            raise self._unavailable("takes no changes", answer)
        raise Unsure(f"whether series {name} was changed is not known: {self._last(answer)}")

    async def _rejected(self, name: str, ref: str, expected: str | None, commit: str, said: str, why: str) -> None:
        """Returns if it is there all the same, and raises what a rejection means; ``why`` is what the remote had to say
        to people."""
        tip = await self._tip(ref)
        if tip == commit:
            return
        # what carries it over HTTP may have sent it twice, and somebody built upon the first, which was taken
        twice = said.startswith("[remote") and self._address.lower().startswith("http")
        if tip != expected and twice and any(one.token == commit for one in await self.history(name, LONG_AGO)):
            return
        if tip == expected:
            seen, times = self._locked.get(name, (None, 0))
            times = times + 1 if seen == expected else 1
            self._locked[name] = (expected, times)
            # nobody was first: whoever runs out of tries must not be told so
            stuck = times >= STUCK or not _OVERTAKEN.search(said)
            kind = RegisterUnavailable if stuck else RegisterBusy
            raise kind(f"{self.url} rejects the change of series {name}: {said}{why}")
        raise Moved(name)

    async def _committed(self, parent: str | None, text: str, message: str) -> str:
        blob = await self._object("hash-object", "-w", "--stdin", given=text)
        tree = await self._object("mktree", given=f"100644 blob {blob}\t{STATE_FILE}\n")
        parents = () if parent is None or parent not in self._commits else ("-p", parent)  # a commit, or nothing
        return await self._object("commit-tree", *parents, tree, given=commit_message(message, uuid.uuid4().hex))

    async def _object(self, *words: str, given: str) -> str:
        return (await self._git(*words, given=given.encode())).out.decode().strip()

    async def close(self) -> None:
        self._remove_repository()
        await asyncio.to_thread(self._guard.close)

    def _remove_repository(self) -> None:
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    # -- the program ---------------------------------------------------------------------------------------------------

    async def _remote(self, *words: str) -> _Answer:
        """A command that talks to the remote. One with other hashes takes a private repository with other hashes."""
        try:
            address = await self._target(words[0] == "push")
            words = tuple(address.plain if word is _REMOTE else word for word in words)
            answer = await self._run(*words, address=address)
            if words[0] != "push" and self._has_other_hashes(answer):
                self._switch_hashes()
                answer = await self._run(*words, address=address)
            return answer._replace(said=address.without_secrets(answer.said))
        except _TimedOut as error:
            if words[0] == "push":
                raise
            raise RegisterUnavailable(f"{self.url} does not answer: {error}") from None

    async def _target(self, pushing: bool) -> RemoteAddress:
        """Where a command goes: the address that was given, or what the settings make of it, if that has a secret."""
        if self._given.settings or self._address.startswith(("file:", "/", ".")):
            return self._given
        if self._rules is None:
            told = await self._run("config", "--includes", "-z", "--get-regexp", REWRITES)
            pairs = [setting.partition("\n") for setting in told.out.decode(errors="replace").split("\0") if setting]
            self._rules = [(name, value) for name, _, value in pairs]
        made = rewritten(self._address, self._rules, pushing)
        return self._given if made == self._address else split(made)

    def _has_other_hashes(self, answer: _Answer) -> bool:
        return answer.code != 0 and self._hashes == "sha1" and _OTHER_HASHES.search(answer.said) is not None

    def _switch_hashes(self) -> None:
        self._hashes = "sha256"
        self._commits.clear()
        self._remove_repository()

    async def _git(self, *words: str, given: bytes = b"") -> _Answer:
        """A command that works in the private repository, and has no reason to fail."""
        answer = await self._run(*words, given=given)
        if answer.code != 0:
            raise RegisterUnavailable(f"git {words[0]} failed with {answer.code}: {self._last(answer)}")
        return answer

    async def _run(self, *words: str, given: bytes = b"", address: RemoteAddress | None = None) -> _Answer:
        ticket = self._guard.admit()
        try:
            return await self._guarded(ticket, words, given, (address or self._given).added_to(self._environment))
        finally:
            self._guard.finished(ticket)

    async def _guarded(
        self, ticket: int, words: Sequence[str], given: bytes, environment: Mapping[str, str]
    ) -> _Answer:
        directory = self._repository()
        starting = asyncio.ensure_future(
            asyncio.create_subprocess_exec(
                "git",
                *_SETTINGS,
                *words,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,  # so that it can be ended with all it started, and finds nobody to prompt
                env={**quiet(environment), "GIT_DIR": str(directory)},
                preexec_fn=partial(process_guard.report, self._guard.pipe(), ticket),
            )
        )
        try:
            process = await asyncio.shield(starting)
        except FileNotFoundError:
            raise RegisterUnavailable("there is no program git: a series on a git remote needs it") from None
        except asyncio.CancelledError:  # it may have begun, and only who knows its process can end all it started
            await _end(await starting)
            raise
        self._guard.started(ticket, process.pid)
        try:
            out, said = await asyncio.wait_for(process.communicate(given), self._timeout)
        except TimeoutError:
            raise _TimedOut(f"git {words[0]} took longer than {self._timeout:g} s") from None
        finally:
            await _end(process)
        return _Answer(process.returncode or 0, out, said.decode(errors="replace"))

    def _repository(self) -> Path:
        """The private repository; made anew if somebody swept it, for it may have been idle for days."""
        if self._directory is None or not (self._directory / "HEAD").exists():
            if self._directory is not None:
                shutil.rmtree(self._directory, ignore_errors=True)
            self._commits.clear()
            self._directory = private_repository(self._hashes)
        return self._directory

    def _unavailable(self, what: str, answer: _Answer) -> RegisterUnavailable:
        return RegisterUnavailable(f"{self.url} {what}: {self._last(answer)}")

    def _last(self, answer: _Answer) -> str:
        """What git had to say, in one line and without a password."""
        lines = self._lines(answer)
        told = [line for line in lines if line.startswith(_TELLING) or _NEVER_SENT.search(line)] or lines[-1:]
        return "; ".join(dict.fromkeys(told))[:500] or f"git exited with {answer.code}"

    def _from_there(self, answer: _Answer) -> str:
        """What a hook or the server said beside the rejection: that is where the reason is, if there is one."""
        lines = [line.removeprefix("error: ") for line in self._lines(answer)]
        said = [line.removeprefix("remote:").strip() for line in lines if line.startswith(("remote:", "remote unpack"))]
        told = "; ".join(dict.fromkeys(filter(None, said)))[:500]
        return f" ({told})" if told else ""

    def _lines(self, answer: _Answer) -> list[str]:
        """Without a password."""
        said = answer.said.replace(self._address, self.url)  # which need not be as git would write it
        return [masked_urls(line.strip()) for line in said.splitlines()]


async def _end(process: asyncio.subprocess.Process) -> None:
    """End it with all it started, unless it has ended."""
    if process.returncode is not None:
        return
    left = _signalled(process.pid, signal.SIGTERM)  # a git that is asked to end removes its locks
    until = time.monotonic() + GRACE
    try:
        while left and time.monotonic() < until:
            await asyncio.sleep(0.01)
            left = _signalled(process.pid, 0)
    finally:
        if left:
            _signalled(process.pid, signal.SIGKILL)
        await process.communicate()  # to wait alone could be for ever, while something it said is not read


def _signalled(group: int, how: int) -> bool:
    """Whether there is anybody left in the group."""
    try:
        os.killpg(group, how)
    except ProcessLookupError:
        return False
    return True


def _text(file: _Object | None) -> str:
    return file.content.decode(errors="replace") if file is not None and file.kind == "blob" else ""


def _judged(porcelain: str, ref: str) -> tuple[str, str]:
    """The flag and the words for our ref; two empty texts if there is no line about it."""
    for line in porcelain.splitlines():
        flag, _, rest = line.partition("\t")
        refs, _, said = rest.partition("\t")
        if refs.endswith(f":{ref}") and len(flag) == 1:
            return flag, said
    return "", ""
