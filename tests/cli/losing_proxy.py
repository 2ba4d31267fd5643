"""A proxy on loopback that loses the requests of a client, or the answers to them."""

from __future__ import annotations

import select
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit


class LosingProxy(socketserver.ThreadingTCPServer):
    """``losses`` is how many requests that begin with ``request`` are lost from now on: the connection is closed when
    the server has answered, or with ``unasked`` before the server is asked."""

    port, request, losses, unasked = 0, b"", 0, False
    daemon_threads = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Connection(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        proxy: LosingProxy = self.server  # type: ignore[assignment]
        losing = False
        with socket.create_connection(("127.0.0.1", proxy.port)) as there:
            sides = {self.request: there, there: self.request}
            while True:
                for side in select.select(list(sides), [], [])[0]:
                    data = side.recv(65536)
                    if side is self.request and data.startswith(proxy.request) and proxy.losses:
                        proxy.losses -= 1
                        losing = True
                    if not data or (losing and (proxy.unasked or side is there)):
                        return
                    sides[side].sendall(data)


@contextmanager
def losing_proxy(url: str, request: bytes) -> Iterator[LosingProxy]:
    """A proxy of the server at an address."""
    with LosingProxy(("127.0.0.1", 0), _Connection) as proxy:
        proxy.port, proxy.request = urlsplit(url).port or 0, request
        thread = threading.Thread(target=proxy.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield proxy
        finally:
            proxy.shutdown()
            thread.join()
