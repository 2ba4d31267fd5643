"""Series in refs of a GitHub repository, without git: the same refs, commits and files as git_register.py makes, so
that both can be used side by side.

A change is a commit of its own (a random word in its message makes it unlike any other) whose parent is the state that
was read. The first is put in place with "create a reference", which fails if there is one; all others with the mutation
``updateRefs``, whose ``beforeOid`` is what the ref has to point to. Both refuse without a code that could be relied on,
so after a refusal the ref is read: it tells whether somebody was first, or the change was not allowed.

GitHub answers from several copies of what it keeps, and one of them may lag behind. A commit that was named a moment
ago and is not known is therefore no empty state, it is not there yet (RegisterUnavailable). And a repository that the
credentials may not see is answered with 404, as a ref that is not there is: so refs are listed, where 404 means the
repository alone.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any
from urllib.parse import quote

from asterism.core.errors import safe_repr
from asterism.series.github.github_client import GitHubClient, Refused, said
from asterism.series.register import (
    REF_PREFIX,
    STATE_FILE,
    Change,
    Moved,
    RegisterUnavailable,
    Snapshot,
    Unsure,
    commit_message,
    name_of,
    ref_of,
    said_in,
)

ROOM = "refs/asterism/"
AT_ONCE = 100
"""Texts that one question asks for."""

_SWAP = "mutation($input: UpdateRefsInput!) { updateRefs(input: $input) { clientMutationId } }"


class GitHubRegister:
    """``kind`` is the folder of the refs below ``refs/asterism/``: that of the states of series, unless it is said."""

    def __init__(self, client: GitHubClient, kind: str = "series") -> None:
        self.client = client
        self._prefix = f"{ROOM}{kind}/"
        self._not_commits: set[str] = set()

    @property
    def url(self) -> str:
        return self.client.url

    def clock(self) -> float:
        return self.client.clock()

    def ref_of(self, name: str) -> str:
        return self._prefix + ref_of(name).removeprefix(REF_PREFIX)

    def name_of(self, ref: str) -> str | None:
        if not ref.startswith(self._prefix):
            return None
        return name_of(REF_PREFIX + ref.removeprefix(self._prefix))

    # -- reading -------------------------------------------------------------------------------------------------------

    async def read(self, name: str) -> Snapshot:
        token = await self.tip(name)
        if token is None:
            return Snapshot(None, None)
        return Snapshot(self.text_of(token, await self.texts([token])), token)

    async def read_all(self) -> dict[str, Snapshot]:
        """All series with two questions."""
        heads = await self.heads()
        tokens = {name: token for ref, token in heads.items() if (name := self.name_of(ref)) is not None}
        texts = await self.texts(tokens.values())
        return {name: Snapshot(self.text_of(token, texts), token) for name, token in tokens.items()}

    async def tip(self, name: str) -> str | None:
        """What the ref of a series points to."""
        ref = self.ref_of(name)
        return (await self._matching(ref)).get(ref)

    async def heads(self) -> dict[str, str]:
        """Every ref of ours with what it points to, of all kinds, in one question."""
        return await self._matching(ROOM)

    async def _matching(self, beginning: str) -> dict[str, str]:
        """The refs that begin so: more than the one that is meant, where the name of another begins with it."""
        try:
            found = await self.client.pages(f"git/matching-refs/{quote(beginning.removeprefix('refs/'))}", {})
        except Refused as refused:
            if refused.status == 404:
                raise RegisterUnavailable(f"there is no {self.url}, or the credentials may not see it") from None
            raise self._without_commits(refused) from None
        try:
            return {str(one["ref"]): self._target(one) for one in found}
        except (KeyError, TypeError):
            raise RegisterUnavailable(f"GitHub answered {safe_repr(found)} where refs were asked for") from None

    def _target(self, form: Any) -> str:
        try:
            sha = str(form["object"]["sha"])
            if form["object"]["type"] != "commit":
                self._not_commits.add(sha)
        except (KeyError, TypeError):
            raise RegisterUnavailable(f"GitHub answered {safe_repr(form)} where a ref was asked for") from None
        return sha

    async def texts(self, tokens: Iterable[str]) -> dict[str, str]:
        """What each commit has in its file. One without the file has an empty text, which no series would have written:
        it is not free. One that GitHub does not know (yet) is left out."""
        known: dict[str, str] = {}
        missing = []
        for token in dict.fromkeys(tokens):
            text = self.client.cache.text(token)
            if text is None:
                missing.append(token)
            else:
                known[token] = text
        for start in range(0, len(missing), AT_ONCE):
            known.update(await self._asked_texts(missing[start : start + AT_ONCE]))
        return known

    def text_of(self, token: str, texts: Mapping[str, str]) -> str:
        """Raises RegisterUnavailable for a commit that was named, and is not known where it was asked for."""
        if token not in texts:
            raise RegisterUnavailable(
                f"{self.url} names the commit {token[:12]} and does not know it yet: the copy that was asked is behind"
            )
        return texts[token]

    async def _asked_texts(self, tokens: list[str]) -> dict[str, str]:
        if not all(token.isalnum() and token.isascii() for token in tokens):
            raise RegisterUnavailable(f"GitHub named a commit {safe_repr(tokens)}")
        wanted = " ".join(
            f'c{place}: object(expression: "{token}") {{ __typename }} '
            f'o{place}: object(expression: "{token}:{STATE_FILE}") {{ ... on Blob {{ text }} }}'
            for place, token in enumerate(tokens)
        )
        repository = await self._repository(wanted)
        found = {}
        for place, token in enumerate(tokens):
            if repository.get(f"c{place}") is None:
                continue
            blob = repository.get(f"o{place}")
            found[token] = (blob.get("text") or "") if isinstance(blob, dict) else ""
            self.client.cache.keep_text(token, found[token])
        return found

    async def _repository(self, wanted: str) -> dict[str, Any]:
        query = f"query($owner: String!, $name: String!) {{ repository(owner: $owner, name: $name) {{ id {wanted} }} }}"
        data, errors = await self.client.ask(query, {"owner": self.client.owner, "name": self.client.name})
        repository = data.get("repository")
        if errors or not isinstance(repository, dict) or not isinstance(repository.get("id"), str):
            raise RegisterUnavailable(f"{self.url} cannot be read: {said(errors)}")
        self.client.cache.keep_text("repository id", repository["id"])
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
                found = await self.client.get("commits", asked)
            except Refused as refused:
                raise RegisterUnavailable(f"the history of series {name} cannot be read: {refused}") from None
            commits += found
            if len(found) < size:
                break
            page += 1
        commits = commits[:limit]
        texts = await self.texts(str(one["sha"]) for one in commits)
        return [
            Change(
                datetime.fromisoformat(one["commit"]["committer"]["date"]).timestamp(),
                said_in(one["commit"]["message"]),
                self.text_of(one["sha"], texts),
                one["sha"],
            )
            for one in commits
        ]

    # -- writing -------------------------------------------------------------------------------------------------------

    async def swap(self, name: str, expected: str | None, text: str, message: str) -> str:
        ref = self.ref_of(name)
        commit = await self._committed(name, expected, text, message)
        try:
            if expected is None:
                await self.client.send("POST", "git/refs", {"ref": ref, "sha": commit}, again=False)
                refusal = ""
            else:
                refusal = await self._updated(ref, expected, commit)
        except Refused as refused:
            refusal = str(refused)
        if refusal:
            await self._judge(name, expected, commit, refusal)
        self.client.cache.keep_text(commit, text)
        return commit

    async def _updated(self, ref: str, expected: str, commit: str) -> str:
        update = {
            "name": ref,
            "beforeOid": expected,
            "afterOid": commit,
            "force": expected in self._not_commits,  # nothing can be made to follow what is no commit
        }
        repository = self.client.cache.text("repository id")
        if repository is None:
            repository = str((await self._repository(""))["id"])
        _, errors = await self.client.ask(
            _SWAP, {"input": {"repositoryId": repository, "refUpdates": [update]}}, again=False
        )
        return said(errors) if errors else ""

    async def _judge(self, name: str, expected: str | None, commit: str, refusal: str) -> None:
        """Returns if it is there all the same, and raises what the refusal means."""
        tip = await self.tip(name)
        if tip == commit:
            return
        if tip != expected:
            raise Moved(name)
        raise RegisterUnavailable(f"{self.url} takes no change of series {name}: {refusal}")

    async def _committed(self, name: str, parent: str | None, text: str, message: str) -> str:
        """A commit that nobody sees yet: if it goes wrong nothing has happened."""
        entry = {"path": STATE_FILE, "mode": "100644", "type": "blob", "content": text}
        parents = [parent] if parent is not None and parent not in self._not_commits else []
        words = commit_message(message, uuid.uuid4().hex)
        try:
            tree = await self.client.send("POST", "git/trees", {"tree": [entry]})
            body = {"message": words, "tree": tree["sha"], "parents": parents}
            return str((await self.client.send("POST", "git/commits", body))["sha"])
        except Unsure as error:
            raise RegisterUnavailable(str(error)) from None
        except Refused as refused:
            if parent is not None and await self.tip(name) != parent:  # what it should follow is not there any more
                raise Moved(name) from None
            raise self._without_commits(refused) from None
        except (KeyError, TypeError):
            raise RegisterUnavailable(f"{self.url} made no commit and did not say why") from None

    def _without_commits(self, refused: Refused) -> RegisterUnavailable:
        if refused.status == 409:
            return RegisterUnavailable(f"{self.url} has no commit yet, so it can hold no series: push something first")
        if refused.status == 404:
            return RegisterUnavailable(f"there is no {self.url}, or the credentials may not write to it")
        return RegisterUnavailable(str(refused))

    async def close(self) -> None:
        await self.client.close()
