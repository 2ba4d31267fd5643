"""What GitHub answered before, so that it can be asked whether that still holds.

A question with ``If-None-Match`` that is answered 304 does not count against the limit. What a commit contains never
changes, so that is not even asked for again. A cache may have a file, for processes that begin anew for each cycle;
a file that cannot be read is an empty cache, never an error.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

MOST = 512
"""Answers that are kept; the ones used longest ago go first."""


class Kept(NamedTuple):
    """An answer: what to ask with, what it said, and where the next page is."""

    etag: str
    data: Any
    next: str | None


class AnswerCache:
    """``scope`` tells apart what different credentials may see: an answer is only used for the one it was given to.
    Unless ``keep``, the file is read and never written."""

    def __init__(self, file: Path | None = None, scope: str = "", keep: bool = True) -> None:
        self._file, self._scope, self._keep = file, scope, keep
        self._answers: OrderedDict[str, Kept] = OrderedDict()
        self._texts: OrderedDict[str, str] = OrderedDict()
        self._changed = False
        if file is not None:
            self._load(file)

    def answer(self, url: str) -> Kept | None:
        kept = self._answers.get(url)
        if kept is not None:
            self._answers.move_to_end(url)
        return kept

    def keep(self, url: str, kept: Kept) -> None:
        self._answers[url] = kept
        self._trim(self._answers)

    def text(self, sha: str) -> str | None:
        """What the commit contains."""
        return self._texts.get(sha) or None

    def keep_text(self, sha: str, text: str) -> None:
        """Nothing is never kept: it may be that it is not known yet where it was asked for."""
        if text:
            self._texts[sha] = text
            self._trim(self._texts)

    def save(self) -> None:
        """Whole or not at all, if anything is new. A file that cannot be written costs questions, nothing else."""
        if self._file is None or not self._keep or not self._changed:
            return
        form = {"scope": self._scope, "answers": self._answers, "texts": self._texts}
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

    def _trim(self, kept: OrderedDict[str, Any]) -> None:
        self._changed = True
        while len(kept) > MOST:
            kept.popitem(last=False)

    def _load(self, file: Path) -> None:
        try:
            form = json.loads(file.read_text("utf-8"))
            if form["scope"] != self._scope:
                return
            answers = {str(url): Kept(str(etag), data, after) for url, (etag, data, after) in form["answers"].items()}
            texts = {str(sha): str(text) for sha, text in form["texts"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return
        self._answers.update(answers)
        self._texts.update(texts)
