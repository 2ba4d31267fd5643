"""Log lines of a recurring error: when it begins, once a minute while it lasts, when it is over.

An error that is not an AsterismError is a bug in Asterism: each type is logged once, with its traceback."""

from __future__ import annotations

import logging
from collections.abc import Callable

from asterism.core.errors import AsterismError

REPEAT_INTERVAL = 60.0
"""The interval of log lines while an error lasts, in seconds."""


class RecurringError:
    """``what`` is logged when the error occurs, ``relief`` when it is over. ``now`` counts seconds. With ``calm`` the
    error is over only when it has not occurred for so many seconds."""

    def __init__(
        self, log: logging.Logger, what: str, relief: str, now: Callable[[], float], *, calm: float = 0.0
    ) -> None:
        self._log, self._what, self._relief, self._now, self._calm = log, what, relief, now, calm
        self._began: float | None = None
        self._last_occurred = self._last_logged = 0.0
        self._bugs: set[str] = set()

    def occurred(self, error: Exception) -> None:
        """Report that the error occurred."""
        now = self._last_occurred = self._now()
        bug = None if isinstance(error, AsterismError) else type(error).__name__
        if bug is not None and bug not in self._bugs:
            self._bugs.add(bug)
            self._log.error("%s: a bug in Asterism", self._what, exc_info=error)
        elif self._began is None:
            self._log.warning("%s: %s", self._what, error)
        elif now - self._last_logged >= REPEAT_INTERVAL:
            self._log.warning("%s, for %.0f s now: %s", self._what, now - self._began, error)
        else:
            return
        self._last_logged = now
        self._began = now if self._began is None else self._began

    def recovered(self) -> None:
        """Report that the operation succeeded."""
        if self._began is None:
            return
        now = self._now()
        if now - self._last_occurred >= self._calm:
            self._log.info("%s, after %.0f s", self._relief, (self._last_occurred if self._calm else now) - self._began)
            self._began = None
