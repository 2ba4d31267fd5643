"""Bad input at a server: one sentence each with what to do, the documented exit code, and nothing half done."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from asterism import Client
from asterism.api import client as api_client
from asterism.api.client_errors import ApiError, ServerUnreachable
from tests.cli.command_scenes import Scene
from tests.cli.raw_server import VERSION, answer, problem, raw_server

RUNS = answer(200, {"items": [], "next": None, "now": 1.0})
HTML = answer(502, b"<html>Bad gateway</html>", {}, "text/html")
OLD = {"asterism-version": "0.0.9"}
UNKNOWN_FIELD = {"violations": [{"edit": None, "rule": "unknown", "message": "waiting: not permitted"}]}


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_client, "PAUSE", 0.0)


@pytest.mark.parametrize(
    ("sent", "code", "sentence", "requests"),
    [
        ([problem(401, "x", "a token is needed")], 64, r"a token is needed; log in with: asterism login http", 1),
        ([problem(401, "x", "this token is unknown, expired or revoked")], 64, r"expired or revoked; log in with", 1),
        ([problem(403, "scope-missing", "this needs the scope observe")], 64, "this needs the scope observe", 1),
        ([HTML], 69, r"status 502 and text/html, which is no answer of an Asterism server: check the address", 5),
        ([answer(200, b"<html>", {}, "text/html")], 64, r"status 200 and text/html, which is no answer", 1),
        ([answer(200, b"<html>", {"location": "x"}, "text/html")], 64, r"no answer of an Asterism server", 1),
        (
            [answer(307, b"", {"location": "https://u:p@b.example"})],
            64,
            r"redirects to https://\S*b.example; give",
            1,
        ),
        ([RUNS[:-4]], 69, r"closed the connection or did not answer in time", 5),
        ([b""], 69, r"closed the connection or did not answer in time", 5),
        ([answer(200, b'{"items": [')], 64, r"the answer of http://\S+ cannot be read", 1),
        ([problem(503, "store-unavailable", "the store is unavailable: try again later")], 69, "store is unavail", 5),
        ([problem(429, "x", "too many: wait 90 s", {**VERSION, "retry-after": "90"})], 69, "too many: wait 90 s", 1),
        (
            [problem(404, "unknown-path", "there is no /x", OLD)],
            64,
            r"has no operation list_runs: it has version 0.0.9",
            1,
        ),
        (
            [problem(422, "invalid-request", "not valid", OLD, **UNKNOWN_FIELD)],
            64,
            r"does not know this of list_runs: waiting; it has version 0.0.9, and this is \S+: use the same version",
            1,
        ),
        (
            [problem(422, "invalid-request", "not valid", **UNKNOWN_FIELD)],
            64,
            r"does not know this of list_runs: waiting; it is older than this program, and has to be updated",
            1,
        ),
        (
            [answer(200, {"new": []}, {"asterism-version": "9.9"})],
            64,
            r"to list_runs cannot be read: it has version 9.9",
            1,
        ),
        ([b"", HTML, problem(503, "x", "later"), RUNS], 0, "", 4),
        ([problem(429, "x", "wait", {**VERSION, "retry-after": "0"}), RUNS], 0, "", 2),
    ],
    ids=lambda value: None if isinstance(value, list | int) else str(value)[:30],
)
def test_each_bad_answer_has_one_sentence(
    sent: list[bytes], code: int, sentence: str, requests: int, tmp_path: Path
) -> None:
    scene = Scene(tmp_path)
    with raw_server(*sent) as server:
        result = scene.run("runs", "list", ASTERISM_STORE=server.url, ASTERISM_TOKEN="ast_x")
    assert result.exit_code == code, result.output
    if code:
        assert result.stdout == ""
        assert re.search(sentence, result.stderr), result.stderr
        assert result.stderr.count("\n") == 1
    assert len(server.requests) == requests
    for first, headers, _ in server.requests:
        assert first.startswith("GET /api/v1/runs?")
        assert headers["asterism-version"]
        assert headers["authorization"] == "Bearer ast_x"
        assert "idempotency-key" not in headers
    assert "u:p" not in result.output


@pytest.mark.parametrize(
    ("store", "code", "sentence"),
    [
        ("http://asterism.example", 64, "a token is sent to another machine only over https"),
        ("https://ann:secret@asterism.example", 64, "the address of a server has no login"),
        ("http://127.0.0.1:9", 69, "does not answer: .*; check the address, and whether it runs"),
        ("https://", 64, "is not the address of a server"),
    ],
)
def test_each_bad_address_has_one_sentence(store: str, code: int, sentence: str, tmp_path: Path) -> None:
    result = Scene(tmp_path).run("runs", "list", ASTERISM_STORE=store, ASTERISM_TOKEN="ast_x")
    assert (result.exit_code, result.stdout) == (code, "")
    assert re.search(sentence, result.stderr), result.stderr
    assert "secret" not in result.stderr


def test_the_scheme_of_an_address_may_be_in_upper_case() -> None:
    with Client("HTTPS://Host:7400/", "x") as client:
        assert client.url == "https://Host:7400"
        context = client._client._http._transport._pool._ssl_context  # type: ignore[attr-defined]
        assert context.cert_store_stats()["x509_ca"]  # certificates are verified, with those that the machine trusts


def test_the_repeats_of_a_change_have_one_key() -> None:
    with (
        raw_server(b"", problem(503, "x", "later"), answer(201, {"id": "7c"})) as server,
        Client(server.url, "x") as client,
        pytest.raises(ApiError, match="cannot be read"),
    ):
        client.create_run("echo")
    keys = {headers["idempotency-key"] for _, headers, _ in server.requests}
    assert len(server.requests) == 3
    assert len(keys) == 1
    assert {body for _, _, body in server.requests} == {b'{"workflow":"echo"}'}


def test_a_change_whose_outcome_is_unknown_says_so() -> None:
    with (
        raw_server(b"") as server,
        Client(server.url, "ast_x") as client,
        pytest.raises(ServerUnreachable, match="unknown whether cancel_run"),
    ):
        client.cancel_run("7c")
    assert len(server.requests) == api_client.MOST_TRIES


def test_a_login_is_not_repeated_since_its_code_may_be_used_up() -> None:
    with (
        raw_server(b"") as server,
        Client(server.url) as client,
        pytest.raises(ServerUnreachable, match="the code may be used up: ask for a new one"),
    ):
        client.redeem_login("code")
    assert len(server.requests) == 1


def test_a_command_on_the_store_itself_says_that_it_is_no_server(tmp_path: Path) -> None:
    result = Scene(tmp_path).run("store", "check", ASTERISM_STORE="http://127.0.0.1:9")
    assert result.exit_code == 64
    assert "http://127.0.0.1:9 is a server." in result.stderr
