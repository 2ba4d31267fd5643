"""Calls of language models: one question, one answer, whatever the provider and however it misbehaves.

``ModelCaller`` sends a question (``model_messages.py``) through pydantic-ai, as a stream: to the first model, again
after the time that a rate limit asks for, and then to the next model.

The clients of OpenAI and Anthropic import and compute for seconds at their first use. Each request therefore has an
event loop of its own, in a thread, and never delays the plan; a model that is given as an object runs on this loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import re
import time
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from asterism.base.http_answers import ACCEPTED, LARGEST_ANSWER, bound_hook
from asterism.base.loop_thread import run_in_thread
from asterism.base.startup import install_hint
from asterism.core.backoff import retry_delay
from asterism.core.errors import AsterismError, error_text
from asterism.core.plan.editor_cost import EditorCost
from asterism.models.answer_form import Form, answer_of, messages_of, parameters_of
from asterism.models.budget import Price, estimated_tokens, listed_price, most_input, plausible_tokens
from asterism.models.model_messages import ModelAnswer, ModelQuestion

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelResponse
    from pydantic_ai.models import Model
    from pydantic_ai.settings import ModelSettings

log = logging.getLogger("asterism.models")

TIMEOUT = 300.0
"""Seconds that one request may take."""

STALL_TIMEOUT = 60.0
"""Seconds without a new piece of the stream after which a request is given up."""

ATTEMPTS = 4
"""How often one model is asked one question, if it is overloaded or the connection breaks."""

LONGEST_WAIT = 60.0
"""Seconds: a model that asks for a longer pause is not waited for."""

BACKOFF = 0.5
"""Seconds before the second attempt, if the model does not say when; doubled each time."""

MAX_OUTPUT = 4_096
"""How many tokens an answer may have."""

MOST_CHARACTERS = 16
"""Characters per token of a stream, beyond which it is endless."""


class ModelFailed(AsterismError):
    """No model has answered. ``cost`` is what the attempts have cost."""

    cost: EditorCost | None = None


class ModelMissing(AsterismError):
    """A library that calls models is not installed."""


@dataclass(slots=True)
class Bill:
    """The bill of one attempt: how many tokens of output it may have, and what it has cost in the end; None if that is
    unknown, because it was cancelled. ``seconds`` is how long it may take, if that is limited."""

    max_output: int = MAX_OUTPUT
    cost: EditorCost | None = None
    seconds: float | None = None


Pay = Callable[[ModelQuestion, str], AbstractAsyncContextManager[Bill]]
"""Opened around each attempt with the question and the name of the model. It may refuse by raising."""


class Unlimited:
    """Pays for every attempt, and adds up what they cost."""

    def __init__(self) -> None:
        self.cost = EditorCost()

    @contextlib.asynccontextmanager
    async def __call__(self, question: ModelQuestion, model: str) -> AsyncIterator[Bill]:
        bill = Bill()
        try:
            yield bill
        finally:
            self.cost += bill.cost or EditorCost()


class ModelCaller:
    """``models`` are names, such as ``openai:gpt-5``, or models of pydantic-ai: the first one is asked, the others in
    its place if it fails. ``prices`` are those of models that are not in the public list, by name. ``answers`` is the
    form of all answers; None: a model that calls no tool when it is first asked is asked for JSON that fits a schema
    from then on, if its endpoint offers that."""

    def __init__(
        self,
        models: Sequence[Any],
        *,
        timeout: float = TIMEOUT,
        stall_timeout: float = STALL_TIMEOUT,
        attempts: int = ATTEMPTS,
        longest_wait: float = LONGEST_WAIT,
        prices: Mapping[str, Price] | None = None,
        settings: Mapping[str, Any] | None = None,
        answers: Form | None = None,
        sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep,
    ) -> None:
        if not models:
            raise ValueError("name at least one model")
        self._models = tuple(models)
        self.timeout, self._stall_timeout = timeout, stall_timeout
        self._attempts, self._longest_wait = attempts, longest_wait
        self._prices, self._settings, self._sleep = dict(prices or {}), dict(settings or {}), sleep
        self._known_prices: dict[str, Price | None] = dict(self._prices)
        self._forms: dict[str, Form] = {} if answers is None else dict.fromkeys(self.names, answers)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(map(model_name, self._models))

    def price(self, name: str) -> Price | None:
        """The price of a model; None if it is unknown."""
        if name not in self._known_prices:
            self._known_prices[name] = listed_price(name)
        return self._known_prices[name]

    async def learn_prices(self) -> None:
        """Look the prices up, in a thread: the public list takes long to import."""
        unknown = [name for name in self.names if name not in self._known_prices]
        if unknown:
            await asyncio.to_thread(lambda: [self.price(name) for name in unknown])

    async def unpriced(self) -> str:
        """The models whose price is unknown."""
        await self.learn_prices()
        return ", ".join(name for name in self.names if self.price(name) is None)

    async def ask(self, question: ModelQuestion, pay: Pay) -> ModelAnswer:
        """The answer of the first model that gives one. Raises ModelFailed, and what ``pay`` raises."""
        await self.learn_prices()
        problems: list[str] = []
        for model in self._models:
            answer = await self._ask_model(model, question, pay, problems)
            if answer is not None:
                return answer
        raise ModelFailed("no model has answered: " + "; ".join(problems))

    async def _ask_model(
        self, model: Any, question: ModelQuestion, pay: Pay, problems: list[str]
    ) -> ModelAnswer | None:
        """The answer of one model. None, with the problem added, if it does not answer. The first answer tells in which
        form the model answers."""
        name = model_name(model)
        form = self._forms.get(name, "tools")
        try:
            answer = await self._ask_in_form(model, question, form, pay, problems)
        except _NoTools as problem:
            return await self._ask_without_tools(model, question, pay, problems, problem)
        if answer is not None:
            self._forms.setdefault(name, form)
        return answer

    async def _ask_without_tools(
        self, model: Any, question: ModelQuestion, pay: Pay, problems: list[str], refusal: _NoTools
    ) -> ModelAnswer | None:
        """The answer of a model that was asked with tools, and has called none: as JSON if its endpoint offers that. If
        not, the model is asked with tools again, and told in the conversation that it has to call one."""
        name, more = model_name(model), list[str]()
        log.info("%s: %s; it is asked for JSON that fits a schema", name, refusal)
        answer = await self._ask_in_form(model, question, "schema", pay, more)
        if answer is not None:
            self._forms[name] = "schema" if answer.calls or answer.text.lstrip().startswith("{") else "tools"
            return answer
        if not refusal.answered:
            problems += [f"{name}: {refusal}", *more]
            return None
        self._forms[name] = "tools"
        return await self._ask_in_form(model, question, "tools", pay, problems)

    async def _ask_in_form(
        self, model: Any, question: ModelQuestion, form: Form, pay: Pay, problems: list[str]
    ) -> ModelAnswer | None:
        """The answer of one model, which is asked again if it may answer later. None, with the problem added, if it
        does not answer. Raises _NoTools, if it is not known yet that the model calls none."""
        name = model_name(model)
        for attempt in range(1, self._attempts + 1):
            try:
                async with pay(question, name) as bill:
                    answer = await self._attempt(model, name, question, form, bill)
                    if form == "tools" and name not in self._forms and not (answer.calls or answer.refused):
                        raise _NoTools("it calls no tool", answered=True)
                    if answer.refused and model is not self._models[-1]:
                        raise _GiveUp("it refused to answer")
                    return answer
            except _Again as again:
                pause = again.after if again.after is not None else retry_delay(attempt, BACKOFF, chance=random)
                if attempt == self._attempts or pause > self._longest_wait:
                    waits = f", and asks to wait {pause:.0f} s" if pause > self._longest_wait else ""
                    problems.append(f"{name}: {again}{waits}")
                    return None
                log.info("%s: %s; attempt %d in %.1f s", name, again, attempt + 1, pause)
                await self._sleep(pause)
            except _NoTools as problem:
                if self._forms.get(name) != form:  # also if another question has found out meanwhile
                    raise
                problems.append(f"{name}: {problem}")
                return None
            except _GiveUp as problem:
                problems.append(f"{name}: {problem}")
                return None
        return None

    async def _attempt(self, model: Any, name: str, question: ModelQuestion, form: Form, bill: Bill) -> ModelAnswer:
        began, received = time.monotonic(), _Received()
        try:
            async with _within(bill.seconds):
                request = partial(self._request, model, question, form, bill.max_output, received)
                if isinstance(model, str):
                    response = await run_in_thread(request, "model call", patience=1.0)
                else:
                    response = await request()
        except _NotSent as problem:
            bill.cost = EditorCost()
            raise _GiveUp(str(problem)) from None
        except ModelMissing:
            bill.cost = EditorCost()
            raise
        except _Problem as problem:
            # what was streamed before the connection broke has been paid for, and the question if the model had it
            read = bool(received.text) or problem.accepted
            tokens = (estimated_tokens(question.text), estimated_tokens(received.text)) if read else (0, 0)
            took = time.monotonic() - began
            if isinstance(problem, _OutOfTime):
                took = max(took, bill.seconds or 0.0)
            bill.cost = EditorCost(name, 1, *tokens, self._dollars(name, *tokens), took)
            raise
        answer = answer_of(response, question, form, name)
        bill.cost = self._cost(name, question, answer, response, bill.max_output, time.monotonic() - began)
        return answer

    # -- what it costs -------------------------------------------------------------------------------------------------

    def _cost(
        self,
        name: str,
        question: ModelQuestion,
        answer: ModelAnswer,
        response: ModelResponse,
        max_output: int,
        seconds: float,
    ) -> EditorCost:
        said = answer.text + "".join(call.name + call.arguments for call in answer.calls)
        reported = (response.usage.input_tokens, response.usage.output_tokens)
        counted = (
            plausible_tokens(reported[0], question.text, most_input(question.text)),
            plausible_tokens(reported[1], said, max_output),
        )
        dollars = self._dollars(name, *counted)
        if reported == counted and name not in self._prices and not response.usage.unmeasured_requests:
            with contextlib.suppress(
                LookupError, ValueError, AssertionError
            ):  # counts cached tokens at their own price
                dollars = float(response.cost().total_price)
        return EditorCost(name, 1, *counted, dollars, seconds)

    def _dollars(self, name: str, input_tokens: int, output_tokens: int) -> float | None:
        price = self.price(name)
        return None if price is None else price.dollars(input_tokens, output_tokens)

    # -- one request ---------------------------------------------------------------------------------------------------

    async def _request(
        self, model: Any, question: ModelQuestion, form: Form, max_output: int, received: _Received
    ) -> ModelResponse:
        """Send a question as a stream. Raises _Again or _GiveUp."""
        require_extra()
        from pydantic_ai import exceptions
        from pydantic_ai.direct import model_request_stream

        # A call whose usage cannot be read is counted with the estimate; nobody has to be told on the terminal.
        warnings.simplefilter("ignore", exceptions.UsageExtractionFailedWarning)
        settings: ModelSettings = {
            "max_tokens": max_output,
            "request_timeout": self.timeout,
            "first_event_timeout": self._stall_timeout,
            "max_retries": 0,
            **self._settings,  # type: ignore[typeddict-item]
        }
        limit = MOST_CHARACTERS * max_output
        try:
            async with open_model(model) as opened:
                messages, parameters = messages_of(question, form), parameters_of(question, form)
                async with model_request_stream(
                    opened, messages, model_settings=settings, model_request_parameters=parameters
                ) as stream:
                    events = aiter(stream)
                    while True:
                        async with asyncio.timeout(self._stall_timeout):
                            event = await anext(events, None)
                        if event is None:
                            break
                        received.add(event)
                        if len(received.text) > limit:
                            raise _GiveUp(f"the answer has more than {max_output:,} tokens")
                    return stream.get()
        except TimeoutError:
            raise _Again(f"its stream has stalled for {self._stall_timeout:g} s", accepted=True) from None
        except exceptions.ModelRateLimitError as error:
            raise _Again(f"it limits the rate of requests ({_short(error)})", error.retry_after) from None
        except exceptions.ModelRequestTimeout as error:
            raise _Again(_short(error), error.retry_after, accepted=True) from None
        except (
            exceptions.ModelUnavailableError,
            exceptions.ModelServerError,
            exceptions.ModelConnectionError,
        ) as error:
            if _is_about_tools(error, form):
                raise _NoTools(_short(error)) from None
            raise _Again(_short(error), error.retry_after) from None
        except exceptions.UserError as error:  # an unknown model, or no key
            raise _NotSent(_short(error)) from None
        except exceptions.ModelAPIError as error:
            raise (_NoTools if _is_about_tools(error, form) else _GiveUp)(_short(error)) from None
        except (_Problem, ModelMissing):
            raise
        except Exception as error:  # a client library meets bytes that it did not expect
            raise _GiveUp(f"its answer cannot be read: {_short(error)}", accepted=True) from None


class _Problem(Exception):
    """A model did not answer. ``accepted``: it may have worked on the question, and is paid for reading it."""

    def __init__(self, problem: str, after: float | None = None, *, accepted: bool = False) -> None:
        super().__init__(problem)
        self.after, self.accepted = after, accepted


class _Again(_Problem):
    """The same model may answer later: after ``after`` seconds, if it says so."""


class _OutOfTime(_Again):
    """The budget pays for no more time."""


@contextlib.asynccontextmanager
async def _within(seconds: float | None) -> AsyncIterator[None]:
    """Raises _OutOfTime."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise _OutOfTime(f"it did not answer within {seconds:g} s, which the budget leaves", accepted=True) from None


class _GiveUp(_Problem):
    """The model will not answer this question."""


class _NoTools(_GiveUp):
    """The endpoint takes no question with tools; or, if it has ``answered``, the model has called none."""

    def __init__(self, problem: str, *, answered: bool = False) -> None:
        super().__init__(problem)
        self.answered = answered


def _is_about_tools(error: Exception, form: Form) -> bool:
    """Whether an endpoint refuses a question because of its tools. Each has words of its own, and a status of its own,
    from 400 to 501."""
    return form == "tools" and "tool" in str(error).lower()


class _NotSent(Exception):
    """The question cannot be sent."""


class _Received:
    """The text that a stream has brought so far."""

    def __init__(self) -> None:
        self._parts: list[str] = []

    def add(self, event: Any) -> None:
        for part in (getattr(event, "part", None), getattr(event, "delta", None)):
            for name in ("content", "content_delta", "args", "args_delta"):
                text = getattr(part, name, None)
                if isinstance(text, str):
                    self._parts.append(text)

    @property
    def text(self) -> str:
        if len(self._parts) > 1:
            self._parts = ["".join(self._parts)]
        return self._parts[0] if self._parts else ""


def _short(error: BaseException) -> str:
    text = " ".join(error_text(error).split())
    return text if len(text) <= 300 else f"{text[:300]}…"


# -- pydantic-ai -------------------------------------------------------------------------------------------------------


def model_name(model: Any) -> str:
    """``openai:gpt-5``"""
    return model if isinstance(model, str) else f"{model.system}:{model.model_name}"


def open_model(model: Any) -> Model:
    """A model from its name. Raises ModelMissing, and UserError of pydantic-ai."""
    require_extra()
    from pydantic_ai.models import infer_model

    try:
        return bound_model(infer_model(model))
    except ImportError as error:
        raise ModelMissing(
            f"model {model!r} needs a library that is not installed ({error}): {install_hint('model')}"
        ) from None


_BOUND = bound_hook(LARGEST_ANSWER)


def bound_model(model: Model) -> Model:
    """Limit the size of the answers of a provider, if its library has an HTTP client like that of httpx."""
    for part in (model, *getattr(model, "models", ())):
        client = getattr(getattr(part, "client", None), "_client", None)
        hooks = getattr(client, "event_hooks", None)
        if isinstance(hooks, dict) and _BOUND not in hooks.get("response", ()):
            hooks.setdefault("response", []).append(_BOUND)
            client.headers["accept-encoding"] = ACCEPTED  # type: ignore[union-attr]
    return model


def model_problem(model: Any) -> str | None:
    """Why a model cannot be asked: it is unknown, or there is no key. None if it can; nothing is sent."""
    try:
        open_model(model)
    except ModelMissing as error:
        return str(error)
    except Exception as error:  # UserError, or what the library of a provider raises
        key = re.search(r"\b[A-Z][A-Z0-9_]*_API_KEY\b", str(error))
        return _short(error) if key is None else f"its key is missing; set ${key[0]}"
    return None


def require_extra() -> None:
    """Raises ModelMissing."""
    if find_spec("pydantic_ai") is None:  # to import it takes seconds
        raise ModelMissing(f"models need pydantic-ai: {install_hint('model')}")
