"""A cache of GitHub's responses, for conditional requests and for the contents of commits.

A request with ``If-None-Match`` that is answered with 304 does not count against the rate limit. The content of a
commit never changes, so it is requested once. A cache may have a file, for processes that run one sync each. An
unreadable file counts as an empty cache, never as an error.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

MAX_ENTRIES = 512
"""The most entries of each kind; the least recently used ones are dropped first."""


class CachedResponse(NamedTuple):
    """A response: its ETag, its data, and the URL of the next page."""

    etag: str
    data: Any
    next: str | None


class ResponseCache:
    """``scope`` identifies the credentials: they only see responses that were given to them.

    The file is read, and written by ``save`` unless the cache is ``read_only``."""

    def __init__(self, file: Path | None = None, scope: str = "", read_only: bool = False) -> None:
        self._file, self._scope, self._read_only = file, scope, read_only
        self._responses: OrderedDict[str, CachedResponse] = OrderedDict()
        self._texts: OrderedDict[str, str] = OrderedDict()
        self._changed = False
        if file is not None:
            self._load(file)

    def response(self, url: str) -> CachedResponse | None:
        found = self._responses.get(url)
        if found is not None:
            self._responses.move_to_end(url)
        return found

    def put_response(self, url: str, response: CachedResponse) -> None:
        self._responses[url] = response
        self._trim(self._responses)

    def text(self, sha: str) -> str | None:
        """The content of a commit."""
        return self._texts.get(sha) or None

    def put_text(self, sha: str, text: str) -> None:
        """An empty text is not cached: a stale replica of GitHub may not know the commit yet."""
        if text:
            self._texts[sha] = text
            self._trim(self._texts)

    def save(self) -> None:
        """Write the file atomically if anything changed. A failure costs requests later, nothing else."""
        if self._file is None or self._read_only or not self._changed:
            return
        form = {"scope": self._scope, "answers": self._responses, "texts": self._texts}
        name = None
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self._file.parent, prefix=".asterism-cache-")
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(form, file)
            os.replace(name, self._file)
            name, self._changed = None, False
        except OSError:
            return
        finally:
            if name is not None:
                with contextlib.suppress(OSError):
                    os.unlink(name)

    def _trim(self, entries: OrderedDict[str, Any]) -> None:
        self._changed = True
        while len(entries) > MAX_ENTRIES:
            entries.popitem(last=False)

    def _load(self, file: Path) -> None:
        try:
            form = json.loads(file.read_text("utf-8"))
            if form["scope"] != self._scope:
                return
            responses = {
                str(url): CachedResponse(str(etag), data, following)
                for url, (etag, data, following) in form["answers"].items()
            }
            texts = {str(sha): str(text) for sha, text in form["texts"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return
        self._responses.update(responses)
        self._texts.update(texts)
