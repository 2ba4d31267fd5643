"""A server on loopback that answers with given bytes, and remembers what it was sent."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from asterism.base.startup import VERSION as NOW

VERSION = {"asterism-version": NOW}


def answer(status: int, body: bytes | Mapping[str, Any], headers: Mapping[str, str] = VERSION, kind: str = "") -> bytes:
    """An HTTP answer, whole."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} X", f"content-length: {len(data)}", "connection: close"]
    lines.append(f"content-type: {kind or 'application/json'}")
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


def problem(status: int, name: str, detail: str, headers: Mapping[str, str] = VERSION, **more: Any) -> bytes:
    document = {"type": f"urn:asterism:problem:{name}", "status": status, "detail": detail, **more}
    return answer(status, document, headers, "application/problem+json")


@dataclass
class RawServer:
    """``answers`` are sent one for each connection, the last again and again; an empty one cuts the connection."""

    answers: Sequence[bytes]
    url: str = ""
    requests: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)

    def serve(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection, connection.makefile("rb") as stream:
                first = stream.readline().decode().strip()
                headers = dict[str, str]()
                while (line := stream.readline().decode().strip()) != "":
                    name, _, value = line.partition(":")
                    headers[name.lower()] = value.strip()
                body = stream.read(int(headers.get("content-length", "0")))
                if first:
                    self.requests.append((first, headers, body))
                    connection.sendall(self.answers[min(len(self.requests), len(self.answers)) - 1])


@contextmanager
def raw_server(*answers: bytes) -> Iterator[RawServer]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = RawServer(answers, f"http://127.0.0.1:{listener.getsockname()[1]}")
        thread = threading.Thread(target=server.serve, args=(listener,), daemon=True)
        thread.start()
        yield server
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(10)


@contextmanager
def cutting_proxy(target: str, cuts: int, what: bytes = b"POST ") -> Iterator[str]:
    """A proxy in front of a server that hands on every request, and cuts the connection instead of the first answers to
    requests whose first line has ``what``: by default, those that change something. Yields its address."""
    parts = urlsplit(target)
    left = [cuts]

    def serve(listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection, socket.create_connection((parts.hostname or "", parts.port or 0)) as server:
                head, body = b"", b""
                with connection.makefile("rb") as stream:
                    while (line := stream.readline()) not in (b"\r\n", b""):
                        name = line.partition(b":")[0].lower()
                        head += b"" if name in (b"host", b"connection") else line
                        if name == b"content-length":
                            length = int(line.partition(b":")[2])
                    body = stream.read(length) if b"content-length" in head.lower() else b""
                host = f"host: {parts.netloc}\r\nconnection: close\r\n\r\n".encode()
                server.sendall(head + host + body)
                answered = b"".join(iter(lambda: server.recv(65536), b""))
                if left[0] and what in head.partition(b"\r")[0]:
                    left[0] -= 1
                else:
                    connection.sendall(answered)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(10)
