"""The things of a world in the forms of GitHub's REST API, complete enough for GitHub's own description of them."""

from __future__ import annotations

import base64
from datetime import timedelta
from typing import Any

from tests.series.github.github_world import Issue, Person, World, iso

API = "https://api.github.example"
PLURALS = ("followers", "subscriptions", "organizations", "repos", "received_events")


class Forms:
    """``base`` is the address of the server, so that what is followed leads back to it."""

    def __init__(self, world: World, base: str = API) -> None:
        self.world = world
        self.base = base

    @property
    def repo_url(self) -> str:
        return f"{self.base}/repos/{self.world.owner}/{self.world.repo}"

    def person(self, person: Person) -> dict[str, Any]:
        login = person.shown_as or person.login
        url = f"{self.base}/users/{login}"
        return {
            "login": login,
            "id": person.id,
            "node_id": person.node_id,
            "avatar_url": f"https://avatars.example/u/{person.id}",
            "gravatar_id": "",
            "url": url,
            "html_url": f"https://github.example/{login}",
            **{f"{plural}_url": f"{url}/{plural}" for plural in PLURALS},
            "following_url": f"{url}/following{{/other_user}}",
            "gists_url": f"{url}/gists{{/gist_id}}",
            "starred_url": f"{url}/starred{{/owner}}{{/repo}}",
            "events_url": f"{url}/events{{/privacy}}",
            "type": person.type,
            "site_admin": False,
        }

    def label(self, name: str) -> dict[str, Any]:
        return {
            "id": self.world.labels[name],
            "node_id": f"LA_{self.world.labels[name]}",
            "url": f"{self.repo_url}/labels/{name}",
            "name": name,
            "color": "ededed",
            "default": False,
            "description": None,
            "archived_at": None,
            "archived_by": None,
            **self.world.label_forms.get(name, {}),
        }

    def issue(self, issue: Issue) -> dict[str, Any]:
        url = f"{self.repo_url}/issues/{issue.number}"
        html = f"https://github.example/{self.world.owner}/{self.world.repo}"
        assignees = [self.person(person) for person in issue.assignees]
        form = {
            "url": url,
            "repository_url": self.repo_url,
            "labels_url": f"{url}/labels{{/name}}",
            "comments_url": f"{url}/comments",
            "events_url": f"{url}/events",
            "timeline_url": f"{url}/timeline",
            "html_url": f"{html}/{'pull' if issue.is_pull else 'issues'}/{issue.number}",
            "id": 70000 + issue.number,
            "node_id": issue.node_id,
            "number": issue.number,
            "title": issue.title,
            "user": self.person(issue.author),
            "labels": [self.label(name) for name in issue.labels],
            "state": issue.state,
            "state_reason": issue.state_reason,
            "locked": False,
            "active_lock_reason": None,
            "assignee": assignees[0] if assignees else None,
            "assignees": assignees,
            "milestone": None,
            "comments": len(issue.comments),
            "created_at": iso(issue.created_at),
            "updated_at": iso(issue.updated_at),
            "closed_at": iso(issue.closed_at) if issue.closed_at else None,
            "author_association": "MEMBER",
            "body": issue.body,
            "performed_via_github_app": None,
        }
        if issue.is_pull:
            pull = f"{self.repo_url}/pulls/{issue.number}"
            form["pull_request"] = {
                "url": pull,
                "html_url": form["html_url"],
                "diff_url": f"{form['html_url']}.diff",
                "patch_url": f"{form['html_url']}.patch",
                "merged_at": iso(issue.merged_at) if issue.merged_at else None,
            }
        return form

    def comment(self, issue: Issue, note: dict[str, Any]) -> dict[str, Any]:
        return {
            "id": note["id"],
            "node_id": f"IC_{note['id']}",
            "url": f"{self.repo_url}/issues/comments/{note['id']}",
            "html_url": f"https://github.example/c/{note['id']}",
            "issue_url": f"{self.repo_url}/issues/{issue.number}",
            "user": self.person(note["user"]),
            "created_at": iso(note["at"]),
            "updated_at": iso(note["at"]),
            "author_association": "MEMBER",
            "body": note["body"],
        }

    def ref(self, name: str) -> dict[str, Any]:
        sha = self.world.refs[name]
        kind = self.world.objects[sha][0]
        return {
            "ref": name,
            "node_id": "REF_" + base64.urlsafe_b64encode(name.encode()).decode(),
            "url": f"{self.repo_url}/git/{name}",
            "object": {"sha": sha, "type": kind, "url": f"{self.repo_url}/git/{kind}s/{sha}"},
        }

    def tree(self, sha: str) -> dict[str, Any]:
        entries = self.world.objects[sha][1]
        return {
            "sha": sha,
            "url": f"{self.repo_url}/git/trees/{sha}",
            "tree": [
                {
                    "path": name,
                    "mode": "100644",
                    "type": "blob",
                    "sha": blob,
                    "size": len(self.world.objects[blob][1].encode()),
                    "url": f"{self.repo_url}/git/blobs/{blob}",
                }
                for name, blob in sorted(entries.items())
            ],
            "truncated": False,
        }

    def git_commit(self, commit: dict[str, Any]) -> dict[str, Any]:
        url = f"{self.repo_url}/git/commits/{commit['sha']}"
        return {
            "sha": commit["sha"],
            "node_id": f"C_{commit['sha']}",
            "url": url,
            "html_url": f"https://github.example/commit/{commit['sha']}",
            "author": commit["who"],
            "committer": commit["who"],
            "tree": {"sha": commit["tree"], "url": f"{self.repo_url}/git/trees/{commit['tree']}"},
            "message": commit["message"],
            "parents": [
                {
                    "sha": parent,
                    "url": f"{self.repo_url}/git/commits/{parent}",
                    "html_url": f"https://github.example/commit/{parent}",
                }
                for parent in commit["parents"]
            ],
            "verification": {
                "verified": False,
                "reason": "unsigned",
                "signature": None,
                "payload": None,
                "verified_at": None,
            },
        }

    def listed_commit(self, commit: dict[str, Any]) -> dict[str, Any]:
        """As the list of commits has it, which wraps the commit of git in one of GitHub."""
        inner = self.git_commit(commit)
        url = f"{self.repo_url}/commits/{commit['sha']}"
        return {
            **{key: inner[key] for key in ("sha", "node_id", "html_url", "parents")},
            "url": url,
            "comments_url": f"{url}/comments",
            "author": None,
            "committer": None,
            "commit": {
                **{key: inner[key] for key in ("url", "author", "committer", "message", "tree", "verification")},
                "comment_count": 0,
            },
        }

    def installation(self, app_id: int, number: int) -> dict[str, Any]:
        now = iso(self.world.clock)
        return {
            "id": number,
            "account": self.person(self.world.people["ada"]),
            "repository_selection": "selected",
            "access_tokens_url": f"{self.base}/app/installations/{number}/access_tokens",
            "repositories_url": f"{self.base}/installation/repositories",
            "html_url": f"https://github.example/installations/{number}",
            "app_id": app_id,
            "target_id": 1,
            "target_type": "Organization",
            "permissions": {"issues": "write", "contents": "write", "metadata": "read"},
            "events": ["issues", "pull_request"],
            "created_at": now,
            "updated_at": now,
            "single_file_name": None,
            "app_slug": "asterism",
            "suspended_by": None,
            "suspended_at": None,
        }

    def installation_token(self, token: str, now: Any) -> dict[str, Any]:
        return {
            "token": token,
            "expires_at": iso(now + timedelta(hours=1)),
            "permissions": {"issues": "write", "contents": "write"},
            "repository_selection": "selected",
        }
