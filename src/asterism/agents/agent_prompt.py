"""The prompt for work of an agent, and the result in its answer: as text, or as JSON that fits a schema.

The description and the tips come from the author of the plan. The inputs are data, marked as untrusted: they may be the
output of other tasks. Secrets of the device are masked in all of them, before anything else is done with the texts. An
answer that does not fit the schema goes back to the agent with what is wrong, a bounded number of times. Patterns of a
schema are matched in bounded time (``linear_regex``): no answer stops the device for more than about a second.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from typing import Any

from asterism.base.linear_regex import MatchBudget, UnsupportedPattern, check_patterns
from asterism.base.startup import install_hint
from asterism.core.errors import AsterismError
from asterism.core.json_values import is_large, plain_json
from asterism.execution.task_inputs import LARGE_TEXT
from asterism.fleet.device.agent_work import AgentWork
from asterism.models.untrusted_text import UNTRUSTED_NOTICE, mark_untrusted

REPAIRS = 2
"""How often an agent is asked again for a result that fits the schema."""

LONGEST_ANSWER = 4 << 20
"""The longest answer, in characters."""

MOST_PROBLEMS = 5
_MOST_TRIES = 100
"""How many places of a text may be the beginning of the JSON in it."""

_FENCED = re.compile(r"^```[a-zA-Z]*[ \t]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
_BEGINNING = re.compile(r"[{\[]")


class AgentFailed(AsterismError):
    """An agent did not do the work: it refused, it ended, it asked for what it cannot get, or its answer is wrong."""


def load_extra(extra: str, what: str, *modules: str) -> list[Any]:
    """Modules of libraries that an extra of this package installs. Raises AgentFailed if one is missing; ``what`` says
    what needs it."""
    try:
        return list(map(import_module, modules))
    except ImportError:
        raise AgentFailed(f"{what} on this device: {install_hint(extra)}") from None


class InvalidAgentResult(AgentFailed):
    """The answer of an agent does not fit the schema of the result. ``problems`` are the first of its violations."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__(f"the answer of the agent does not fit the schema: {'; '.join(self.problems)}")


@dataclass(frozen=True, slots=True)
class AgentAnswer:
    """What an agent answered: a text, and values that it sent as data."""

    text: str
    values: tuple[Any, ...] = ()


def prompt_of(work: AgentWork) -> str:
    """The prompt for the first message to the agent."""
    mask = work.mask
    parts = [mask.text(work.description)]
    if work.tips:
        parts.append("\n".join(["Tips:", *(f"- {mask.text(tip)}" for tip in work.tips)]))
    if work.inputs:
        parts.append(UNTRUSTED_NOTICE)
        parts += [mark_untrusted(f"input {name!r}", _as_text(mask.data(value))) for name, value in work.inputs.items()]
    if work.result is not None:
        schema = json.dumps(plain_json(work.result), indent=2, ensure_ascii=False)
        parts.append(f"End your answer with the result as JSON in a ```json block. It must fit this schema:\n{schema}")
    return "\n\n".join(parts)


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(plain_json(value), indent=2, ensure_ascii=False)


def repair_prompt(error: InvalidAgentResult) -> str:
    """The message that asks for a result again."""
    problems = "\n".join(f"- {problem}" for problem in error.problems)
    return f"The result in your answer does not fit the schema:\n{problems}\n\nAnswer with only the corrected JSON."


async def agent_result(work: AgentWork, ask: Callable[[str], Awaitable[AgentAnswer]]) -> Any:
    """Ask the agent, and ask again while its answer does not fit the schema. Raises InvalidAgentResult, and AgentFailed
    for a schema that is not supported."""
    try:
        check_patterns(work.result)
    except UnsupportedPattern as error:
        raise AgentFailed(f"the schema of the result: {error}") from None
    answer = await ask(await asyncio.to_thread(prompt_of, work))  # inputs of megabytes take a while to mark
    for left in range(REPAIRS, -1, -1):
        try:
            return await _read_apart(answer, work.result)
        except InvalidAgentResult as error:
            if not left:
                raise
            work.note(f"{error}; asking again")
            answer = await ask(repair_prompt(error))
    raise AssertionError("unreachable")


async def _read_apart(answer: AgentAnswer, schema: Mapping[str, Any] | None) -> Any:
    """``read_result``, in a thread if the answer is large or the schema has patterns: the event loop goes on, except
    during one match."""
    large = len(answer.text) > LARGE_TEXT or is_large(list(answer.values)) or check_patterns(schema)
    return await asyncio.to_thread(read_result, answer, schema) if large else read_result(answer, schema)


def read_result(answer: AgentAnswer, schema: Mapping[str, Any] | None) -> Any:
    """The result in an answer. Without a schema it is the only value, or the text. Raises InvalidAgentResult."""
    if schema is None:
        return answer.values[0] if len(answer.values) == 1 and not answer.text.strip() else answer.text.strip()
    first: InvalidAgentResult | None = None
    budget = MatchBudget()
    for value in _candidates(answer):
        problems = schema_problems(value, schema, budget)
        if not problems:
            return value
        first = first or InvalidAgentResult(problems)
    raise first or InvalidAgentResult(["it has no JSON"])


def _candidates(answer: AgentAnswer) -> Iterator[Any]:
    """The values that may be the result, the likeliest first."""
    yield from reversed(answer.values)
    text = answer.text.strip()
    for block in (text, *reversed(_FENCED.findall(text))):
        try:
            yield json.loads(block)
        except (ValueError, RecursionError):
            continue
    yield from reversed(list(_values_in(text)))
    if text:
        yield text  # a schema may ask for a text


def _values_in(text: str) -> Iterator[Any]:
    """Objects and lists between other words."""
    decoder, end = json.JSONDecoder(), 0
    for tries, match in enumerate(_BEGINNING.finditer(text)):
        if tries >= _MOST_TRIES:
            return
        if match.start() < end:
            continue
        try:
            value, end = decoder.raw_decode(text, match.start())
        except (ValueError, RecursionError):
            continue
        yield value


def schema_problems(value: Any, schema: Mapping[str, Any], budget: MatchBudget | None = None) -> list[str]:
    """Why a value does not fit a JSON Schema; empty if it does. No schema is loaded from elsewhere. ``budget`` bounds
    the time of matches, for several values together."""
    jsonschema, referencing = load_extra("acp", "a result with a schema needs jsonschema", "jsonschema", "referencing")
    validator = _validator(jsonschema)(plain_json(schema), registry=referencing.Registry())
    current = _budget.set(budget or MatchBudget())
    try:
        errors = [error for error, _ in zip(validator.iter_errors(value), range(MOST_PROBLEMS), strict=False)]
    except referencing.exceptions.Unresolvable as error:
        raise AgentFailed(f"the schema of the result refers to {error}, which is not part of it") from None
    except UnsupportedPattern as error:
        return [str(error)]
    finally:
        _budget.reset(current)
    return [f"{error.json_path}: {error.message[:300]}" for error in errors]


_budget: ContextVar[MatchBudget] = ContextVar("budget")


@cache
def _validator(jsonschema: Any) -> Any:
    """The validator class, with patterns in bounded time: an agent wrote the texts."""
    keywords = {
        "pattern": partial(_pattern, jsonschema),
        "patternProperties": _pattern_properties,
        "additionalProperties": partial(_additional_properties, jsonschema),
    }
    return jsonschema.validators.extend(jsonschema.Draft202012Validator, keywords)


def _pattern(jsonschema: Any, validator: Any, pattern: str, value: Any, schema: Mapping[str, Any]) -> Iterator[Any]:
    if isinstance(value, str) and not _budget.get().is_found(pattern, value):
        yield jsonschema.ValidationError(f"{value!r} does not match {pattern!r}")


def _pattern_properties(
    validator: Any, patterns: Mapping[str, Any], value: Any, schema: Mapping[str, Any]
) -> Iterator[Any]:
    for name, item in value.items() if isinstance(value, dict) else ():
        for pattern, part in patterns.items():
            if _budget.get().is_found(pattern, name):
                yield from validator.descend(item, part, path=name, schema_path=pattern)


def _additional_properties(
    jsonschema: Any, validator: Any, rule: Any, value: Any, schema: Mapping[str, Any]
) -> Iterator[Any]:
    patterns = schema.get("patternProperties", {})
    for name, item in value.items() if isinstance(value, dict) else ():
        if name in schema.get("properties", {}) or any(_budget.get().is_found(pattern, name) for pattern in patterns):
            continue
        if rule is False:
            yield jsonschema.ValidationError(f"the property {name!r} is not allowed")
        else:
            yield from validator.descend(item, rule, path=name)
