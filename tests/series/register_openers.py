"""How registers are opened, by the tests and by the other processes that they start; and remotes to open them on."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

from asterism.series.register import SeriesRegister


async def open_store_register(url: str) -> SeriesRegister:
    from asterism.series.stores import StoreRegister
    from asterism.store.opening import open_store

    return StoreRegister(await open_store(url))


async def open_git_register(url: str) -> SeriesRegister:
    from asterism.series.git import GitRegister

    return GitRegister(url)


def bare_repository(path: Path, *words: str) -> str:
    """A remote, and its address."""
    subprocess.run(["git", "init", "--quiet", "--bare", *words, str(path)], check=True)
    subprocess.run(["git", "-C", str(path), "config", "http.receivepack", "true"], check=True)
    return f"file://{path}"


class _Backend(BaseHTTPRequestHandler):
    """Smart HTTP as a web server offers it: every request is handed to ``git http-backend``."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    root: ClassVar[str]
    faults: ClassVar[list[str | Callable[[], None]]]
    """For the next pushes: ``before``, the connection breaks before it is done; ``after``, when it was; a function is
    called between the two."""

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

    def _answer(self, body: bytes) -> None:
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


@contextlib.contextmanager
def over_http(root: Path) -> Iterator[tuple[str, list[str | Callable[[], None]]]]:
    """The address of what is below ``root``, over smart HTTP on loopback, and the list of faults to come."""
    handler = type("Backend", (_Backend,), {"root": str(root), "faults": []})
    server = _Server(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", handler.faults  # type: ignore[attr-defined]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
