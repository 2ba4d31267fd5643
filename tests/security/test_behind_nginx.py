"""The server behind a real nginx with the configuration of the deployment page: hosts, origins, cookies, and headers
that two programs may read differently."""

from __future__ import annotations

import asyncio
import re
import shutil
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from asterism.api.credentials import Credentials, NewToken
from asterism.base.listen_address import ListenAddress
from asterism.fleet.fleet import Fleet
from asterism.peers.private_files import _new_identity
from asterism.server.http_service import http_service
from asterism.server.people_proxy import PeopleProxy, parse_groups, parse_networks
from asterism.store.memory import MemoryStore
from tests.docs.test_deployment import FILES
from tests.process_scenes import PATIENCE

NGINX = shutil.which("nginx") or shutil.which("/usr/sbin/nginx")
NAME = "asterism.example.org"
ME = "/api/v1/me"

PROXY_SECRET = "what-only-nginx-and-the-server-know"

pytestmark = pytest.mark.skipif(NGINX is None, reason="nginx is not installed (make nginx)")


def configuration(folder: Path, port: int, file: str = "asterism.conf", login: int = 0) -> str:
    """The file of the page, with the paths and ports of this test."""
    server = FILES[f"/etc/nginx/conf.d/{file}"].replace("/etc/nginx/asterism-secret.conf", f"{folder}/secret.conf")
    server = server.replace("127.0.0.1:4180", f"127.0.0.1:{login}")
    server = server.replace("listen 443 ssl;", f"listen unix:{folder}/nginx.sock ssl;")
    server = re.sub(r"(ssl_certificate(?:_key)?)\s+\S+;", rf"\1 {folder}/cert.pem;", server)
    server = server.replace("127.0.0.1:7400", f"127.0.0.1:{port}")
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    places = "".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)
    return (
        f"daemon off; pid {folder}/pid; error_log {folder}/error.log; worker_processes 1;"
        f"events {{}} http {{ access_log off; {places} {server} }}"
    )


class Behind:
    """A server behind nginx. ``session`` is that of a browser which has logged in, ``token`` is one for programs,
    ``port`` that of the server itself, and ``code`` makes a login code."""

    def __init__(
        self, folder: Path, session: NewToken, token: str, port: int, code: Callable[[], Awaitable[str]]
    ) -> None:
        self.code = code
        self._socket = str(folder / "nginx.sock")
        self.cookie, self.key = f"__Host-asterism_session={session.token}", str(session.page_key)
        self.token, self.port = token, port

    async def ask(self, *lines: str, method: str = "GET", target: str = ME, body: bytes = b"") -> tuple[int, str]:
        """Send exactly these header lines. Returns the status and the rest of the answer."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        reader, writer = await asyncio.open_unix_connection(self._socket, ssl=context, server_hostname=NAME)
        head = [f"{method} {target} HTTP/1.1", *lines, "connection: close", "", ""]
        writer.write("\r\n".join(head).encode() + body)
        async with asyncio.timeout(PATIENCE):
            answer = (await reader.read()).decode(errors="replace")
        writer.close()
        return int(answer.split(" ", 2)[1]), answer


def _listens(path: Path) -> bool:
    """Whether somebody accepts connections at ``path``: the file is there from bind on, before listen."""
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


@asynccontextmanager
async def behind_nginx(
    folder: Path, *, people: PeopleProxy | None = None, login: int = 0, port: int = 0
) -> AsyncIterator[Behind]:
    """With ``people``, nginx asks the program at the port ``login`` for the person. With ``port``, another server is
    behind it."""
    (folder / "cert.pem").write_bytes(_new_identity())
    (folder / "secret.conf").write_text(f'proxy_set_header X-Asterism-Proxy-Secret "{PROXY_SECRET}";')
    address = ListenAddress("127.0.0.1", 0, behind_proxy=True)
    file = "asterism.conf" if people is None else "asterism-people.conf"
    async with (
        Fleet(MemoryStore(), by="server") as fleet,
        http_service(fleet, address, [NAME], people=people) as service,
    ):
        credentials = Credentials(fleet.store)
        session = await credentials.redeem_login(await credentials.create_login("ann", ["admin"], by="ann"))
        token = (await credentials.create("ci", ["admin"], by="ann")).token
        port = port or service.server.listeners[0]._sock.getsockname()[1]
        (folder / "nginx.conf").write_text(configuration(folder, port, file, login))
        process = await asyncio.create_subprocess_exec(
            str(NGINX), "-p", str(folder), "-c", str(folder / "nginx.conf"), stderr=asyncio.subprocess.PIPE
        )
        try:
            async with asyncio.timeout(PATIENCE):
                while not _listens(folder / "nginx.sock"):
                    assert process.returncode is None, (await process.communicate())[1].decode()
                    await asyncio.sleep(0.01)
            yield Behind(folder, session, token, port, lambda: credentials.create_login("bob", ["observe"], by="ann"))
        finally:
            if process.returncode is None:
                process.terminate()
            await process.communicate()


HOST = f"Host: {NAME}"


async def test_a_browser_is_answered_at_its_own_origin_only(tmp_path: Path) -> None:
    async with behind_nginx(tmp_path) as server:
        cookie, key = f"Cookie: {server.cookie}", f"X-Asterism-Page: {server.key}"
        status, answer = await server.ask(HOST, cookie, key, f"Origin: https://{NAME}")
        assert (status, '"name":"ann"' in answer) == (200, True)
        for refused, lines in (
            (401, (HOST, cookie)),
            (401, (HOST, key)),
            (401, (HOST, cookie, "X_Asterism_Page: x")),
            (403, (HOST, cookie, key, "Origin: https://evil.example")),
            (403, (HOST, cookie, key, f"Origin: http://{NAME}")),
            (403, (HOST, cookie, key, "Origin: null")),
            (403, (HOST, cookie, key, "Sec-Fetch-Site: cross-site")),
            (421, ("Host: evil.example", cookie, key)),
            (421, ("Host: evil.example", cookie, key, f"X-Forwarded-Host: {NAME}")),
        ):
            assert (await server.ask(*lines))[0] == refused, lines
        for method in ("POST", "DELETE"):
            assert (await server.ask(HOST, cookie, "Content-Length: 0", method=method, target="/api/v1/logout"))[0] in (
                401,
                405,
            )
        assert (await server.ask(HOST, cookie, key))[0] == 200, "the session goes on"


async def test_headers_that_two_programs_may_read_differently_are_refused(tmp_path: Path) -> None:
    async with behind_nginx(tmp_path) as server:
        mine = f"Authorization: Bearer {server.token}"
        assert (await server.ask(HOST, mine))[0] == 200
        for refused, lines in (
            ((400,), (HOST, "Host: evil.example", mine)),
            ((400,), (HOST, mine, mine)),
            ((400,), (HOST, mine, f"Origin: https://{NAME}", "Origin: https://evil.example")),
            ((400,), (HOST, "Authorization: Bearer x", mine)),
            ((400,), (HOST, mine, "X-Asterism-Page: a", "X-Asterism-Page: b")),
            ((400, 401), (HOST, "authorization : Bearer x")),
            ((400, 401), (HOST, f"X-A: b\r\n {mine}")),
            ((400,), (HOST, mine, "X: a\0b")),
        ):
            status, answer = await server.ask(*lines)
            assert status in refused, (lines, answer)
        # the header decides, whatever host the target names
        assert (await server.ask("Host: evil.example", mine, target=f"https://{NAME}{ME}"))[0] == 421
        assert (await server.ask(HOST, mine, target=f"https://evil.example{ME}"))[0] == 200


async def test_no_request_is_smuggled_past_nginx(tmp_path: Path) -> None:
    """A second request inside the body of the first one is never answered on its own."""
    inner = f"GET {ME} HTTP/1.1\r\n{HOST}\r\nAuthorization: Bearer TOKEN\r\n\r\n"
    async with behind_nginx(tmp_path) as server:
        hidden = inner.replace("TOKEN", server.token).encode()
        chunked = f"{len(hidden):x}\r\n".encode() + hidden + b"\r\n0\r\n\r\n"
        for lines, body in (
            ((HOST, "Content-Length: 4", "Transfer-Encoding: chunked"), b"0\r\n\r\n" + hidden),
            ((HOST, "Transfer-Encoding: chunked"), chunked),
            ((HOST, "Transfer-Encoding: xchunked"), hidden),
            ((HOST, "Transfer-Encoding: chunked", "Transfer-Encoding: identity"), b"0\r\n\r\n" + hidden),
            ((HOST, "Content-Length: 0", f"Content-Length: {len(hidden)}"), hidden),
            ((HOST, f"Content-Length: {len(hidden)}"), hidden),
        ):
            status, answer = await server.ask(*lines, method="POST", target="/api/v1/plans", body=body)
            assert status >= 400, lines
            assert '"scopes"' not in answer, lines


async def test_wrong_login_codes_of_others_behind_nginx_lock_nobody_out(tmp_path: Path) -> None:
    """All have one address there."""
    async with behind_nginx(tmp_path) as server:
        for number in range(30):
            assert (await server.ask(HOST, target=f"/login?code=wrong-{number}"))[0] == 403
        status, answer = await server.ask(HOST, target=f"/login?code={await server.code()}")
        assert (status, "__Host-asterism_session=" in answer) == (303, True)


@asynccontextmanager
async def login_program() -> AsyncIterator[int]:
    """What oauth2-proxy answers to nginx: who has a cookie of it, is logged in. The value is its port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        named = re.search(r"Cookie: _oauth2_proxy=(\S+)", head)
        if named is None:
            writer.write(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        else:
            person = f"X-Auth-Request-User: {named[1]}\r\nX-Auth-Request-Groups: dev,{named[1]}s\r\n"
            writer.write(f"HTTP/1.1 202 Accepted\r\n{person}Content-Length: 0\r\nConnection: close\r\n\r\n".encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


PAGE, ANN = "X-Asterism-Page: page", "Cookie: _oauth2_proxy=ann"


async def test_a_person_who_logged_in_at_the_proxy_is_known_by_name_and_groups(tmp_path: Path) -> None:
    groups = parse_groups(["anns=operate", "*=observe"])
    people = PeopleProxy(parse_networks(["127.0.0.1"]), groups, PROXY_SECRET.encode())
    async with login_program() as login, behind_nginx(tmp_path, people=people, login=login) as server:
        status, answer = await server.ask(HOST, ANN, PAGE)
        assert (status, '"name":"ann"' in answer, '["observe","operate"]' in answer) == (200, True, True)
        forged = ("X-Forwarded-User: root", "X-Forwarded-Groups: anns", f"X-Asterism-Proxy-Secret: {PROXY_SECRET}")
        status, answer = await server.ask(HOST, "Cookie: _oauth2_proxy=bob", PAGE, *forged)
        assert (status, '"name":"bob"' in answer, '"scopes":["observe"]' in answer) == (200, True, True)
        for refused, lines in (
            (401, (HOST, PAGE)),
            (401, (HOST, PAGE, *forged)),
            (401, (HOST, ANN)),
            (403, (HOST, ANN, PAGE, "Origin: https://evil.example")),
            (403, (HOST, ANN, PAGE, "Sec-Fetch-Site: cross-site")),
            (401, (HOST, server.cookie.join(["Cookie: ", ""]), PAGE)),
        ):
            assert (await server.ask(*lines))[0] == refused, lines
        status, answer = await server.ask(HOST, target="/")
        assert (status, "/oauth2/sign_in?rd=/" in answer) == (302, True)
        assert (await server.ask(HOST, ANN, target="/"))[0] == 200
        # past nginx, on the machine of the server
        past = await _straight(server.port, ME, HOST, PAGE, "X-Forwarded-User: ann", "X-Forwarded-Groups: anns")
        assert past == 403


@asynccontextmanager
async def recorder(heads: list[str]) -> AsyncIterator[int]:
    """A server that answers everything and keeps the heads of requests. The value is its port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


@pytest.mark.parametrize("target", ["/", ME, "/login", "/login?code=x", "/login/", "//login"])
async def test_no_client_of_a_proxy_without_logins_names_a_person(tmp_path: Path, target: str) -> None:
    heads = list[str]()
    names = ("X-Forwarded-User: root", "x-forwarded-groups: leads", "X-Asterism-Proxy-Secret: guessed")
    async with recorder(heads) as port, behind_nginx(tmp_path, port=port) as server:
        assert (await server.ask(HOST, *names, target=target))[0] == 200
    [head] = heads
    assert HOST.lower() in head.lower()
    for name in names:
        assert name.partition(":")[0].lower() not in head.lower()


async def _straight(port: int, target: str, *lines: str) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write("\r\n".join([f"GET {target} HTTP/1.1", *lines, "connection: close", "", ""]).encode())
    async with asyncio.timeout(PATIENCE):
        answer = await reader.read()
    writer.close()
    return int(answer.split(b" ", 2)[1])
