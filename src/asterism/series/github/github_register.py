"""A register in the refs of a GitHub repository, through the API instead of the ``git`` program.

Refs, commits and files are the same as those of ``git_register``, so both can be used side by side.

A change is a commit of its own, made unique by a nonce in its message, whose parent is the state that was read. The
first commit is put in place by "create a reference", which fails if the ref exists; all others by the mutation
``updateRefs``, whose ``beforeOid`` is the commit that the ref has to point to. Neither refuses with a reliable code, so
after a refusal the ref is read: it tells a conflict from a change that is not allowed.

GitHub answers from several replicas, and one of them may be stale. A commit that was named a moment ago and is unknown
is therefore not an empty state: it raises RegisterUnavailable. A repository that the credentials may not see answers
404, like a missing ref. So refs are listed, where 404 can only mean the repository.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from asterism.base.text import masked_url
from asterism.core.errors import safe_repr
from asterism.core.json_values import JsonObject
from asterism.series.github.github_client import (
    MAX_RATE_LIMIT_WAIT,
    Connection,
    GitHubClient,
    RequestRejected,
    ResponseCache,
    credentials_from,
    graphql_reason,
    scope_of,
)
from asterism.series.register import (
    STATE_FILE,
    Change,
    OutcomeUnknown,
    RegisterUnavailable,
    RevisionConflict,
    SeriesError,
    Snapshot,
    commit_message,
    decode_name,
    encode_name,
    message_of_change,
)

DEFAULT_API = "https://api.github.com"
REF_ROOT = "refs/asterism/"
TEXTS_PER_QUERY = 100

_SWAP = "mutation($input: UpdateRefsInput!) { updateRefs(input: $input) { clientMutationId } }"


class GitHubRegister:
    """A register in the refs ``refs/asterism/KIND/*``. The kind of the states of series is ``series``."""

    def __init__(self, client: GitHubClient, kind: str = "series") -> None:
        self.client = client
        self._prefix = f"{REF_ROOT}{kind}/"
        self._not_commits: set[str] = set()

    @property
    def url(self) -> str:
        return self.client.url

    def clock(self) -> float:
        return self.client.clock()

    def ref_of(self, name: str) -> str:
        return self._prefix + encode_name(name)

    def name_of(self, ref: str) -> str | None:
        return decode_name(ref.removeprefix(self._prefix)) if ref.startswith(self._prefix) else None

    # -- reading -------------------------------------------------------------------------------------------------------

    async def read(self, name: str) -> Snapshot:
        token = await self.tip(name)
        if token is None:
            return Snapshot(None, None)
        return Snapshot(self.text_of(token, await self.texts([token])), token)

    async def read_all(self) -> dict[str, Snapshot]:
        """Every series, with two requests."""
        heads = await self.heads()
        tokens = {name: token for ref, token in heads.items() if (name := self.name_of(ref)) is not None}
        texts = await self.texts(tokens.values())
        return {name: Snapshot(self.text_of(token, texts), token) for name, token in tokens.items()}

    async def tip(self, name: str) -> str | None:
        """The commit that the ref of a series points to."""
        ref = self.ref_of(name)
        return (await self._matching(ref)).get(ref)

    async def heads(self) -> dict[str, str]:
        """The refs of all kinds with the commits that they point to, in one request."""
        return await self._matching(REF_ROOT)

    async def _matching(self, prefix: str) -> dict[str, str]:
        """The refs with this prefix, which may be more than the one of this name."""
        try:
            refs = await self.client.get_all(f"git/matching-refs/{quote(prefix.removeprefix('refs/'))}", {})
        except RequestRejected as refused:
            if refused.status == 404:
                raise RegisterUnavailable(f"{self.url} does not exist, or the credentials may not read it") from None
            raise self._commit_error(refused) from None
        try:
            return {str(ref["ref"]): self._target(ref) for ref in refs}
        except (KeyError, TypeError):
            raise RegisterUnavailable(f"GitHub answered {safe_repr(refs)} instead of refs") from None

    def _target(self, form: Any) -> str:
        try:
            sha = str(form["object"]["sha"])
            if form["object"]["type"] != "commit":
                self._not_commits.add(sha)
        except (KeyError, TypeError):
            raise RegisterUnavailable(f"GitHub answered {safe_repr(form)} instead of a ref") from None
        return sha

    async def texts(self, tokens: Iterable[str]) -> dict[str, str]:
        """The content of the state file of each commit.

        Without the file it is an empty text, which is unreadable, not free. A commit that GitHub does not know (yet) is
        left out."""
        known: dict[str, str] = {}
        missing = []
        for token in dict.fromkeys(tokens):
            text = self.client.cache.text(token)
            if text is None:
                missing.append(token)
            else:
                known[token] = text
        for start in range(0, len(missing), TEXTS_PER_QUERY):
            known.update(await self._query_texts(missing[start : start + TEXTS_PER_QUERY]))
        return known

    def text_of(self, token: str, texts: Mapping[str, str]) -> str:
        """The text of a commit. Raises RegisterUnavailable for one that a stale replica does not know yet."""
        if token not in texts:
            raise RegisterUnavailable(
                f"{self.url} names the commit {token[:12]}, but a stale replica of GitHub does not know it yet"
            )
        return texts[token]

    async def _query_texts(self, tokens: list[str]) -> dict[str, str]:
        if not all(token.isalnum() and token.isascii() for token in tokens):
            raise RegisterUnavailable(f"GitHub answered {safe_repr(tokens)} instead of commits")
        wanted = " ".join(
            f'c{place}: object(expression: "{token}") {{ __typename }} '
            f'o{place}: object(expression: "{token}:{STATE_FILE}") {{ ... on Blob {{ text }} }}'
            for place, token in enumerate(tokens)
        )
        repository = await self._query_repository(wanted)
        texts = {}
        for place, token in enumerate(tokens):
            if repository.get(f"c{place}") is None:
                continue
            blob = repository.get(f"o{place}")
            texts[token] = (blob.get("text") or "") if isinstance(blob, dict) else ""
            self.client.cache.put_text(token, texts[token])
        return texts

    async def _query_repository(self, wanted: str) -> JsonObject:
        query = f"query($owner: String!, $name: String!) {{ repository(owner: $owner, name: $name) {{ id {wanted} }} }}"
        data, errors = await self.client.graphql(query, {"owner": self.client.owner, "name": self.client.name})
        repository = data.get("repository")
        if errors or not isinstance(repository, dict) or not isinstance(repository.get("id"), str):
            raise RegisterUnavailable(f"cannot read {self.url}: {graphql_reason(errors)}")
        self.client.cache.put_text("repository id", repository["id"])
        return repository

    async def names(self) -> list[str]:
        return sorted(name for ref in await self.heads() if (name := self.name_of(ref)) is not None)

    async def history(self, name: str, limit: int) -> list[Change]:
        token = await self.tip(name)
        if token is None or limit < 1 or token in self._not_commits:
            return []
        commits: list[Any] = []
        page = 1
        while len(commits) < limit:
            size = min(limit, 100)
            asked = {"sha": token, "per_page": str(size), "page": str(page)}
            try:
                batch = await self.client.get("commits", asked)
            except RequestRejected as refused:
                raise RegisterUnavailable(f"cannot read the history of series {name}: {refused}") from None
            commits += batch
            if len(batch) < size:
                break
            page += 1
        commits = commits[:limit]
        texts = await self.texts(str(commit["sha"]) for commit in commits)
        return [
            Change(
                datetime.fromisoformat(commit["commit"]["committer"]["date"]).timestamp(),
                message_of_change(commit["commit"]["message"]),
                self.text_of(commit["sha"], texts),
                commit["sha"],
            )
            for commit in commits
        ]

    # -- writing -------------------------------------------------------------------------------------------------------

    async def swap(self, name: str, expected: str | None, text: str, message: str) -> str:
        ref = self.ref_of(name)
        commit = await self._commit(name, expected, text, message)
        try:
            if expected is None:
                await self.client.send("POST", "git/refs", {"ref": ref, "sha": commit}, repeatable=False)
                refusal = ""
            else:
                refusal = await self._update_ref(ref, expected, commit)
        except RequestRejected as refused:
            refusal = str(refused)
        if refusal:
            await self._check_refusal(name, expected, commit, refusal)
        self.client.cache.put_text(commit, text)
        return commit

    async def _update_ref(self, ref: str, expected: str, commit: str) -> str:
        """Returns why GitHub refuses; an empty text if it does not."""
        update = {
            "name": ref,
            "beforeOid": expected,
            "afterOid": commit,
            "force": expected in self._not_commits,  # a commit can have no other object as its parent
        }
        repository = self.client.cache.text("repository id")
        if repository is None:
            repository = str((await self._query_repository(""))["id"])
        _, errors = await self.client.graphql(
            _SWAP, {"input": {"repositoryId": repository, "refUpdates": [update]}}, repeatable=False
        )
        return graphql_reason(errors) if errors else ""

    async def _check_refusal(self, name: str, expected: str | None, commit: str, refusal: str) -> None:
        """Return if the ref has the commit after all; otherwise raise what the refusal means."""
        tip = await self.tip(name)
        if tip == commit:
            return
        if tip != expected:
            raise RevisionConflict(name)
        raise RegisterUnavailable(f"{self.url} refuses the change of series {name}: {refusal}")

    async def _commit(self, name: str, parent: str | None, text: str, message: str) -> str:
        """Create a commit. No ref points to it yet, so a failure changes nothing."""
        entry = {"path": STATE_FILE, "mode": "100644", "type": "blob", "content": text}
        parents = [parent] if parent is not None and parent not in self._not_commits else []
        words = commit_message(message, uuid.uuid4().hex)
        try:
            tree = await self.client.send("POST", "git/trees", {"tree": [entry]})
            body = {"message": words, "tree": tree["sha"], "parents": parents}
            return str((await self.client.send("POST", "git/commits", body))["sha"])
        except OutcomeUnknown as error:
            raise RegisterUnavailable(str(error)) from None
        except RequestRejected as refused:
            if parent is not None and await self.tip(name) != parent:  # the parent is no longer there
                raise RevisionConflict(name) from None
            raise self._commit_error(refused) from None
        except (KeyError, TypeError):
            raise RegisterUnavailable(f"{self.url} created no commit and gave no reason") from None

    def _commit_error(self, refused: RequestRejected) -> RegisterUnavailable:
        if refused.status == 409:
            return RegisterUnavailable(f"{self.url} has no commit yet, so it cannot hold a series: push a commit")
        if refused.status == 404:
            return RegisterUnavailable(f"{self.url} does not exist, or the credentials may not write to it")
        return RegisterUnavailable(str(refused))

    async def close(self) -> None:
        await self.client.close()


class BadRepository(SeriesError):
    """Not a valid name of a repository, or address of the API."""


_REPOSITORY = re.compile(r"([A-Za-z0-9][A-Za-z0-9_-]*)/([A-Za-z0-9._-]+)")
"""The login of an enterprise-managed user has an underscore."""


def parse_repository(text: str) -> tuple[str, str]:
    """Owner and name. Raises BadRepository."""
    match = _REPOSITORY.fullmatch(text)
    if match is None or match[2] in (".", ".."):
        raise BadRepository(f"{text!r} is not a valid repository: use the form owner/name")
    return match[1], match[2]


def open_github(
    repository: str,
    *,
    environ: Mapping[str, str] | None = None,
    cache: Path | None = None,
    read_only_cache: bool = False,
    max_wait: float = MAX_RATE_LIMIT_WAIT,
    deadline: float | None = None,
) -> GitHubRegister:
    """The register of a repository. It sends no request yet.

    :param repository: ``owner/name``.
    :param environ: has the credentials (see ``credentials_from``) and the address of the API (GITHUB_API_URL).
    :param cache: a file with cached responses, which is updated unless ``read_only_cache``.
    :param max_wait: the longest wait for rate limits, in seconds.
    :param deadline: the longest time for one operation, in seconds.
    :raises BadRepository: the repository or GITHUB_API_URL is not valid.
    :raises NoCredentials: the environment has no credentials.
    """
    environ = os.environ if environ is None else environ
    owner, name = parse_repository(repository)
    credentials = credentials_from(environ)
    base_url = environ.get("GITHUB_API_URL") or DEFAULT_API
    if urlsplit(base_url).scheme not in ("http", "https") or not urlsplit(base_url).hostname:
        raise BadRepository(f"GITHUB_API_URL is {masked_url(base_url)!r}, which is not a URL such as {DEFAULT_API}")
    scope = scope_of(base_url, owner, name, credentials.token or f"app {credentials.app_id}")
    connection = Connection(base_url, credentials, owner, name)
    known = ResponseCache(cache, scope, read_only_cache)
    return GitHubRegister(GitHubClient(owner, name, connection, known, max_wait=max_wait, deadline=deadline))
