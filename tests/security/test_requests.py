"""Missing and wrong tokens, scopes, foreign hosts and origins, CSRF, sizes and rates."""

from __future__ import annotations

from http.cookies import SimpleCookie

import httpx
import pytest

from asterism.api.credentials import NewToken
from asterism.durable.journal_store import insert_plan
from asterism.server import request_guard
from asterism.server.request_guard import RequestGuard
from tests.durable.durable_scenes import chain
from tests.server.server_scenes import ServerScene, server_scene

ME = "/api/v1/me"
LOGOUT = "/api/v1/logout"


def problem(answer: httpx.Response, status: int) -> str:
    """The detail of a problem document, after its form was checked."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    document = answer.json()
    assert {"type", "title", "status", "detail"} <= document.keys()
    assert document["status"] == status
    return str(document["detail"])


# -- who ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer ", "Basic YTpi", "Bearer nonsense", "ast_x"])
async def test_a_request_without_a_valid_token_is_refused(header: str | None) -> None:
    async with server_scene() as scene, scene.stranger() as client:
        answer = await client.get(ME, headers={} if header is None else {"authorization": header})
        problem(answer, 401)
        assert answer.headers["www-authenticate"].startswith("Bearer")


async def test_the_health_of_the_server_is_public_and_names_nothing() -> None:
    async with server_scene() as scene, scene.stranger() as client:
        answer = await client.get("/api/v1/health")
        assert answer.status_code == 200
        assert answer.json().keys() == {"status", "version"}


async def test_a_revoked_token_is_refused_at_once() -> None:
    async with server_scene() as scene, scene.client("observe") as client:
        identity = client.headers["authorization"].split("_")[1]
        assert (await client.get(ME)).json()["scopes"] == ["observe"]
        await scene.credentials.revoke(identity)
        problem(await client.get(ME), 401)


async def test_too_many_wrong_tokens_have_to_wait_and_right_ones_do_not() -> None:
    async with server_scene() as scene, scene.client() as right, scene.client(token="ast_wrong") as wrong:
        for _ in range(request_guard.MAX_FAILURES):
            problem(await wrong.get(ME), 401)
        answer = await wrong.get(ME)
        assert "too many wrong tokens" in problem(answer, 429)
        assert int(answer.headers["retry-after"]) > 0
        assert (await right.get(ME)).status_code == 200


# -- where from --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["evil.example", "evil.example:7400", "", "127.0.0.1.evil.example", "0.0.0.0:7400"])
async def test_a_foreign_host_is_refused_whatever_the_token(host: str) -> None:
    """DNS rebinding: a page of the attacker, whose name resolves to this machine, sends its own name as the host."""
    async with server_scene() as scene, scene.client() as client:
        for path in (ME, "/", "/api/v1/health", "/login?code=x"):
            assert "host unknown" in problem(await client.get(path, headers={"host": host}), 421)


async def test_without_the_check_of_the_host_a_rebound_name_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ablation."""
    monkeypatch.setattr(RequestGuard, "refusal", lambda *_: None)
    async with server_scene() as scene, scene.client() as client:
        assert (await client.get(ME, headers={"host": "evil.example"})).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:8000"},
        {"origin": "https://127.0.0.1:7400"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site", "sec-fetch-mode": "no-cors"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"},
    ],
)
async def test_a_request_of_a_page_of_another_origin_is_refused(headers: dict[str, str]) -> None:
    async with server_scene() as scene, scene.client() as client:
        assert "are refused" in problem(await client.get(ME, headers=headers), 403)
        assert (await client.get(ME, headers={"origin": "http://127.0.0.1:7400"})).status_code == 200


@pytest.mark.parametrize("name", request_guard.ONLY_ONCE)
async def test_a_header_that_decides_who_calls_occurs_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The guard reads the first, and a proxy in front of it perhaps the second."""
    async with server_scene() as scene, scene.stranger() as client:
        token = f"Bearer {await scene.token()}"
        first = {"host": "127.0.0.1:7400", "origin": "http://127.0.0.1:7400", "authorization": token}
        headers = [*first.items(), (name, first.get(name, "none")), (name, "https://evil.example")]
        assert "twice" in problem(await client.get(ME, headers=headers), 400)
        monkeypatch.setattr(request_guard, "ONLY_ONCE", ())  # the ablation
        assert (await client.get(ME, headers=headers)).status_code in (200, 403)


async def test_a_link_to_the_login_may_be_followed_from_anywhere() -> None:
    headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    async with server_scene() as scene, scene.stranger() as client:
        code = await scene.credentials.create_login("ann", ["admin"], by="ann")
        assert (await client.get(f"/login?code={code}", headers=headers)).status_code == 303


async def test_every_answer_forbids_inline_scripts_frames_and_other_origins() -> None:
    async with server_scene() as scene, scene.stranger() as client:
        for path in ("/api/v1/health", ME, "/nothing"):
            headers = (await client.get(path)).headers
            policy = headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "frame-ancestors 'none'" in policy
            assert "unsafe" not in policy
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["cache-control"] == "no-store"
            assert "access-control-allow-origin" not in headers


# -- sessions ----------------------------------------------------------------------------------------------------------


async def logged_in(scene: ServerScene, client: httpx.AsyncClient) -> str:
    """Log a browser in, with the key of its page, and return the text of its cookie."""
    code = await scene.credentials.create_login("ann", ["admin"], by="ann")
    answer = await client.get(f"/login?code={code}")
    assert answer.status_code == 303
    place, _, key = answer.headers["location"].partition("#key=")
    assert place == "/"
    assert code not in answer.text
    client.headers["x-asterism-page"] = key
    return str(answer.headers["set-cookie"])


async def test_a_session_is_a_cookie_that_scripts_and_other_sites_do_not_get() -> None:
    async with server_scene() as scene, scene.stranger() as client:
        cookie = await logged_in(scene, client)
        for word in ("HttpOnly", "SameSite=Strict", "Path=/"):
            assert word in cookie
        assert SimpleCookie(cookie)["asterism_session"].value.startswith("ast_")
        assert (await client.get(ME)).json()["name"] == "ann"


async def test_a_code_that_was_used_is_refused() -> None:
    async with server_scene() as scene, scene.stranger() as client:
        code = await scene.credentials.create_login("ann", ["admin"], by="ann")
        assert (await client.get(f"/login?code={code}")).status_code == 303
        assert "asterism token login" in problem(await client.get(f"/login?code={code}"), 403)
        again = await client.get(f"/login?code={code}", headers={"Accept": "text/html,*/*"})
        assert (again.status_code, again.headers["location"], "set-cookie" in again.headers) == (303, "/", False)


async def test_a_right_login_code_counts_however_many_wrong_ones_its_address_has_sent() -> None:
    """Behind a proxy everybody has one address, and a code has 192 bits: nobody guesses it."""
    async with server_scene() as scene, scene.stranger() as client:
        for number in range(3 * request_guard.MAX_FAILURES):
            assert (await client.get(f"/login?code=wrong-{number}")).status_code == 403
            body = {"code": f"wrong-{number}"}
            assert (await client.post("/api/v1/login", json=body)).status_code == 403
        code = await scene.credentials.create_login("ann", ["admin"], by="ann")
        assert len(code) >= 192 / 6
        assert (await client.get(f"/login?code={code}")).status_code == 303


async def test_a_request_for_the_head_of_a_login_does_not_use_up_its_code() -> None:
    """Programs that preview links send it."""
    async with server_scene() as scene, scene.stranger() as client:
        code = await scene.credentials.create_login("ann", ["admin"], by="ann")
        assert (await client.head(f"/login?code={code}")).status_code == 405
        assert (await client.get(f"/login?code={code}")).status_code == 303


async def test_the_head_of_a_stream_is_refused_and_that_of_a_document_is_not() -> None:
    async with server_scene() as scene, scene.client() as client:
        assert (await client.head("/api/v1/events")).status_code == 405
        assert (await client.head("/api/v1/plans/x/events")).status_code == 405
        answer = await client.head("/api/v1/health")
        assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")


async def test_the_cookie_of_a_session_is_nothing_without_the_key_of_its_page() -> None:
    """Browsers send the cookie of 127.0.0.1 to every port: another server on this machine may have it."""
    async with server_scene() as scene, scene.stranger() as client, scene.stranger() as other:
        await logged_in(scene, other)
        theirs = other.headers["x-asterism-page"]
        await logged_in(scene, client)
        key, cookie = client.headers.pop("x-asterism-page"), client.cookies["asterism_session"]
        for page_key in ("", "wrong", key[:-1], theirs, cookie):
            for method, path in (("GET", ME), ("GET", "/api/v1/events"), ("POST", LOGOUT)):
                answer = await client.request(method, path, headers={"x-asterism-page": page_key})
                assert "X-Asterism-Page" in problem(answer, 401)
        assert (await client.post(LOGOUT, headers={"x-asterism-page": key})).status_code == 200
        problem(await client.get(ME, headers={"x-asterism-page": key}), 401)


async def test_a_session_is_no_token_and_a_token_is_no_session() -> None:
    async with server_scene() as scene, scene.stranger() as client:
        await logged_in(scene, client)
        cookie = client.cookies["asterism_session"]
        async with scene.stranger(authorization=f"Bearer {cookie}") as bearer:
            assert "is no token" in problem(await bearer.get(ME), 401)
        token = await scene.token()
        async with scene.stranger(cookie=f"asterism_session={token}") as session:
            problem(await session.get(ME), 401)


async def test_a_bearer_token_needs_no_key_of_a_page() -> None:
    async with server_scene() as scene, scene.client() as client:
        assert (await client.post(LOGOUT)).status_code == 200


# -- how much ----------------------------------------------------------------------------------------------------------


async def test_unknown_paths_and_methods_are_problems_too() -> None:
    async with server_scene() as scene, scene.client() as client:
        problem(await client.get("/nothing"), 404)
        problem(await client.get("/api/v1/nothing"), 404)
        problem(await client.delete(ME), 405)
        problem(await client.get(f"{ME}?x=1"), 422)
        problem(await client.get(f"{ME}?x=1&x=2"), 400)


@pytest.mark.parametrize("path", ["", "/story", "/changes", "/events", "/versions", "/cycles", "/tasks/a"])
async def test_an_unknown_plan_tells_neither_the_store_nor_other_plans(path: str) -> None:
    async with server_scene() as scene, scene.client("edit:n-*") as client:
        await insert_plan(scene.fleet.store, chain("a"))
        answer = await client.get(f"/api/v1/plans/n-1{path}")
        assert problem(answer, 404) == "there is no plan 'n-1'"
        assert "nightly" not in answer.text
        assert scene.fleet.store.url not in answer.text


async def test_a_credential_has_a_limit_of_requests_at_once() -> None:
    async with server_scene(requests_at_once=1) as scene, scene.client() as client:
        token = client.headers["authorization"].partition(" ")[2]
        credential = await scene.credentials.find(token)
        assert credential is not None
        with scene.state.gate.counted(credential):
            assert "under way" in problem(await client.get(ME), 429)
        assert (await client.get(ME)).status_code == 200


def test_a_token_is_in_no_repr() -> None:
    assert "secret" not in repr(NewToken(None, "secret", "secret"))  # type: ignore[arg-type]


# -- TLS and addresses -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "names", "hosts"),
    [
        ("127.0.0.1", [], {"127.0.0.1", "localhost", "[::1]"}),
        ("0.0.0.0", ["host.example"], {"host.example"}),
        ("::", [], set()),
        ("10.0.0.5", ["host.example"], {"10.0.0.5", "host.example"}),
        ("fd00::1", [], {"[fd00::1]"}),
    ],
)
def test_a_server_answers_only_to_names_that_it_knows(host: str, names: list[str], hosts: set[str]) -> None:
    assert set(request_guard.request_hosts(host, names)) == hosts


async def test_over_tls_the_cookie_is_secure_and_only_the_origin_with_https_is_ours() -> None:
    async with server_scene() as scene:
        gate = request_guard.Gate(scene.credentials, lambda: 0.0, https=True)
        cookie = request_guard.cookie_header(gate, "ast_x", 60)
        assert cookie.startswith("__Host-asterism_session=")
        assert cookie.endswith("; Secure")
        guard = RequestGuard(scene.app, ["host.example"], https=True)
        own = {"host": "host.example"}
        assert guard.refusal("GET", "/api/v1/me", own | {"origin": "https://host.example"}) is None
        for origin in ("http://host.example", "https://host.example:8443", "https://host.example.evil"):
            assert guard.refusal("GET", "/api/v1/me", own | {"origin": origin}) is not None
