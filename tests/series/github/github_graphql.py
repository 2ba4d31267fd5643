"""As much of GraphQL as the service asks for, over a world. It is parsed for real, so that a field or an argument that
does not exist is answered as GitHub answers it, with status 200 and ``errors``."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from tests.series.github.github_world import Issue, Person, World, iso

TOKENS = re.compile(r'"(?:[^"\\]|\\.)*"|\.\.\.|[A-Za-z_]\w*|\$[A-Za-z_]\w*|-?\d+|[{}()\[\]:!=,]|\s+|#[^\n]*')


class GraphQLError(Exception):
    def __init__(self, message: str, type: str | None = None, path: list[str] | None = None) -> None:
        super().__init__(message)
        self.form = {"message": message, **({"type": type} if type else {}), **({"path": path} if path else {})}


class Enum(str):
    """A literal that is neither a string nor a variable."""


# -- reading -----------------------------------------------------------------------------------------------------------


class Reader:
    def __init__(self, text: str) -> None:
        tokens = TOKENS.findall(text)
        if "".join(tokens) != text:
            raise GraphQLError("Parse error on unexpected letters")
        self.tokens = [token for token in tokens if token.strip() and token != "," and not token.startswith("#")]
        self.place = 0

    def peek(self) -> str:
        return self.tokens[self.place] if self.place < len(self.tokens) else ""

    def take(self, wanted: str | None = None) -> str:
        token = self.peek()
        if not token or (wanted and token != wanted):
            raise GraphQLError(f"Parse error on {token!r}, expected {wanted!r}")
        self.place += 1
        return token

    def document(self) -> tuple[str, list[Any], set[str]]:
        kind = self.take() if self.peek() in ("query", "mutation") else "query"
        if re.match(r"[A-Za-z_]", self.peek()):
            self.take()
        declared = self._declared() if self.peek() == "(" else set()
        chosen = self.selection()
        if self.peek():
            raise GraphQLError(f"Parse error on {self.peek()!r}")
        return kind, chosen, declared

    def _declared(self) -> set[str]:
        names = set()
        self.take("(")
        while self.peek() != ")":
            token = self.take()
            if token.startswith("$"):
                names.add(token[1:])
        self.take(")")
        return names

    def selection(self) -> list[Any]:
        """(response key, field, arguments, selection), or (None, type, {}, selection) for an inline fragment."""
        chosen: list[Any] = []
        self.take("{")
        while self.peek() != "}":
            if self.peek() == "...":
                self.take()
                self.take("on")
                chosen.append((None, self.take(), {}, self.selection()))
                continue
            key = field = self.take()
            if self.peek() == ":":
                self.take()
                field = self.take()
            arguments = self._arguments() if self.peek() == "(" else {}
            chosen.append((key, field, arguments, self.selection() if self.peek() == "{" else None))
        self.take("}")
        return chosen

    def _arguments(self, end: str = ")") -> dict[str, Any]:
        self.take()
        arguments = {}
        while self.peek() != end:
            name = self.take()
            self.take(":")
            arguments[name] = self._value()
        self.take(end)
        return arguments

    def _value(self) -> Any:
        token = self.peek()
        if token == "[":
            self.take()
            values = []
            while self.peek() != "]":
                values.append(self._value())
            self.take("]")
            return values
        if token == "{":
            return self._arguments("}")
        self.take()
        if token.startswith('"'):
            return token[1:-1].encode().decode("unicode_escape")
        if token.startswith("$"):
            return ("variable", token[1:])
        if re.fullmatch(r"-?\d+", token):
            return int(token)
        return {"true": True, "false": False, "null": None}.get(token, Enum(token))


# -- answering ---------------------------------------------------------------------------------------------------------


class GraphQL:
    """``answer`` takes what was posted, and whether the token may write."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.login = "service"
        """Whose token it is."""

    def answer(self, posted: dict[str, Any], before_effect: Callable[[], None] = lambda: None) -> dict[str, Any]:
        errors: list[dict[str, Any]] = []
        try:
            kind, chosen, declared = Reader(posted.get("query", "")).document()
            variables = posted.get("variables") or {}
            missing = declared - set(variables)
            if missing:
                raise GraphQLError(f"Variable ${missing.pop()} of required type was provided invalid value")
            root = self._query() if kind == "query" else self._mutations()
            before_effect()
            data = self._object(root, chosen, variables, [], errors)
        except GraphQLError as error:
            return {"errors": [error.form]}
        return {"data": data, **({"errors": errors} if errors else {})}

    def _object(self, thing: dict[str, Any], chosen: Any, variables: Any, path: list[str], errors: list[Any]) -> Any:
        answer: dict[str, Any] = {}
        for key, field, arguments, inner in chosen:
            if key is None:
                if thing["__typename"] == field:
                    answer.update(self._object(thing, inner, variables, path, errors))
                continue
            if field not in thing:
                raise GraphQLError(f"Field '{field}' doesn't exist on type '{thing['__typename']}'")
            value = thing[field]
            try:
                if callable(value):
                    value = value(**_filled(arguments, variables))
            except TypeError as error:
                raise GraphQLError(f"Field '{field}' doesn't accept these arguments ({error})") from None
            except GraphQLError as error:
                errors.append({**error.form, "path": [*path, key]})
                answer[key] = None
                continue
            answer[key] = self._value(value, inner, variables, [*path, key], errors)
        return answer

    def _value(self, value: Any, inner: Any, variables: Any, path: list[str], errors: list[Any]) -> Any:
        if isinstance(value, list):
            return [self._value(element, inner, variables, path, errors) for element in value]
        if isinstance(value, dict):
            return self._object(value, inner or [], variables, path, errors)
        return value

    # -- queries

    def _query(self) -> dict[str, Any]:
        viewer = {"__typename": "User", "login": self.login}
        return {"__typename": "Query", "repository": self._repository, "node": self._node, "viewer": viewer}

    def _repository(self, owner: str, name: str) -> dict[str, Any]:
        if (owner.lower(), name.lower()) != (self.world.owner, self.world.repo):
            raise GraphQLError(f"Could not resolve to a Repository with the name '{owner}/{name}'.", "NOT_FOUND")
        return {
            "__typename": "Repository",
            "id": self.world.node_id,
            "object": self._revision,
            "issue": self._issue_by_number,
            "suggestedActors": self._suggested,
        }

    def _revision(self, expression: str | None = None, oid: str | None = None) -> dict[str, Any] | None:
        sha, _, file = (expression or oid or "").partition(":")
        kind, value = self.world.objects.get(sha, ("", None))
        if kind != "commit" and file:
            return None
        if file:
            blob = self.world.objects[value["tree"]][1].get(file)
            kind, value = self.world.objects[blob] if blob else ("", None)
        if kind == "blob":
            return {"__typename": "Blob", "text": value}
        return {"__typename": "Commit", "oid": sha, "message": value["message"]} if kind == "commit" else None

    def _issue_by_number(self, number: int) -> dict[str, Any]:
        issue = self.world.issues.get(number)
        if not isinstance(issue, Issue) or issue.moved_to or issue.is_pull:
            raise GraphQLError(f"Could not resolve to an Issue with the number of {number}.", "NOT_FOUND")
        return self._issue(issue)

    def _issue(self, issue: Issue) -> dict[str, Any]:
        return {
            "__typename": "Issue",
            "id": issue.node_id,
            "number": issue.number,
            "state": issue.state.upper(),
            "assignedActors": lambda first: _connection([self._actor(person) for person in issue.assignees[:first]]),
            "timelineItems": lambda itemTypes, last: _connection(self._timeline(issue, itemTypes)[-last:]),
        }

    def _timeline(self, issue: Issue, kinds: list[str]) -> list[dict[str, Any]]:
        if kinds == ["CLOSED_EVENT"]:
            return [self._closed(closer) for closer in issue.closers]
        assert kinds == ["UNASSIGNED_EVENT"], kinds
        return [
            {
                "__typename": "UnassignedEvent",
                "id": f"UE_{issue.number}_{place}",
                "createdAt": iso(at),
                "actor": self._actor(self.world.people[by.lower()]),
                "assignee": self._actor(person),
            }
            for place, (person, by, at) in enumerate(issue.unassigned)
        ]

    def _closed(self, closer: Any) -> dict[str, Any]:
        form: dict[str, Any] | None = None
        if isinstance(closer, int):
            pull = self.world.issues[closer]
            assert isinstance(pull, Issue)
            form = {"__typename": "PullRequest", "number": closer, "merged": pull.merged, "id": pull.node_id}
        elif closer:
            form = {"__typename": "Commit", "oid": closer}
        return {"__typename": "ClosedEvent", "closer": form, "createdAt": iso(self.world.clock)}

    def _actor(self, person: Person) -> dict[str, Any]:
        return {"__typename": person.type, "id": person.node_id, "login": person.login}

    def _suggested(
        self, capabilities: list[str], first: int, after: str | None = None, loginNames: str | None = None
    ) -> dict[str, Any]:
        assert capabilities == ["CAN_BE_ASSIGNED"], capabilities
        people = [person for person in self.world.people.values() if person.assignable]
        begin = int(after or 0)
        page = _connection([self._actor(person) for person in people[begin : begin + first]])
        page["pageInfo"].update(hasNextPage=begin + first < len(people), endCursor=str(begin + first))
        return page

    def _node(self, id: str) -> dict[str, Any] | None:
        for issue in self.world.listed():
            if issue.node_id == id:
                return self._issue(issue)
        raise GraphQLError(f"Could not resolve to a node with the global id of '{id}'", "NOT_FOUND")

    # -- mutations

    def _mutations(self) -> dict[str, Any]:
        return {"__typename": "Mutation", "updateRefs": self._update_refs, "replaceActorsForAssignable": self._replace}

    def _update_refs(self, input: dict[str, Any]) -> dict[str, Any]:
        if input["repositoryId"] != self.world.node_id:
            raise GraphQLError(
                f"Could not resolve to a node with the global id of '{input['repositoryId']}'", "NOT_FOUND"
            )
        refusal = self.world.update_refs(input["refUpdates"])
        if refusal:
            raise GraphQLError(refusal, "UNPROCESSABLE")
        return {"__typename": "UpdateRefsPayload", "clientMutationId": input.get("clientMutationId")}

    def _replace(self, input: dict[str, Any]) -> dict[str, Any]:
        issue = next((listed for listed in self.world.listed() if listed.node_id == input["assignableId"]), None)
        if issue is None:
            raise GraphQLError("Could not resolve to a node with the global id", "NOT_FOUND")
        wanted = {person.node_id: person for person in self.world.people.values()}
        unknown = [id for id in input["actorIds"] if id not in wanted]
        if unknown:
            raise GraphQLError(f"Could not resolve to a node with the global id of '{unknown[0]}'", "NOT_FOUND")
        logins = [wanted[id].login for id in input["actorIds"]]
        for person in list(issue.assignees):
            if person.login not in logins:
                self.world.unassign(issue.number, person.login, by=self.login)
        for login in logins:
            self.world.assign(issue.number, login)
        return {"__typename": "ReplaceActorsForAssignablePayload", "assignable": self._issue(issue)}


def _connection(nodes: list[dict[str, Any]]) -> dict[str, Any]:
    page = {"__typename": "PageInfo", "hasNextPage": False, "endCursor": None}
    return {"__typename": "Connection", "nodes": nodes, "totalCount": len(nodes), "pageInfo": page}


def _filled(value: Any, variables: dict[str, Any]) -> Any:
    if isinstance(value, dict):
        return {key: _filled(element, variables) for key, element in value.items()}
    if isinstance(value, list):
        return [_filled(element, variables) for element in value]
    if isinstance(value, tuple):
        if value[1] not in variables:
            raise GraphQLError(f"Variable ${value[1]} is used but not declared")
        return variables[value[1]]
    return value
