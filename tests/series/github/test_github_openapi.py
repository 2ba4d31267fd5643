"""The local GitHub against GitHub's own description: what it answers has the form of what GitHub answers, and what the
service sends is what GitHub takes.

Three levels: the models of githubkit, which are made from the description and are always here; the description itself
(``make github-schema``); and GitHub's GraphQL schema, which the queries of the service are checked against.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
from typing import Any

import httpx
import jsonschema
import pytest
from githubkit.compat import type_validate_python
from githubkit_schemas.latest import models

from asterism.series.github.github_client import RequestRejected
from asterism.series.register import RegisterUnavailable, RevisionConflict
from tests.series.github.github_fixtures import environ, merged, opened, sync, world_of
from tests.series.github.github_openapi import FOLDER, MISSING
from tests.series.github.github_server import GitHubServer
from tests.series.github.github_world import World

openapi_is_here = pytest.mark.skipif(not (FOLDER / "openapi.json").exists(), reason=MISSING)
graphql_is_here = pytest.mark.skipif(
    not (FOLDER / "graphql").exists() or shutil.which("node") is None, reason=f"{MISSING}, and node"
)


@pytest.fixture(scope="module")
def traffic() -> GitHubServer:
    """A server that has been asked everything it can answer, by the service as far as the service asks."""
    with GitHubServer(world_of(3), listening=True) as server:
        sync(server, "announce")
        server.call(lambda world: world.assign(3, "robot", by_hand=True))
        merged(server, 1)
        sync(server, "announce")
        labels = {"active_label": "series-active", "queued_label": "series-queued"}
        server.call(lambda world: world.unassign(2, "robot", by="ada"))
        sync(server, **labels)
        server.call(lambda world: world.remove_label(world.issue(2), "series-active"))
        server.call(lambda world: world.add_label(world.issue(2), "series-queued"))
        sync(server, **labels)
        sync(server, assignee="copilot-swe-agent")
        server.call(lambda world: world.transfer(2))
        server.call(lambda world: world.delete(3))
        sync(server)
        asyncio.run(ask_the_rest(server))
    return server


async def ask_the_rest(server: GitHubServer) -> None:
    register = opened(server)
    client = register.client
    await register.history("RFC-093", 5)
    token = await register.tip("RFC-093")
    await client.get(f"git/commits/{token}")
    await client.get("git/ref/asterism/series/RFC-093")
    await client.get("issues/4/comments")
    server.call(lambda world: world.search_index.append(1))
    await client.get("/search/issues", {"q": "x"})
    await client.send("POST", "issues/4/labels", {"labels": ["more"]})
    for path in ("issues/3", "issues/77", "issues/2", "git/ref/asterism/series/none", "nothing/of/that/kind"):
        with pytest.raises(RequestRejected):
            await client.get(path)
    for method, path, body in (
        ("POST", "issues", {"title": ""}),
        ("PATCH", "issues/4", {"state": "ajar"}),
        ("POST", "git/refs", {"ref": "refs/heads/main", "sha": token}),
        ("POST", "labels", {"name": "Series-Active", "color": "ededed"}),
        ("DELETE", "issues/4/labels/no-such-label", None),
        ("POST", "git/commits", {"tree": "0" * 40, "message": "x", "parents": []}),
    ):
        with pytest.raises(RequestRejected):
            await client.send(method, path, body)
    with pytest.raises(RevisionConflict):
        await register.swap("RFC-093", None, "{}", "x")
    server.call(lambda world: setattr(world, "empty", True))
    with pytest.raises(RegisterUnavailable):
        await register.names()
    server.call(lambda world: setattr(world, "empty", False))
    server.tokens.clear()
    with pytest.raises(RegisterUnavailable):
        await client.get("issues/4")
    await register.close()


# -- the models --------------------------------------------------------------------------------------------------------

MODELS: list[tuple[str, str, int, Any]] = [
    ("GET", r"rocket/issues$", 200, list[models.Issue]),
    ("POST", r"/issues$", 201, models.Issue),
    ("GET", r"/issues/\d+$", 200, models.Issue),
    ("PATCH", r"/issues/\d+$", 200, models.Issue),
    ("POST", r"/assignees$", 201, models.Issue),
    ("DELETE", r"/assignees$", 200, models.Issue),
    ("GET", r"/comments$", 200, list[models.IssueComment]),
    ("POST", r"/comments$", 201, models.IssueComment),
    ("GET", r"/git/matching-refs/", 200, list[models.GitRef]),
    ("GET", r"/git/ref/", 200, models.GitRef),
    ("POST", r"/git/refs$", 201, models.GitRef),
    ("POST", r"/git/trees$", 201, models.GitTree),
    ("POST", r"/git/commits$", 201, models.GitCommit),
    ("GET", r"/git/commits/", 200, models.GitCommit),
    ("GET", r"acme/rocket/commits$", 200, list[models.Commit]),
    ("POST", r"/issues/\d+/labels$", 200, list[models.Label]),
    ("DELETE", r"/issues/\d+/labels/", 200, list[models.Label]),
    ("POST", r"rocket/labels$", 201, models.Label),
]


def test_what_the_local_github_answers_fits_the_models_of_githubkit(traffic):
    used = set()
    for method, path, status, form in traffic.bodies:
        for place, (wanted, pattern, code, model) in enumerate(MODELS):
            if (method, status) == (wanted, code) and re.search(pattern, path):
                type_validate_python(model, form)
                used.add(place)
    assert used == set(range(len(MODELS)))


# -- the description ---------------------------------------------------------------------------------------------------


class Description:
    """GitHub's OpenAPI description, as JSON Schema understands it."""

    def __init__(self) -> None:
        self.document = without_nullable(json.loads((FOLDER / "openapi.json").read_text("utf-8")))
        self.paths = [
            (
                re.compile(re.sub(r"\\{ref\\}", "(.+)", re.sub(r"\\{(?!ref\\})\w+\\}", "([^/]+)", re.escape(path)))),
                methods,
            )
            for path, methods in self.document["paths"].items()
        ]

    def operation(self, method: str, path: str) -> dict[str, Any]:
        operations = [
            methods[method.lower()]
            for pattern, methods in self.paths
            if pattern.fullmatch(path) and method.lower() in methods
        ]
        assert operations, f"GitHub has no {method} {path}"
        return operations[0]

    def check(self, schema: dict[str, Any], value: Any) -> None:
        validator = jsonschema.Draft202012Validator({**schema, "components": self.document["components"]})
        error = jsonschema.exceptions.best_match(validator.iter_errors(value))
        assert error is None, f"{error.json_path}: {error.message[:300]}"

    def resolved(self, thing: dict[str, Any]) -> dict[str, Any]:
        while "$ref" in thing:
            target: Any = self.document
            for part in thing["$ref"].removeprefix("#/").split("/"):
                target = target[part]
            thing = target
        return thing


def without_nullable(thing: Any) -> Any:
    """OpenAPI 3.0 says ``nullable`` where JSON Schema says that null is one of the types."""
    if isinstance(thing, list):
        return [without_nullable(element) for element in thing]
    if not isinstance(thing, dict):
        return thing
    changed = {key: without_nullable(value) for key, value in thing.items() if key not in ("nullable", "example")}
    if thing.get("nullable") is True:
        return {"anyOf": [changed, {"type": "null"}]}
    return changed


@pytest.fixture(scope="module")
def description() -> Description:
    return Description()


@openapi_is_here
def test_what_the_local_github_answers_is_what_github_describes(traffic, description):
    statuses = set()
    for method, path, status, form in traffic.bodies:
        if path == "/graphql" or path.endswith("/kind") or status == 304:
            continue
        responses = description.operation(method, path)["responses"]
        # A refusal of the credentials, or of a thing that is not there, is described once for all operations.
        response = responses.get(str(status)) or {"$ref": "#/components/responses/not_found"}
        assert str(status) in responses or status in (401, 404, 301, 410), f"{method} {path} does not answer {status}"
        content = description.resolved(response).get("content", {})
        for kind in content.values():
            description.check(kind["schema"], form)
        statuses.add(status)
    assert {200, 201, 301, 401, 404, 409, 410, 422} <= statuses


@openapi_is_here
def test_what_the_service_sends_is_what_github_takes(traffic, description):
    sent = 0
    for method, path, posted in traffic.posted:
        if path == "/graphql" or posted.get("title") == "" or posted.get("state") == "ajar":
            continue
        body = description.operation(method, path).get("requestBody")
        assert body, f"{method} {path} takes no body"
        schema = description.resolved(body)["content"]["application/json"]["schema"]
        description.check(schema, posted)
        known = set(description.resolved(schema).get("properties", {}))
        assert not known or set(posted) <= known, (method, path, set(posted) - known)
        sent += 1
    assert sent > 20


@openapi_is_here
def test_a_form_that_is_not_githubs_is_noticed(traffic, description):
    form = next(form for method, path, status, form in traffic.bodies if path.endswith("/issues/1") and status == 200)
    schema = {"$ref": "#/components/schemas/issue"}
    description.check(schema, form)
    for wrong in (
        {**form, "number": "1"},
        {**form, "state_reason": "bored"},
        {k: v for k, v in form.items() if k != "url"},
    ):
        with pytest.raises(AssertionError):
            description.check(schema, wrong)


# -- GraphQL -----------------------------------------------------------------------------------------------------------

NEWER = re.compile(r"suggestedActors|replaceActorsForAssignable|ReplaceActorsForAssignableInput|assignedActors")
"""Documented by GitHub, and later than the schema that the registry has."""

CHECK = """
const {buildSchema, parse, validate} = require(process.argv[1]);
const fs = require('fs');
const schema = buildSchema(fs.readFileSync(process.argv[2], 'utf8'), {assumeValidSDL: true});
const queries = JSON.parse(fs.readFileSync(0, 'utf8'));
console.log(JSON.stringify(queries.map(query => validate(schema, parse(query)).map(error => error.message))));
"""


@graphql_is_here
@pytest.mark.long
def test_the_queries_of_the_service_are_valid_in_githubs_schema(traffic):
    queries = sorted({posted["query"] for _, path, posted in traffic.posted if path == "/graphql"})
    queries.append('query { repository(owner: "a", name: "b") { nothingOfThatKind } }')
    words = ["node", "-e", CHECK, str(FOLDER / "graphql"), str(FOLDER / "schema.graphql")]
    done = subprocess.run(words, input=json.dumps(queries), capture_output=True, text=True, check=True)
    *answers, nonsense = json.loads(done.stdout)
    assert nonsense != []
    for query, errors in zip(queries, answers, strict=False):
        unexpected = [error for error in errors if not NEWER.search(error)]
        assert unexpected == [], (query, unexpected)
    assert len([errors for errors in answers if not errors]) >= 4


# -- what it does ------------------------------------------------------------------------------------------------------


def test_the_last_who_writes_an_issue_wins_whatever_it_was_told_to_match():
    with GitHubServer(world_of(1), listening=True) as server:
        headers = {"Authorization": f"token {environ(server)['GITHUB_TOKEN']}"}
        url = f"{server.url}/repos/acme/rocket/issues/1"
        etag = httpx.get(url, headers=headers).headers["etag"]
        server.call(lambda world: setattr(world.issue(1), "body", "meanwhile"))
        answer = httpx.patch(url, headers={**headers, "If-Match": etag}, json={"body": "mine"})
        assert (answer.status_code, server.world.issue(1).body) == (200, "mine")


def test_a_search_lags_behind_and_a_list_does_not():
    with GitHubServer(world_of(2), listening=True) as server:
        headers = {"Authorization": f"token {environ(server)['GITHUB_TOKEN']}"}
        searched = httpx.get(f"{server.url}/search/issues?q=x", headers=headers).json()
        listed = httpx.get(f"{server.url}/repos/acme/rocket/issues", headers=headers).json()
        assert (searched["total_count"], len(listed)) == (0, 2)


def test_the_world_records_two_issues_that_are_assigned_at_once():
    world: World = world_of(2)
    world.assign(1, "robot")
    world.assign(2, "robot", by_hand=True)
    assert (world.doubles, world.collisions) == ([], [])  # people may
    world.unassign(2, "robot")
    world.assign(2, "robot")
    assert len(world.doubles) == 1
    world.unassign(1, "robot")
    world.assign(1, "robot", by_hand=True)
    world.unassign(2, "robot")
    world.assign(2, "robot")
    assert (len(world.doubles), len(world.collisions)) == (1, 1)
