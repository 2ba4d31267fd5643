"""Workflow files in YAML: one workflow, or several by name.

::

    name: transcode                      # one
    argv: [ffmpeg, -i, "{file}", "{out}"]
    needs: [gpu]
    heartbeat: 30s

    workflows:                           # or several
      transcode: {argv: [ffmpeg, -i, "{file}", "{out}"], needs: [gpu]}
      tidy: {shell: rm -rf "$folder"}

The keys are the fields of a workflow; durations are seconds, or text such as ``90s`` and ``15m``. All mistakes of a
file are reported at once, each with its line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from asterism.base import expressions
from asterism.base.durations import InvalidDuration, parse_duration
from asterism.base.text import request_url_problem
from asterism.base.yaml_lines import Mistake, YamlMapping, line_of, parse_yaml, read_text
from asterism.core.errors import AsterismError, InvalidWorkflow, suggestion
from asterism.core.plan.task import ACTIONS
from asterism.core.run.work import DEFAULTS, SECONDS, Workflow, ambiguous_timeout
from asterism.planfile.plugin_keys import plugin_key

KEYS = tuple(name for name in DEFAULTS if name != "version")
_DURATIONS = frozenset({*SECONDS, "backoff", "backoff_most"})
_EXPRESSIONS = ("requires", "prefers")


class BadWorkflowFile(AsterismError):
    """A workflow file that cannot be used. ``mistakes`` are all of them, in the order of their lines."""

    def __init__(self, name: str, mistakes: Sequence[Mistake]) -> None:
        self.name, self.mistakes = name, tuple(sorted(mistakes))
        super().__init__("\n".join(mistake.format(name) for mistake in self.mistakes))


def load_workflows(path: str) -> list[Workflow]:
    """The workflows in a file, in its order. Raises BadWorkflowFile, and OSError if it cannot be read."""
    text, mistakes = read_text(path)
    if mistakes:
        raise BadWorkflowFile(path, mistakes)
    return parse_workflows(text, path)


def parse_workflows(text: str, name: str = "workflow") -> list[Workflow]:
    """``load_workflows``, for a text."""
    data, mistakes = parse_yaml(text)
    workflows = _File(data, mistakes).workflows()
    if mistakes:
        raise BadWorkflowFile(name, mistakes)
    return workflows


def _plugin_problem(plugin: Mapping[str, Any]) -> str | None:
    from asterism.execution.plugin_actions import check_plugin

    return check_plugin(plugin)


class _File:
    def __init__(self, data: Any, mistakes: list[Mistake]) -> None:
        self.data, self.mistakes = data, mistakes

    def blame(self, path: tuple[str, ...], text: str) -> None:
        self.mistakes.append(Mistake(line_of(self.data, path), text))

    def workflows(self) -> list[Workflow]:
        if not isinstance(self.data, YamlMapping):
            if not self.mistakes:
                self.blame((), f"a workflow must be a mapping with a name and one of {', '.join(ACTIONS)}")
            return []
        if "workflows" not in self.data:
            if "name" not in self.data:
                self.blame((), "the key 'name' is missing; to define several workflows, use the key 'workflows'")
                return []
            fields = {key: value for key, value in self.data.items() if key != "name"}
            return self._workflow((), self.data["name"], fields)
        for key in self.data:
            if key != "workflows":
                self.blame((key,), f"unknown key {key!r} beside 'workflows'")
        several = self.data["workflows"]
        if not isinstance(several, YamlMapping) or not several:
            self.blame(("workflows",), "workflows must be a mapping of names to workflows, and not empty")
            return []
        return [flow for name, fields in several.items() for flow in self._workflow(("workflows", name), name, fields)]

    def _workflow(self, path: tuple[str, ...], name: Any, fields: Any) -> list[Workflow]:
        """A list with the workflow, or an empty one after a mistake."""
        if not isinstance(fields, dict):
            self.blame(path, f"workflow {name!r} must be a mapping")
            return []
        before = len(self.mistakes)
        ambiguous = ambiguous_timeout(fields)
        if ambiguous is not None:
            self.blame((*path, "timeout"), f"workflow {name!r}: {ambiguous}")
        plugin = plugin_key(fields, (*KEYS, "name"))
        if plugin is not None:
            fields = {**fields, "plugin": {plugin: fields[plugin]}}
            del fields[plugin]
        values = {key: self._value(path, key, value) for key, value in fields.items()}
        known = {key: value for key, value in values.items() if key in KEYS}
        try:
            flow = Workflow.from_json({"name": name, **known})
        except InvalidWorkflow as error:
            for problem in error.problems:
                place = (*path, problem.field) if problem.field in fields else path
                self.blame(place, f"workflow {name!r}: {problem.text}")
            if not error.problems:
                self.blame(path, str(error))
            return []
        mistake = None if flow.plugin is None else _plugin_problem(flow.plugin)
        if mistake is not None:
            self.blame(path, f"workflow {name!r}: {mistake}")
        return [flow] if len(self.mistakes) == before else []

    def _value(self, path: tuple[str, ...], key: str, value: Any) -> Any:
        if key not in KEYS:
            hint = suggestion(key, KEYS) or f"; the keys are {', '.join(KEYS)}"
            self.blame((*path, key), f"unknown key {key!r}{hint}")
        elif key in _DURATIONS and isinstance(value, str):
            try:
                return parse_duration(value, unit_required=True)
            except InvalidDuration as error:
                self.blame((*path, key), f"{key}: {error}")
                return DEFAULTS[key]
        elif key in ("needs", "wants") and isinstance(value, list):
            for word in (capability for capability in value if isinstance(capability, str) and "," in capability):
                parts = ", ".join(part.strip() for part in word.split(",") if part.strip())
                self.blame((*path, key), f"{key}: a capability contains no comma; write [{parts}] instead of {word!r}")
        elif key == "http" and isinstance(value, dict) and isinstance(value.get("url"), str):
            problem = request_url_problem(value["url"])
            if problem is not None:
                self.blame((*path, key, "url"), f"http.url: {problem}")
        elif key in _EXPRESSIONS and isinstance(value, str):
            problem = expressions.check(value)
            if problem is not None:
                self.blame((*path, key), f"{key}: the expression {value!r} is not valid: {problem}")
        return value
