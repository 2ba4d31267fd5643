"""The files of the page: ``GET /`` and ``GET /page/NAME``, with strict headers and an ETag each.

Only files that were listed at the start are served, so no path of a request reaches the file system. Browsers ask again
each time (``no-cache``) and get ``304`` while a file has not changed: a new version of Asterism is there at once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from asterism.server.request_guard import SECURITY_HEADERS

if TYPE_CHECKING:
    from starlette.requests import Request

MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".LICENSE": "text/plain; charset=utf-8",
    ".json": "application/json",
}

ENTRY = "index.html"


@dataclass(frozen=True, slots=True)
class PageFile:
    """A file of the page as it is sent."""

    content: bytes
    media_type: str
    etag: str


@cache
def page_files() -> Mapping[str, PageFile]:
    """The files of the page by their path below ``/page/``, read once."""
    return dict(_listed(files("asterism.server") / "page", ""))


def _listed(folder: Traversable, prefix: str) -> Iterator[tuple[str, PageFile]]:
    for entry in folder.iterdir():
        media_type = next((kind for ending, kind in MEDIA_TYPES.items() if entry.name.endswith(ending)), None)
        if entry.is_dir():
            yield from _listed(entry, f"{prefix}{entry.name}/")
        elif media_type is not None:
            content = entry.read_bytes()
            yield (
                f"{prefix}{entry.name}",
                PageFile(content, media_type, f'"{hashlib.sha256(content).hexdigest()[:32]}"'),
            )


def page_routes() -> list[BaseRoute]:
    """The routes of the page. Anybody may load it: it holds no data, and asks the API as the person at the browser."""
    files_by_name = page_files()

    async def entry(request: Request) -> Response:
        return _response(request, files_by_name[ENTRY])

    async def file(request: Request) -> Response:
        page_file = files_by_name.get(request.path_params["name"])
        if page_file is None:
            raise HTTPException(404)
        return _response(request, page_file)

    return [Route("/", entry, methods=["GET"]), Route("/page/{name:path}", file, methods=["GET"])]


def _response(request: Request, file: PageFile) -> Response:
    headers = {**SECURITY_HEADERS, "etag": file.etag, "cache-control": "no-cache"}
    known = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
    if file.etag in known:
        return Response(status_code=304, headers=headers)
    return Response(file.content, headers=headers, media_type=file.media_type)
