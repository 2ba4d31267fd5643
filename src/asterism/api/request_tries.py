"""The tries of one request to a server: which are repeated, after which pause, and a sentence for each way to fail.

A request that reads may be repeated at any time. One that changes something carries an ``Idempotency-Key``: the server
does it once, and answers a repeat as it answered the first. So both are repeated after a connection that was cut, after
503 and after 429, at most ``MOST_TRIES`` times within ``REPEAT_TIME`` seconds. A server that cannot be reached at all
is reported at once, since nothing was sent.

Client and server tell each other their versions in the header ``asterism-version``: if one lacks what the other
expects, the error names both.
"""

from __future__ import annotations

import ssl
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

import httpx

from asterism.api.client_errors import ApiError, ServerUnreachable, TryLater, error_of
from asterism.api.http_form import KEY_HEADER, VERSION_HEADER
from asterism.base.http_answers import AnswerRefused
from asterism.base.startup import VERSION
from asterism.base.text import clean, masked_url
from asterism.core.backoff import retry_delay
from asterism.core.errors import AsterismError

MOST_TRIES = 5
REPEAT_TIME = 30.0
"""How often a request is sent, and for how many seconds after the first time it may be sent again."""

PAUSE = 0.25
"""The pause before the second try, in seconds; it doubles with each."""

_REPEATED = (429, 502, 503)
_LONGEST_SHOWN = 200


@dataclass
class RequestTries:
    """``operation`` is the name of what is asked, for messages; ``changes`` is whether it changes something, and
    ``once`` whether it is never repeated, as a login, whose code the first try uses up."""

    url: str
    operation: str
    changes: bool
    once: bool = False
    now: Callable[[], float] = time.monotonic
    headers: dict[str, str] = field(default_factory=dict)
    _tries: int = 1
    _was_cut: bool = False

    def __post_init__(self) -> None:
        self.headers[VERSION_HEADER] = VERSION
        if self.changes:
            self.headers[KEY_HEADER] = uuid.uuid4().hex
        self._until = self.now() + REPEAT_TIME

    def after_error(self, error: Exception) -> float:
        """How long to wait before the next try, after an error of the connection. Raises AsterismError if there is
        none."""
        if isinstance(error, AnswerRefused):
            raise error
        sent = not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.UnsupportedProtocol)
        self._was_cut |= sent
        pause = self._next_pause(None) if self._was_cut and not isinstance(error, httpx.TimeoutException) else None
        if pause is None:
            raise self._unreachable(error) from None
        return pause

    def after_answer(self, answer: httpx.Response) -> float | None:
        """How long to wait before the next try; None if this answer is to be read. Raises AsterismError for a problem,
        and if something else than a server of Asterism answered."""
        if answer.status_code < 300:
            if VERSION_HEADER not in answer.headers:
                raise self._foreign(answer)
            return None
        problem = self.problem(answer)
        if answer.status_code in _REPEATED:
            wait = problem.retry_after if isinstance(problem, ApiError) else None
            pause = self._next_pause(wait)
            if pause is not None:
                return pause
        raise problem

    def unreadable(self, answer: httpx.Response, error: Exception) -> AsterismError:
        """The error of an answer without a problem that cannot be read."""
        other = self._other_version(answer)
        if other is not None:
            text = f"the answer of {self.url} to {self.operation} cannot be read: {other}"
            return ApiError(answer.status_code, "", text)
        first = clean(str(error)).partition("\n")[0][:_LONGEST_SHOWN]
        return ApiError(answer.status_code, "", f"the answer of {self.url} cannot be read: {first}")

    def _next_pause(self, wanted: float | None) -> float | None:
        pause = retry_delay(self._tries, PAUSE) if wanted is None else wanted
        if self.once or self._tries >= MOST_TRIES or self.now() + pause >= self._until:
            return None
        self._tries += 1
        return pause

    # -- sentences -----------------------------------------------------------------------------------------------------

    def _unreachable(self, error: Exception) -> ServerUnreachable:
        certificate = _certificate_error(error)
        if certificate is not None:
            return ServerUnreachable(
                f"the certificate of {self.url} is not trusted ({certificate}): if it is of a private certificate "
                f"authority, log in with its certificate: asterism login {self.url} --ca FILE"
            )
        what = clean(str(error)) or type(error).__name__
        if not self._was_cut:
            return ServerUnreachable(f"{self.url} does not answer: {what}; check the address, and whether it runs")
        text = f"{self.url} closed the connection or did not answer in time: {what}"
        if self.once:
            text += "; the code may be used up: ask for a new one"
        elif self.changes:
            text += f"; it is unknown whether {self.operation} was done: look before you try again"
        return ServerUnreachable(text)

    def problem(self, answer: httpx.Response) -> AsterismError:
        """The error of an answer that is not a success."""
        status = answer.status_code
        if status < 400:
            where = masked_url(clean(answer.headers.get("location", "")))[:_LONGEST_SHOWN]
            text = f"{self.url} redirects to {where or 'another address'}; give the address of the server itself"
            return ApiError(status, "", text)
        try:
            document = answer.json()
        except (ValueError, RecursionError):
            document = None
        if VERSION_HEADER not in answer.headers or not isinstance(document, dict):
            return self._foreign(answer)
        problem = error_of(status, document, answer.headers.get("retry-after"))
        if status == 401 and isinstance(problem, ApiError):
            return type(problem)(status, problem.problem, f"{problem}; log in with: asterism login {self.url}")
        return self._lacking(answer, problem) or problem

    def _foreign(self, answer: httpx.Response) -> ApiError:
        """The error of an answer of something else, such as a proxy."""
        kind = clean(answer.headers.get("content-type", "")).partition(";")[0][:_LONGEST_SHOWN] or "nothing"
        text = (
            f"{self.url} answered with status {answer.status_code} and {kind}, which is no answer of an Asterism "
            "server: check the address, and what is between you and the server"
        )
        kind_of_error = TryLater if answer.status_code in (*_REPEATED, 504) else ApiError
        return kind_of_error(answer.status_code, "", text)

    def _lacking(self, answer: httpx.Response, problem: AsterismError) -> ApiError | None:
        """The error that names what a server of another version lacks; None if it lacks nothing."""
        if not isinstance(problem, ApiError):
            return None
        other = self._other_version(answer)
        if other is not None and problem.problem in ("unknown-path", "unknown-method"):
            text = f"{self.url} has no operation {self.operation}: {other}"
            return type(problem)(problem.status, problem.problem, text)
        unknown = [
            violation.message.partition(":")[0]
            for violation in problem.violations
            if violation.rule in ("extra_forbidden", "missing")
        ]
        if other is not None and unknown:
            missing = any(violation.rule == "missing" for violation in problem.violations)
            what = "needs more for" if missing else "does not know this of"
            text = f"{self.url} {what} {self.operation}: {', '.join(unknown)}; {other}"
            return type(problem)(problem.status, problem.problem, text)
        return None

    def _other_version(self, answer: httpx.Response) -> str | None:
        """A sentence about the version of the server, if it is another one."""
        version = clean(answer.headers.get(VERSION_HEADER, ""))[:40]
        if version in ("", VERSION):
            return None
        return f"it has version {version}, and this is {VERSION}: use the same version"


def _certificate_error(error: BaseException | None) -> str | None:
    """Why a certificate is refused, if that is the cause of an error."""
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return str(error.verify_message)
        error = error.__cause__ or error.__context__
    return None
