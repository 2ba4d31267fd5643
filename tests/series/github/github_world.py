"""What a GitHub keeps, for tests: one repository with issues, pull requests, labels, people and git objects.

Every change goes through a method, so that the check sees it: at no instant may two open issues of a series be
assigned to the bot through the API. What people do by hand (``by_hand``) is recorded separately.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

SERIES = re.compile(r"^([A-Z]+-\d+)-(\d+)\b")
GONE = "gone"


class Refusal(Exception):
    """What the API answers with an error status."""

    def __init__(self, status: int, message: str, **more: Any) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.more = more


@dataclass
class Person:
    login: str
    id: int
    type: str = "User"
    assignable: bool = True
    shown_as: str = ""
    """Its login in REST, where that differs: Copilot is ``copilot-swe-agent`` in GraphQL."""

    @property
    def node_id(self) -> str:
        return f"{'BOT' if self.type == 'Bot' else 'U'}_{self.id}"


@dataclass
class Issue:
    number: int
    title: str
    body: str | None
    author: Person
    created_at: datetime
    updated_at: datetime
    labels: list[str] = field(default_factory=list)
    assignees: list[Person] = field(default_factory=list)
    state: str = "open"
    state_reason: str | None = None
    closed_at: datetime | None = None
    closers: list[Any] = field(default_factory=list)
    """One for each time it was closed: the number of a pull request, the sha of a commit, or None."""
    unassigned: list[tuple[Person, str, datetime]] = field(default_factory=list)
    """Who was unassigned, by whom, and when by the clock of the server."""
    comments: list[dict[str, Any]] = field(default_factory=list)
    moved_to: str | None = None
    is_pull: bool = False
    merged: bool = False
    merged_at: datetime | None = None
    closes: list[int] = field(default_factory=list)
    by_api: set[str] = field(default_factory=set)
    """Whose assignments here came through the API and have stood, open, ever since."""

    @property
    def node_id(self) -> str:
        return f"{'PR' if self.is_pull else 'I'}_{self.number}"


class World:
    """``clock`` is moved by every change, so that times differ without a wait."""

    def __init__(self, owner: str = "acme", repo: str = "rocket", bot: str = "robot") -> None:
        self.owner, self.repo, self.bot = owner, repo, bot
        self.node_id = "R_4242"
        self.clock = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)
        self.issues: dict[int, Issue | str] = {}
        self.labels: dict[str, int] = {}
        self.label_forms: dict[str, dict[str, Any]] = {}
        """Colour and description of those that were made with them."""
        self.people: dict[str, Person] = {}
        self.objects: dict[str, tuple[str, Any]] = {}
        self.refs: dict[str, str] = {}
        self.empty = False
        self.doubles: list[str] = []
        """What must not happen, with the instant at which it did."""
        self.collisions: list[str] = []
        """Ours beside what people had assigned or reopened by hand a moment before: nobody could have known."""
        self.assigned_log: list[tuple[str, int, str]] = []
        self.counts: Counter[str] = Counter()
        self.search_index: list[int] = []
        self._ids = itertools.count(1)
        for login, kind in (("ada", "User"), ("grace", "User"), ("service", "User"), (bot, "User")):
            self.add_person(login, kind)
        self.add_person("stranger", assignable=False)
        copilot = self.add_person("copilot-swe-agent", "Bot")
        copilot.shown_as = "Copilot"
        tree = self.put_tree([("README", self.put_blob("hello\n"))])
        self.refs["refs/heads/main"] = self.put_commit(tree, [], "begin")["sha"]

    # -- people and issues ---------------------------------------------------------------------------------------------

    def add_person(self, login: str, type: str = "User", assignable: bool = True) -> Person:
        person = self.people[login.lower()] = Person(login, 1000 + next(self._ids), type, assignable)
        return person

    def person(self, login: str) -> Person | None:
        """By either of its logins; REST takes ``copilot-swe-agent[bot]`` too."""
        wanted = login.lower().removesuffix("[bot]")
        for person in self.people.values():
            if wanted in (person.login.lower(), person.shown_as.lower()):
                return person
        return None

    def tick(self) -> datetime:
        self.clock += timedelta(seconds=1)
        return self.clock

    def add_issue(self, title: str, body: str | None = None, labels: list[str] | None = None, by: str = "ada") -> Issue:
        now = self.tick()
        number = len(self.issues) + 1
        issue = Issue(number, title, body, self.people[by], now, now)
        self.issues[number] = issue
        self.counts["issues created"] += 1
        for label in labels or []:
            self.add_label(issue, label)
        return issue

    def add_label(self, issue: Issue, name: str) -> None:
        """In the letters in which the repository has it already: to GitHub the case makes no other label."""
        name = next((known for known in self.labels if known.lower() == name.lower()), name)
        self.labels.setdefault(name, 5000 + next(self._ids))
        if name not in issue.labels:
            issue.labels.append(name)

    def make_label(self, name: str, form: dict[str, Any]) -> str:
        if any(known.lower() == name.lower() for known in self.labels):
            raise Refusal(422, "Validation Failed", code="already_exists", resource="Label", field="name")
        self.labels[name] = 5000 + next(self._ids)
        self.label_forms[name] = form
        self.counts["labels made"] += 1
        return name

    def remove_label(self, issue: Issue, name: str) -> None:
        matching = [label for label in issue.labels if label.lower() == name.lower()]
        if not matching:
            raise Refusal(404, "Label does not exist")
        issue.labels.remove(matching[0])
        issue.updated_at = self.tick()

    def issue(self, number: int) -> Issue:
        """Raises what GitHub answers for one that is not there: 404, 410 for deleted, 301 for transferred."""
        issue = self.issues.get(number)
        if issue is None:
            raise Refusal(404, "Not SeriesIssue")
        if issue == GONE:
            raise Refusal(410, "This issue was deleted")
        assert isinstance(issue, Issue)
        if issue.moved_to:
            raise Refusal(301, "Moved Permanently", location=issue.moved_to)
        return issue

    def listed(self) -> list[Issue]:
        """Newest first, as GitHub lists them."""
        return [
            issue
            for _, issue in sorted(self.issues.items(), reverse=True)
            if isinstance(issue, Issue) and not issue.moved_to
        ]

    def assign(self, number: int, login: str, by_hand: bool = False) -> Issue:
        """A login that cannot be assigned is ignored without a word."""
        issue, person = self.issue(number), self.person(login)
        if person is None or not person.assignable or person in issue.assignees:
            return issue
        issue.assignees.append(person)
        issue.updated_at = self.tick()
        self.assigned_log.append(("assign", number, person.login))
        if not by_hand and issue.state == "open":
            issue.by_api.add(person.login)
        self._check_duplicates(issue, person, by_hand)
        return issue

    def unassign(self, number: int, login: str, by: str = "ada") -> Issue:
        issue, person = self.issue(number), self.person(login)
        if person is not None and person in issue.assignees:
            issue.assignees.remove(person)
            issue.by_api.discard(person.login)
            issue.updated_at = self.tick()
            self.assigned_log.append(("unassign", number, person.login))
            issue.unassigned.append((person, by, datetime.now(UTC)))
        return issue

    def _check_duplicates(self, issue: Issue, person: Person, by_hand: bool) -> None:
        """Two assignments through the API that both still stand are a duplicate of ours. One of ours beside one that
        a person made is not."""
        if person.login != self.bot and person.login != "copilot-swe-agent":
            return
        same = [other for other in self.active_of(series_of(issue.title), person.login) if other is not issue]
        if issue.state != "open" or not same or by_hand:
            return
        ours = any(person.login in other.by_api for other in same)
        told = f"{self.clock}: #{issue.number} beside {[other.number for other in same]}"
        (self.doubles if ours else self.collisions).append(told)

    def active_of(self, series: str | None, login: str | None = None) -> list[Issue]:
        """The open issues of a series that the bot is assigned to."""
        wanted = self.person(login or self.bot)
        return [
            issue
            for issue in self.listed()
            if issue.state == "open" and series_of(issue.title) == series and wanted in issue.assignees
        ]

    def close(self, number: int, reason: str = "completed", closer: Any = None) -> None:
        issue = self.issue(number)
        issue.state, issue.state_reason = "closed", reason
        issue.closed_at = issue.updated_at = self.tick()
        issue.closers.append(closer)
        issue.by_api.clear()

    def reopen(self, number: int) -> None:
        issue = self.issue(number)
        issue.state, issue.state_reason, issue.closed_at = "open", "reopened", None
        issue.updated_at = self.tick()

    def delete(self, number: int) -> None:
        self.issues[number] = GONE

    def transfer(self, number: int, to: str = "acme/elsewhere") -> None:
        issue = self.issue(number)
        issue.moved_to = f"/repos/{to}/issues/{number}"

    def open_pull(self, title: str, closes: list[int]) -> Issue:
        pull = self.add_issue(title)
        pull.is_pull, pull.closes = True, closes
        return pull

    def merge(self, number: int) -> None:
        """Closes what it closes, as a merge into the default branch does."""
        pull = self.issue(number)
        pull.merged, pull.merged_at = True, self.tick()
        self.close(number)
        for closed in pull.closes:
            if isinstance(self.issues[closed], Issue) and self.issue(closed).state == "open":
                self.close(closed, closer=number)

    def comment(self, number: int, body: str, by: str) -> dict[str, Any]:
        issue = self.issue(number)
        now = issue.updated_at = self.tick()
        note = {"id": 9000 + next(self._ids), "body": body, "user": self.people[by], "at": now}
        issue.comments.append(note)
        return note

    # -- git objects ---------------------------------------------------------------------------------------------------

    def _put(self, kind: str, raw: bytes, value: Any) -> str:
        sha = hashlib.sha1(b"%s %d\0" % (kind.encode(), len(raw)) + raw, usedforsecurity=False).hexdigest()
        self.objects[sha] = (kind, value)
        return sha

    def put_blob(self, text: str) -> str:
        return self._put("blob", text.encode(), text)

    def put_tree(self, entries: list[tuple[str, str]]) -> str:
        raw = b"".join(b"100644 %s\0%s" % (name.encode(), bytes.fromhex(sha)) for name, sha in sorted(entries))
        return self._put("tree", raw, dict(entries))

    def put_commit(
        self, tree: str, parents: list[str], message: str, by: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        if self.objects.get(tree, ("", None))[0] != "tree":
            raise Refusal(422, "Tree SHA does not exist")
        for parent in parents:
            if self.objects.get(parent, ("", None))[0] != "commit":
                raise Refusal(422, "Parent SHA does not exist or is not a commit object")
        who = {"name": "service", "email": "service@example.org", "date": iso(self.clock), **(by or {})}
        line = f"{who['name']} <{who['email']}> {int(datetime.fromisoformat(who['date']).timestamp())} +0000"
        lines = [f"tree {tree}", *(f"parent {parent}" for parent in parents), f"author {line}", f"committer {line}"]
        commit = {"tree": tree, "parents": parents, "message": message, "who": who}
        sha = self._put("commit", ("\n".join(lines) + "\n\n" + message).encode(), commit)
        return {**commit, "sha": sha}

    def commit(self, sha: str) -> dict[str, Any]:
        kind, value = self.objects.get(sha, ("", None))
        if kind != "commit":
            raise Refusal(404, "Not SeriesIssue")
        return {**value, "sha": sha}

    def descends(self, sha: str, ancestor: str) -> bool:
        todo = [sha]
        while todo:
            commit = todo.pop()
            if commit == ancestor:
                return True
            kind, value = self.objects[commit]
            todo += value["parents"] if kind == "commit" else []
        return False

    def create_ref(self, name: str, sha: str) -> None:
        if self.empty:
            raise Refusal(409, "Git Repository is empty.")
        if not re.fullmatch(r"refs/[^/]+/.+", name) or re.search(r"\.\.|[ ~^:?*\[\\]|//|\.lock$|/$|@\{", name):
            raise Refusal(422, f"{name} is not a valid ref name.")
        if self.objects.get(sha, ("", None))[0] != "commit":
            raise Refusal(422, "Object does not exist")
        if name in self.refs:
            raise Refusal(422, "Reference already exists")
        self.refs[name] = sha

    def update_refs(self, updates: list[dict[str, Any]]) -> str | None:
        """All or nothing; a sentence says why nothing was done."""
        zero = "0" * 40
        for update in updates:
            current = self.refs.get(update["name"], zero)
            after = update["afterOid"]
            if update.get("beforeOid") is not None and update["beforeOid"] != current:
                return f"reference {update['name']} is at {current} but expected {update['beforeOid']}"
            if after != zero and self.objects.get(after, ("", None))[0] != "commit":
                return f"object {after} does not exist"
            if current != zero and after != zero and not update.get("force") and not self.descends(after, current):
                return f"update of {update['name']} is not a fast-forward"
        for update in updates:
            if update["afterOid"] == zero:
                self.refs.pop(update["name"], None)
            else:
                self.refs[update["name"]] = update["afterOid"]
        return None

    # -- for tests -----------------------------------------------------------------------------------------------------

    def documents(self, prefix: str = "refs/asterism/series/") -> dict[str, str]:
        """The text each of these refs stands for."""
        documents = {}
        for name, sha in self.refs.items():
            if name.startswith(prefix):
                tree = self.objects[self.objects[sha][1]["tree"]][1]
                documents[name.removeprefix(prefix)] = self.objects[next(iter(tree.values()))][1]
        return documents

    def write_document(self, ref: str, text: str, file: str) -> None:
        """What a careless person with a git program does."""
        tree = self.put_tree([(file, self.put_blob(text))])
        parents = [self.refs[ref]] if ref in self.refs else []
        self.refs[ref] = self.put_commit(tree, parents, "by hand")["sha"]

    def assigned_by_series(self) -> dict[str, list[int]]:
        """For each series, the open issues that the bot is assigned to."""
        numbers: dict[str, list[int]] = defaultdict(list)
        for issue in self.listed():
            series = series_of(issue.title)
            if series and issue.state == "open" and self.people[self.bot.lower()] in issue.assignees:
                numbers[series].append(issue.number)
        return dict(numbers)


def series_of(title: str) -> str | None:
    match = SERIES.match(title)
    return match[1] if match else None


def iso(when: datetime) -> str:
    return when.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
