"""What the local GitHub answers to each request of the REST API, and where GraphQL is let in."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tests.series.github.github_graphql import GraphQL
from tests.series.github.github_payloads import Forms
from tests.series.github.github_world import Issue, Refusal

if TYPE_CHECKING:
    from tests.series.github.github_server import GitHubServer

Answer = tuple[int, Any, dict[str, str]]


class Routes:
    def __init__(self, server: GitHubServer) -> None:
        self.server, self.world = server, server.world
        self.forms = Forms(self.world, server.url)
        self.graphql = GraphQL(self.world)
        repo = f"/repos/{self.world.owner}/{self.world.repo}"
        self.table: list[tuple[str, re.Pattern[str], Callable[..., Answer]]] = [
            (method, re.compile(pattern.replace("REPO", repo)), handler)
            for method, pattern, handler in (
                ("POST", "/graphql", self._graphql),
                ("GET", "REPO/issues", self._list_issues),
                ("POST", "REPO/issues", self._create_issue),
                ("GET", r"REPO/issues/(\d+)", self._get_issue),
                ("PATCH", r"REPO/issues/(\d+)", self._edit_issue),
                ("POST", r"REPO/issues/(\d+)/assignees", self._assign),
                ("DELETE", r"REPO/issues/(\d+)/assignees", self._unassign),
                ("POST", r"REPO/issues/(\d+)/labels", self._add_labels),
                ("DELETE", r"REPO/issues/(\d+)/labels/(.+)", self._remove_label),
                ("POST", "REPO/labels", self._make_label),
                ("GET", r"REPO/issues/(\d+)/comments", self._comments),
                ("POST", r"REPO/issues/(\d+)/comments", self._comment),
                ("GET", "REPO/git/matching-refs/(.*)", self._matching_refs),
                ("GET", "REPO/git/ref/(.*)", self._get_ref),
                ("POST", "REPO/git/refs", self._create_ref),
                ("POST", "REPO/git/trees", self._create_tree),
                ("POST", "REPO/git/commits", self._create_commit),
                ("GET", "REPO/git/commits/([0-9a-f]+)", self._get_commit),
                ("GET", "REPO/commits", self._list_commits),
                ("GET", "/search/issues", self._search),
                ("GET", "REPO/installation", self._installation),
                ("POST", r"/app/installations/(\d+)/access_tokens", self._access_token),
            )
        ]

    def known(self, path: str, headers: dict[str, str]) -> bool:
        """Whether the credentials are right: an App's own for what is the App's, a token for the rest."""
        scheme, _, secret = headers["authorization"].partition(" ")
        if path.startswith("/app/") or path.endswith("/installation"):
            return scheme == "Bearer" and self._is_app(secret)
        return secret in self.server.tokens

    def _is_app(self, secret: str) -> bool:
        if self.server.app_key is None:
            return False
        import jwt

        try:
            return bool(jwt.decode(secret, self.server.app_key, algorithms=["RS256"])["iss"] == "77")
        except jwt.PyJWTError:
            return False

    def answer(self, method: str, path: str, query: dict[str, str], headers: dict[str, str], body: bytes) -> Answer:
        self.login = self.server.tokens.get(headers["authorization"].partition(" ")[2], "service")
        self.query, self.path = query, path
        for allowed, pattern, handler in self.table:
            match = pattern.fullmatch(path)
            if match and allowed == method:
                posted = json.loads(body) if body else {}
                arguments = [int(group) if group.isdigit() and len(group) < 12 else group for group in match.groups()]
                return handler(*arguments, **({"posted": posted} if method != "GET" else {}))
        raise Refusal(404, "Not SeriesIssue")

    def _page(self, things: list[Any]) -> Answer:
        """With ``Link`` if there is more."""
        size, page = int(self.query.get("per_page", 30)), int(self.query.get("page", 1))
        extra = {}
        if page * size < len(things):
            others = "&".join(f"{key}={value}" for key, value in self.query.items() if key != "page")
            address = f"{self.server.url}{self.path}?{others}"
            last = -(-len(things) // size)
            extra["Link"] = f'<{address}&page={page + 1}>; rel="next", <{address}&page={last}>; rel="last"'
        return 200, things[(page - 1) * size : page * size], extra

    # -- issues --------------------------------------------------------------------------------------------------------

    def _list_issues(self) -> Answer:
        state, assignee = self.query.get("state", "open"), self.query.get("assignee")
        labels = [label.lower() for label in self.query.get("labels", "").split(",") if label]
        people = self.world.person(assignee) if assignee and assignee != "*" else None
        if assignee and assignee != "*" and people is None:
            raise Refusal(422, "Validation Failed")
        issues = [
            self.forms.issue(issue)
            for issue in self.world.listed()
            if state in ("all", issue.state)
            and set(labels) <= {label.lower() for label in issue.labels}
            and (not assignee or people in issue.assignees or (assignee == "*" and issue.assignees))
        ]
        return self._page(issues[::-1] if self.query.get("direction") == "asc" else issues)

    def _create_issue(self, posted: dict[str, Any]) -> Answer:
        if not posted.get("title"):
            raise Refusal(422, "Validation Failed")
        issue = self.world.add_issue(posted["title"], posted.get("body"), posted.get("labels"), by=self.login)
        return 201, self.forms.issue(issue), {}

    def _get_issue(self, number: int) -> Answer:
        return 200, self.forms.issue(self.world.issue(number)), {}

    def _edit_issue(self, number: int, posted: dict[str, Any]) -> Answer:
        """There is no ``If-Match``: the last who writes wins."""
        issue = self.world.issue(number)
        if posted.get("state") not in (None, "open", "closed"):
            raise Refusal(422, "Validation Failed")
        for field in ("title", "body"):
            if field in posted:
                setattr(issue, field, posted[field])
        if "labels" in posted:
            issue.labels = []
            for label in posted["labels"]:
                self.world.add_label(issue, label)
        issue.updated_at = self.world.tick()
        if posted.get("state") == "closed" and issue.state == "open":
            self.world.close(number, posted.get("state_reason") or "completed")
        elif posted.get("state") == "open" and issue.state == "closed":
            self.world.reopen(number)
        return 200, self.forms.issue(issue), {}

    def _assign(self, number: int, posted: dict[str, Any]) -> Answer:
        for login in posted.get("assignees", []):
            self.world.assign(number, login)
        return 201, self.forms.issue(self.world.issue(number)), {}

    def _unassign(self, number: int, posted: dict[str, Any]) -> Answer:
        for login in posted.get("assignees", []):
            self.world.unassign(number, login, by=self.login)
        return 200, self.forms.issue(self.world.issue(number)), {}

    def _add_labels(self, number: int, posted: dict[str, Any]) -> Answer:
        issue = self.world.issue(number)
        for label in posted["labels"]:
            self.world.add_label(issue, label)
        return 200, [self.forms.label(name) for name in issue.labels], {}

    def _remove_label(self, number: int, name: Any, posted: dict[str, Any]) -> Answer:
        issue = self.world.issue(number)
        self.world.remove_label(issue, str(name))
        return 200, [self.forms.label(label) for label in issue.labels], {}

    def _make_label(self, posted: dict[str, Any]) -> Answer:
        form: dict[str, Any] = {key: posted[key] for key in ("color", "description") if key in posted}
        return 201, self.forms.label(self.world.make_label(posted["name"], form)), {}

    def _comments(self, number: int) -> Answer:
        issue = self.world.issue(number)
        return self._page([self.forms.comment(issue, note) for note in issue.comments])

    def _comment(self, number: int, posted: dict[str, Any]) -> Answer:
        note = self.world.comment(number, posted["body"], by=self.login)
        return 201, self.forms.comment(self.world.issue(number), note), {}

    def _search(self) -> Answer:
        """What was true when it was last indexed."""
        issues = [self.world.issues[number] for number in self.world.search_index]
        items = [
            {**self.forms.issue(issue), "score": 1.0, "body": issue.body or ""}
            for issue in issues
            if isinstance(issue, Issue)
        ]
        form = {"total_count": len(items), "incomplete_results": False, "items": items, "search_type": "lexical"}
        return 200, form, {}

    # -- git -----------------------------------------------------------------------------------------------------------

    def _there_is_git(self) -> None:
        if self.world.empty:
            raise Refusal(409, "Git Repository is empty.")

    def _matching_refs(self, prefix: str) -> Answer:
        self._there_is_git()
        names = sorted(name for name in self.world.refs if name.startswith(f"refs/{prefix}"))
        return self._page([self.forms.ref(name) for name in names])

    def _get_ref(self, name: str) -> Answer:
        self._there_is_git()
        if f"refs/{name}" not in self.world.refs:
            raise Refusal(404, "Not SeriesIssue")
        return 200, self.forms.ref(f"refs/{name}"), {}

    def _create_ref(self, posted: dict[str, Any]) -> Answer:
        self.world.create_ref(posted["ref"], posted["sha"])
        return 201, self.forms.ref(posted["ref"]), {}

    def _create_tree(self, posted: dict[str, Any]) -> Answer:
        self._there_is_git()
        entries = [(entry["path"], self.world.put_blob(entry["content"])) for entry in posted["tree"]]
        return 201, self.forms.tree(self.world.put_tree(entries)), {}

    def _create_commit(self, posted: dict[str, Any]) -> Answer:
        commit = self.world.put_commit(
            posted["tree"], posted.get("parents", []), posted["message"], posted.get("author")
        )
        return 201, self.forms.git_commit(commit), {}

    def _get_commit(self, sha: str) -> Answer:
        return 200, self.forms.git_commit(self.world.commit(sha)), {}

    def _list_commits(self) -> Answer:
        commits, sha = [], self.query.get("sha") or self.world.refs["refs/heads/main"]
        while sha:
            commit = self.world.commit(sha)
            commits.append(self.forms.listed_commit(commit))
            sha = commit["parents"][0] if commit["parents"] else ""
        return self._page(commits)

    # -- GraphQL and credentials ---------------------------------------------------------------------------------------

    def _graphql(self, posted: dict[str, Any]) -> Answer:
        if self.server.limit.remaining <= 0 and time.time() < self.server.limit.reset:
            return 200, {"errors": [{"type": "RATE_LIMITED", "message": "API rate limit exceeded"}]}, {}
        self.graphql.login = self.login
        return 200, self.graphql.answer(posted), {}

    def _installation(self) -> Answer:
        return 200, self.forms.installation(77, 7), {}

    def _access_token(self, number: int, posted: dict[str, Any]) -> Answer:
        if number != 7:
            raise Refusal(404, "Not SeriesIssue")
        token = f"ghs_{len(self.server.tokens)}"
        self.server.tokens[token] = "service"
        return 201, self.forms.installation_token(token, datetime.now(UTC)), {}
