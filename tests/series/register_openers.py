"""How registers are opened, by the tests and by the other processes that they start; and remotes to open them on."""

from __future__ import annotations

import atexit
import base64
import contextlib
import datetime
import functools
import ipaddress
import os
import shutil
import ssl
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

from asterism.series.git_register import GitRegister
from asterism.series.register import SeriesRegister


async def open_store_register(url: str) -> SeriesRegister:
    from asterism.series.store_register import StoreRegister
    from asterism.store.url import open_store

    return StoreRegister(await open_store(url))


async def open_git_register(url: str) -> SeriesRegister:
    from asterism.series.git_register import GitRegister

    return GitRegister(url)


def bare_repository(path: Path, *words: str) -> str:
    """A remote, and its address."""
    shutil.copytree(_empty_repository(*words), path, dirs_exist_ok=True)
    return f"file://{path}"


@functools.cache
def _empty_repository(*words: str) -> Path:
    """Made once in a process: a copy is cheaper than two git processes for each remote."""
    folder = Path(tempfile.mkdtemp(prefix="asterism-test-remote-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    subprocess.run(["git", "init", "--quiet", "--bare", "--template=", *words, str(folder)], check=True)
    subprocess.run(["git", "-C", str(folder), "config", "http.receivepack", "true"], check=True)
    return folder


class _Backend(BaseHTTPRequestHandler):
    """Smart HTTP as a web server offers it: every request is handed to ``git http-backend``."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    root: ClassVar[str]
    faults: ClassVar[list[str | Callable[[], None]]]
    """For the next pushes: ``before``, the connection breaks before it is done; ``after``, when it was; a function is
    called between the two."""
    credentials: ClassVar[str | None]
    """``user:password``, which every request needs; None for no check."""
    observers: ClassVar[list[Callable[[], None]]]
    """Called at each request, while the client waits for the answer."""

    def do_GET(self) -> None:
        self._answer(b"")

    def do_POST(self) -> None:
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.faults and self.path.endswith("/git-receive-pack") and len(body) > 4:  # a probe has four bytes
            fault = self.faults.pop(0)
            if fault != "before":
                self._asked(body)
            if callable(fault):
                fault()
            self.close_connection = True
            return
        self._answer(body)

    def _asked(self, body: bytes) -> bytes:
        path, _, query = self.path.partition("?")
        environment = {
            "PATH": os.environ["PATH"],
            "GIT_PROJECT_ROOT": self.root,
            "GIT_HTTP_EXPORT_ALL": "1",
            "REQUEST_METHOD": self.command,
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(len(body)),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
            "REMOTE_ADDR": "127.0.0.1",
        }
        return subprocess.run(["git", "http-backend"], input=body, env=environment, stdout=subprocess.PIPE).stdout

    def _let_in(self) -> bool:
        for observer in self.observers:
            observer()
        if self.credentials is None:
            return True
        expected = "Basic " + base64.b64encode(self.credentials.encode()).decode()
        return self.headers.get("Authorization") == expected

    def _answer(self, body: bytes) -> None:
        if not self._let_in():
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="git"')
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        head, _, content = self._asked(body).partition(b"\r\n\r\n")
        fields = dict(line.split(": ", 1) for line in head.decode().splitlines())
        self.send_response(int(fields.pop("Status", "200 OK").split()[0]))
        for name, value in fields.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *said: Any) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Who does not trust our certificate hangs up in the middle, and that is their right."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


def certificate(folder: Path, *, expired: bool = False) -> Path:
    """A key and a certificate for this machine, which nobody has signed but itself, in one file."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "remote.git")])
    now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - 3 * day)
        .not_valid_after(now - day if expired else now + day)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
        .sign(key, hashes.SHA256())
    )
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    file = folder / f"certificate-{made.serial_number}.pem"
    file.write_bytes(key.private_bytes(*form) + made.public_bytes(serialization.Encoding.PEM))
    return file


@contextlib.contextmanager
def over_http(
    root: Path, tls: Path | None = None, credentials: str | None = None, observer: Callable[[], None] | None = None
) -> Iterator[tuple[str, list[str | Callable[[], None]]]]:
    """The address of what is below ``root``, over smart HTTP on loopback, and the list of faults to come. With ``tls``,
    the file of a key and its certificate, it is HTTPS. With ``credentials``, ``user:password``, it asks for them. The
    ``observer`` is called at each request."""
    observers = [observer] if observer is not None else []
    attributes = {"root": str(root), "faults": [], "credentials": credentials, "observers": observers}
    handler = type("Backend", (_Backend,), attributes)
    server = _Server(("127.0.0.1", 0), handler)
    if tls is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tls)
        # without a handshake here: one who takes long for it would hold up all others
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    scheme = "http" if tls is None else "https"
    try:
        yield f"{scheme}://127.0.0.1:{server.server_address[1]}", handler.faults  # type: ignore[attr-defined]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextlib.asynccontextmanager
async def using_git(url: str, **options: Any) -> AsyncIterator[GitRegister]:
    """A register on a git remote, which is closed at the end."""
    register = GitRegister(url, **options)
    try:
        yield register
    finally:
        await register.close()


def git_output(path: Path, *words: str, stdin: str = "") -> str:
    """What a git command in a repository prints."""
    words = ("git", "-C", str(path), *words)
    return subprocess.run(words, input=stdin, capture_output=True, text=True, check=True).stdout
