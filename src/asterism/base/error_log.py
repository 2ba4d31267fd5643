"""Something that goes wrong over and over, told so that the log stays readable: a line when it begins, then at most one
a minute with how long it has lasted, and one when it is over. What is none of Asterism's own errors is a mistake in it:
each kind is told once, with where it happened, whatever else is going wrong."""

from __future__ import annotations

import logging
from collections.abc import Callable

from asterism.core.errors import AsterismError

REPEAT_INTERVAL = 60.0
"""How often what lasts is told again, in seconds."""


class RecurringError:
    """``what`` does not work, ``relief`` is said when it does again. ``now`` counts seconds. What comes and goes many
    times a second is over only when it was not met for ``calm`` seconds."""

    def __init__(
        self, log: logging.Logger, what: str, relief: str, now: Callable[[], float], *, calm: float = 0.0
    ) -> None:
        self._log, self._what, self._relief, self._now, self._calm = log, what, relief, now, calm
        self._began: float | None = None
        self._met = self._told = 0.0
        self._mistakes: set[str] = set()

    def occurred(self, error: Exception) -> None:
        """It went wrong, for the first time or again."""
        now = self._met = self._now()
        mistake = None if isinstance(error, AsterismError) else type(error).__name__
        if mistake is not None and mistake not in self._mistakes:
            self._mistakes.add(mistake)
            self._log.error("%s: a mistake in Asterism itself", self._what, exc_info=error)
        elif self._began is None:
            self._log.warning("%s: %s", self._what, error)
        elif now - self._told >= REPEAT_INTERVAL:
            self._log.warning("%s, for %.0f s now: %s", self._what, now - self._began, error)
        else:
            return
        self._told = now
        self._began = now if self._began is None else self._began

    def recovered(self) -> None:
        """It went well."""
        if self._began is None:
            return
        now = self._now()
        if now - self._met >= self._calm:
            self._log.info("%s, after %.0f s", self._relief, (self._met if self._calm else now) - self._began)
            self._began = None
