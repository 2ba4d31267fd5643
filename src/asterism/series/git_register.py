"""A register on a git remote: one ref per series, changed by a conditional ``git push``.

Git works in a private repository in the temporary directory (``git_process``). It writes nothing into a checkout, and
on the remote only refs below ``refs/asterism/series/``, no branch and no tag. Credentials, proxies and ``insteadOf``
are those of the user's git; git never prompts. Secrets of an address never appear in process arguments.

A state is a commit with one file. Its parent is the state that was read, and a nonce in its message makes it unique. It
is pushed with ``--force-with-lease=<ref>:<commit that was read>``, so the remote accepts it only in place of that
commit. The porcelain output tells the result, because a push that changes nothing also exits with 0.

A push that was cut off may have arrived: that raises OutcomeUnknown. The clock of this machine decides about leases,
because a git remote has none.

Git reports many failures only in words on standard error. The patterns at the top of this module, which are applied
nowhere else, tell them apart.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from asterism.base.text import masked_url, masked_urls
from asterism.series.git_process import (
    REWRITE_SETTINGS,
    GitResult,
    GitTimeout,
    PrivateRepository,
    RemoteAddress,
    rewrite_address,
    split_address,
)
from asterism.series.register import (
    REF_PREFIX,
    STATE_FILE,
    Change,
    OutcomeUnknown,
    RegisterBusy,
    RegisterUnavailable,
    RevisionConflict,
    Snapshot,
    commit_message,
    encode_name,
    message_of_change,
    name_of,
)

TIMEOUT = 60.0
"""The timeout of one git command, in seconds."""

RESENT_PUSH_HISTORY = 50
"""How many changes back to search for one of ours that other writers have built upon."""

MAX_UNCHANGED_REJECTIONS = 5
"""After so many rejections in a row without a change of the ref, something else than another writer blocks it."""

_REMOTE = "<remote>"
"""Stands for the address among the words of a command."""

# -- what git says on standard error -----------------------------------------------------------------------------------

_PUSH_NOT_SENT = re.compile(
    r"could not resolve|couldn't connect|failed to connect|connection refused|authentication failed|could not read"
    r"|permission denied|returned error: 4\d\d|not found|does not appear to be a git repository|unable to find remote"
    r"|dubious ownership|not supported|not allowed|host key verification failed|no such file or directory|certificate",
    re.IGNORECASE,
)
_REF_CHANGED = re.compile(r"stale info|fetch first|non-fast-forward|lock|incorrect old value|already exists|failed to")
_REF_MISSING = re.compile(r"couldn't find remote ref", re.IGNORECASE)
_OTHER_HASH_ALGORITHM = re.compile(r"mismatched algorithms|hash algorithm", re.IGNORECASE)
_ERROR_PREFIXES = ("fatal:", "error:", "remote:", "ssh:", "git:")


class _Object(NamedTuple):
    id: str
    kind: str
    content: bytes


class _OtherHashes(Exception):
    """The remote uses another hash algorithm than the commit that was to be pushed."""


class GitRegister:
    """A register on the remote at ``url``, in any form that git accepts: file, ssh, https, or a path."""

    def __init__(self, url: str, *, timeout: float = TIMEOUT, environment: Mapping[str, str] | None = None) -> None:
        if not url or url.startswith("-") or not url.isprintable():
            raise RegisterUnavailable(f"{masked_url(url)!r} is not a valid address of a git remote")
        self._address = url
        self._given = split_address(url)
        self._may_be_rewritten = not (self._given.settings or url.startswith(("file:", "/", ".")))
        self._rewrite_rules: list[tuple[str, str]] | None = None
        self._environment = dict(os.environ if environment is None else environment)
        self._repository = PrivateRepository(self._environment, timeout)
        self._fetching = asyncio.Lock()  # git locks the ref it fetches into, and fails instead of waiting
        self._rejections: dict[str, tuple[str | None, int]] = {}

    @property
    def url(self) -> str:
        return masked_url(self._address)

    def clock(self) -> float:
        return time.time()

    async def close(self) -> None:
        await self._repository.close()

    # -- reading -------------------------------------------------------------------------------------------------------

    async def read(self, name: str) -> Snapshot:
        ref = REF_PREFIX + encode_name(name)
        async with self._fetching:
            if not await self._fetch(ref, 1):
                return Snapshot(None, None)
            head, file = await self._objects(["refs/read", f"refs/read:{STATE_FILE}"])
        assert head is not None
        if head.kind == "commit":
            self._repository.commits.add(head.id)
        # a ref that holds something else than a state is not free: it has a token, and an unreadable text
        return Snapshot(_text(file), head.id)

    async def _objects(self, names: Sequence[str]) -> list[_Object | None]:
        """The objects of the private repository with these names; None for a missing one."""
        objects: list[_Object | None] = []
        rest = (await self._git("cat-file", "--batch", stdin="".join(f"{name}\n" for name in names).encode())).out
        while rest:
            head, _, rest = rest.partition(b"\n")
            words = head.decode().rsplit(" ", 2)
            if len(words) < 3 or not words[2].isdigit():  # "refs/read:series.json missing"
                objects.append(None)
                continue
            size = int(words[2])
            objects.append(_Object(words[0], words[1], rest[:size]))
            rest = rest[size + 1 :]
        return objects

    async def _fetch(self, ref: str, depth: int) -> bool:
        """Fetch a ref into ``refs/read``. Returns whether the remote has it."""
        words = ("fetch", "--quiet", "--no-tags", f"--depth={depth}", "--", _REMOTE, f"+{ref}:refs/read")
        for last in (False, False, True):
            result = await self._remote(*words)
            if result.code == 0:
                return True
            if await self._tip(ref) is None:
                return False
            if last or not _REF_MISSING.search(result.stderr):
                break
            # the ref was created between the two commands, and refs are never removed: fetch it now
        raise self._unavailable("cannot be read", result)

    async def _tip(self, ref: str) -> str | None:
        result = await self._remote("ls-remote", "--exit-code", "--refs", "--", _REMOTE, ref)
        if result.code not in (0, 2):
            raise self._unavailable("cannot be reached", result)
        listed = [line.partition("\t") for line in result.out.decode().splitlines()]
        return next((token for token, _, name in listed if name == ref), None)  # git also lists longer names

    async def names(self) -> list[str]:
        result = await self._remote("ls-remote", "--refs", "--", _REMOTE, f"{REF_PREFIX}*")
        if result.code != 0:
            raise self._unavailable("cannot be reached", result)
        refs = [line.partition("\t")[2] for line in result.out.decode().splitlines()]
        return sorted(name for ref in refs if (name := name_of(ref)) is not None)

    async def read_all(self) -> dict[str, Snapshot]:
        """Every series, over one connection instead of one for each."""
        async with self._fetching:
            words = ("fetch", "--quiet", "--no-tags", "--prune", "--depth=1", "--", _REMOTE)
            result = await self._remote(*words, f"+{REF_PREFIX}*:refs/all/*")
            if result.code != 0:  # git also fails if there is no ref to fetch
                if not await self.names():
                    return {}
                raise self._unavailable("cannot be read", result)
            listed = await self._git("for-each-ref", "--format=%(objectname) %(refname)", "refs/all/")
            pairs = [line.split(" ", 1) for line in listed.out.decode().splitlines()]
            files = await self._objects([f"{token}:{STATE_FILE}" for token, _ in pairs])
        snapshots = {}
        for (token, ref), file in zip(pairs, files, strict=True):
            name = name_of(REF_PREFIX + ref.removeprefix("refs/all/"))
            if name is not None:
                snapshots[name] = Snapshot(_text(file), token)
        return snapshots

    async def history(self, name: str, limit: int) -> list[Change]:
        ref = REF_PREFIX + encode_name(name)
        async with self._fetching:
            if limit < 1 or not await self._fetch(ref, limit):
                return []
            [head] = await self._objects(["refs/read"])
            if head is None or head.kind in ("blob", "tree"):  # only a commit has a history
                return []
            form = "--format=%H%n%ct%n%B"
            log = await self._git("log", "-z", "--first-parent", f"--max-count={limit}", form, "refs/read", "--")
            commits = [entry.split("\n", 2) for entry in log.out.decode(errors="replace").split("\0") if entry]
            files = await self._objects([f"{commit[0]}:{STATE_FILE}" for commit in commits])
        return [
            Change(float(at), message_of_change(message), _text(file), token)
            for (token, at, message), file in zip(commits, files, strict=True)
        ]

    # -- writing -------------------------------------------------------------------------------------------------------

    async def swap(self, name: str, expected: str | None, text: str, message: str) -> str:
        ref = REF_PREFIX + encode_name(name)
        self._repository.ensure()
        if expected is not None and expected not in self._repository.commits:
            seen = await self.read(name)  # the parent commit has to be in the private repository
            if seen.token != expected:
                raise RevisionConflict(name)
        commit = await self._commit(expected, text, message)
        lease = f"--force-with-lease={ref}:{expected or ''}"
        try:
            result = await self._remote("push", "--porcelain", "--no-verify", lease, "--", _REMOTE, f"{commit}:{ref}")
        except GitTimeout as error:
            raise OutcomeUnknown(f"it is unknown whether series {name} was changed: {error}") from None
        except _OtherHashes:
            return await self.swap(name, expected, text, message)
        self._repository.commits.add(commit)
        flag, reason = _push_result(result.out.decode(errors="replace"), ref)
        if flag in (" ", "+", "*", "="):  # "=": the remote has this commit already; only we can have pushed it
            return commit
        if flag == "!":
            await self._check_rejection(name, ref, expected, commit, reason, self._remote_messages(result))
            return commit
        if any(_PUSH_NOT_SENT.search(line) for line in result.stderr.splitlines() if not line.startswith("remote:")):
            raise self._unavailable("accepts no changes", result)
        raise OutcomeUnknown(f"it is unknown whether series {name} was changed: {self._error_text(result)}")

    async def _check_rejection(
        self, name: str, ref: str, expected: str | None, commit: str, reason: str, details: str
    ) -> None:
        """Return if the remote has the commit after all; otherwise raise what the rejection means."""
        tip = await self._tip(ref)
        if tip == commit:
            return
        # HTTP may have sent the push twice: the first was accepted, and another writer has built upon it since
        resent = reason.startswith("[remote") and self._address.lower().startswith("http")
        earlier = await self.history(name, RESENT_PUSH_HISTORY) if tip != expected and resent else []
        if any(change.token == commit for change in earlier):
            return
        if tip == expected:
            token, count = self._rejections.get(name, (None, 0))
            count = count + 1 if token == expected else 1
            self._rejections[name] = (expected, count)
            # no other writer changed the ref: after some rejections this must not look like contention
            blocked = count >= MAX_UNCHANGED_REJECTIONS or not _REF_CHANGED.search(reason)
            kind = RegisterUnavailable if blocked else RegisterBusy
            raise kind(f"{self.url} rejects the change of series {name}: {reason}{details}")
        raise RevisionConflict(name)

    async def _commit(self, parent: str | None, text: str, message: str) -> str:
        blob = (await self._git("hash-object", "-w", "--stdin", stdin=text.encode())).out.decode().strip()
        entry = f"100644 blob {blob}\t{STATE_FILE}\n"
        tree = (await self._git("mktree", stdin=entry.encode())).out.decode().strip()
        parents = ("-p", parent) if parent is not None and parent in self._repository.commits else ()
        words = commit_message(message, uuid.uuid4().hex)
        return (await self._git("commit-tree", *parents, tree, stdin=words.encode())).out.decode().strip()

    # -- git commands --------------------------------------------------------------------------------------------------

    async def _remote(self, *words: str) -> GitResult:
        """A git command that talks to the remote.

        If the remote uses SHA-256, a private repository with SHA-256 replaces the present one. Raises GitTimeout for a
        push, and RegisterUnavailable for another command that takes too long."""
        pushing = words[0] == "push"
        try:
            address = await self._rewritten_address(pushing) if self._may_be_rewritten else self._given
            words = tuple(address.plain if word is _REMOTE else word for word in words)
            variables = address.variables(self._environment) if address.settings else None
            result = await self._repository.run(*words, environment=variables)
            sha1 = self._repository.hash_algorithm == "sha1"
            if result.code != 0 and sha1 and _OTHER_HASH_ALGORITHM.search(result.stderr):
                self._repository.use_sha256()
                if pushing:
                    raise _OtherHashes
                result = await self._repository.run(*words, environment=variables)
            if address.settings:
                result = result._replace(stderr=address.without_secrets(result.stderr))
            return result
        except GitTimeout as error:
            if pushing:
                raise
            raise RegisterUnavailable(f"{self.url} does not answer: {error}") from None

    async def _rewritten_address(self, pushing: bool) -> RemoteAddress:
        """The address that was given, or the one that git's settings replace it with, if that has a secret."""
        if self._rewrite_rules is None:
            listed = await self._repository.run("config", "--includes", "-z", "--get-regexp", REWRITE_SETTINGS)
            pairs = [setting.partition("\n") for setting in listed.out.decode(errors="replace").split("\0") if setting]
            self._rewrite_rules = [(name, value) for name, _, value in pairs]
        rewritten = rewrite_address(self._address, self._rewrite_rules, pushing)
        return self._given if rewritten == self._address else split_address(rewritten)

    async def _git(self, *words: str, stdin: bytes = b"") -> GitResult:
        """A git command that works in the private repository, and has no reason to fail."""
        result = await self._repository.run(*words, stdin=stdin)
        if result.code != 0:
            raise RegisterUnavailable(f"git {words[0]} failed with {result.code}: {self._error_text(result)}")
        return result

    # -- messages ------------------------------------------------------------------------------------------------------

    def _unavailable(self, what: str, result: GitResult) -> RegisterUnavailable:
        return RegisterUnavailable(f"{self.url} {what}: {self._error_text(result)}")

    def _error_text(self, result: GitResult) -> str:
        """The error of git on one line, without secrets."""
        lines = self._lines(result)
        errors = [line for line in lines if line.startswith(_ERROR_PREFIXES) or _PUSH_NOT_SENT.search(line)]
        return "; ".join(dict.fromkeys(errors or lines[-1:]))[:500] or f"git exited with {result.code}"

    def _remote_messages(self, result: GitResult) -> str:
        """What a hook or the server says about a rejection, in parentheses: it has the reason, if anything has."""
        lines = [line.removeprefix("error: ") for line in self._lines(result)]
        said = [line.removeprefix("remote:").strip() for line in lines if line.startswith(("remote:", "remote unpack"))]
        text = "; ".join(dict.fromkeys(filter(None, said)))[:500]
        return f" ({text})" if text else ""

    def _lines(self, result: GitResult) -> list[str]:
        """The lines of standard error, without secrets."""
        stderr = result.stderr.replace(self._address, self.url)  # the user may have written it in a form unlike git's
        return [masked_urls(line.strip()) for line in stderr.splitlines()]


def _text(file: _Object | None) -> str:
    return file.content.decode(errors="replace") if file is not None and file.kind == "blob" else ""


def _push_result(porcelain: str, ref: str) -> tuple[str, str]:
    """The flag and the reason for our ref; two empty texts if the output does not mention it."""
    for line in porcelain.splitlines():
        flag, _, rest = line.partition("\t")
        refs, _, reason = rest.partition("\t")
        if refs.endswith(f":{ref}") and len(flag) == 1:
            return flag, reason
    return "", ""
