"""Editors of a plan that commands load: a function of the user, or a model with its options; and device policies."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from asterism.base.private_file import config_folder
from asterism.base.text import clean
from asterism.cli.cli_context import options
from asterism.cli.option_types import option
from asterism.core.record import Record

if TYPE_CHECKING:
    from asterism.durable.editor_budget import Budget
    from asterism.fleet.fleet import Fleet
    from asterism.fleet.policy.device_policy import DevicePolicy
    from asterism.models.answer_form import Form
    from asterism.models.budget import Price
    from asterism.models.edit_proposals import EditProposer

MODEL = "model"
"""The editor that is a language model."""

MODEL_VARIABLE = "ASTERISM_MODEL"
"""The model if none is named."""


def budget_limits(text: str) -> Budget:
    """``$2``, ``40calls``, ``100ktokens``, ``10m``, ``50tasks``, or several of these."""
    from asterism.durable.editor_budget import Budget, InvalidBudget

    try:
        return Budget.parse(text)
    except InvalidBudget as error:
        raise click.BadParameter(f"{error}.") from None


def _price(text: str) -> Price:
    from asterism.models.budget import Price

    try:
        reads, writes = (float(part) for part in text.split("/"))
        return Price(reads, writes)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is not a price (example: 3/15, dollars for a million tokens in/out)."
        ) from None


model_options = options(
    option(
        "--model NAME",
        "With --editor model: the model, such as openai:gpt-5, anthropic:claude-sonnet-5-5 or openai-chat:NAME; "
        f"repeatable: the next is asked if one fails. Default: ${MODEL_VARIABLE}.",
        to="models",
        multiple=True,
    ),
    option(
        "--budget LIMITS",
        "With --editor model: what it may spend: '$2', '40calls', '100ktokens', '10m', '50tasks', or several. "
        "A spent budget holds the plan. Default: 200calls 500tasks, each unless it is named.",
        type=budget_limits,
    ),
    option("--goal TEXT", "With --editor model: what the plan is for.", default=""),
    option("--price IN/OUT", "Dollars for a million tokens, if --model is not listed.", type=_price),
    option(
        "--answers FORM",
        "With --editor model: calls of tools, or JSON that fits a schema, for a model that calls none. Default: found "
        "out with the first question.",
        type=click.Choice(("tools", "schema")),
    ),
)


proposer_options = options(
    option(
        "--model NAME",
        "The model, such as openai:gpt-5; repeatable: the next is asked if one fails.",
        to="models",
        multiple=True,
    ),
    option(
        "--budget LIMITS",
        "What it may spend on a plan: '$2', '40calls', '100ktokens', '10m', '50tasks', or several. Default: 200calls "
        "500tasks, each unless it is named.",
        type=budget_limits,
    ),
    option("--price IN/OUT", "Dollars for a million tokens, if --model is not listed.", type=_price),
    option(
        "--answers FORM",
        "Calls of tools, or JSON that fits a schema, for a model that calls none. Default: found out.",
        type=click.Choice(("tools", "schema")),
    ),
)
"""The options of a model that answers requests in words."""


def edit_proposer(
    models: tuple[str, ...], budget: Budget | None, price: Price | None, answers: Form | None
) -> EditProposer:
    """The model that the options name. Raises UsageError for one that cannot be asked: its name or its key is wrong."""
    from asterism.core.errors import AsterismError
    from asterism.models.edit_proposals import EditProposer
    from asterism.models.model_calls import ModelCaller, model_problem

    for model in models:
        problem = model_problem(model)
        if problem is not None:
            raise click.UsageError(f"--model {model} cannot be used: {problem}")
    try:
        prices = {} if price is None else dict.fromkeys(models, price)
        return EditProposer(ModelCaller(models, prices=prices, answers=answers), budget)
    except AsterismError as error:
        raise click.UsageError(f"{error}.") from None


class ModelTerms(Record):
    """What the options say."""

    models: tuple[str, ...]
    budget: Budget | None
    goal: str
    price: Price | None
    answers: Form | None
    ask: Any

    async def editor(self, fleet: Fleet) -> Any:
        """The editor of a plan in the store of a fleet."""
        from asterism.core.errors import AsterismError
        from asterism.models.model_editor import ModelEditor

        prices = {} if self.price is None else dict.fromkeys(self.models, self.price)
        try:
            editor = ModelEditor(
                self.models[0],
                fallback=self.models[1:],
                budget=self.budget,
                ask=self.ask or "failure",
                goal=self.goal,
                fleet=fleet,
                prices=prices,
                answers=self.answers,
            )
        except AsterismError as error:
            raise click.ClickException(f"{error}.") from None
        await self._check_models()
        return editor

    async def _check_models(self) -> None:
        """Raise UsageError for a model that cannot be asked: its name or its key is wrong. The first failure of the
        plan would be too late to learn that."""
        import asyncio

        from asterism.models.model_calls import model_problem

        for model in self.models:
            problem = await asyncio.to_thread(model_problem, model)  # the import takes long
            if problem is not None:
                raise click.UsageError(f"--model {model} cannot be used: {problem}")


def take_model_terms(editor: str | None, edit_on: Any, option_values: dict[str, Any]) -> ModelTerms | None:
    """Take the options of the model out of ``option_values``; None without ``--editor model``. Raises UsageError."""
    model_values = {name: option_values.pop(name) for name in ModelTerms.__struct_fields__ if name != "ask"}
    if editor != MODEL:
        for name, value in model_values.items():
            if value:
                option = {"models": "--model"}.get(name, f"--{name}")
                raise click.UsageError(f"{option} needs --editor model.")
        return None
    models = model_values["models"] or tuple(filter(None, [os.environ.get(MODEL_VARIABLE)]))
    if not models:
        raise click.UsageError(
            f"--editor model needs a model: --model openai:gpt-5, or ${MODEL_VARIABLE}. Its key is read from the "
            "environment, such as $OPENAI_API_KEY or $ANTHROPIC_API_KEY."
        )
    return ModelTerms(**model_values | {"models": models}, ask=edit_on)


async def resolve_editor(fleet: Fleet, orchestrator_options: dict[str, Any]) -> dict[str, Any]:
    """The options of an orchestrator, with the editor that ``--editor model`` stands for."""
    editor = orchestrator_options.get("editor")
    if not isinstance(editor, ModelTerms):
        return orchestrator_options
    return {**orchestrator_options, "editor": await editor.editor(fleet)}


def editor_words() -> list[str]:
    """The options with which a command that is advised continues with the editor of this one. The budget is kept with
    the plan."""
    context = click.get_current_context(silent=True)
    parameters = {} if context is None else context.params
    if not parameters.get("editor"):
        return []
    words = ["--editor", parameters["editor"]]
    for model in parameters.get("models") or ():
        words += ["--model", model]
    if parameters.get("goal"):
        words += ["--goal", parameters["goal"]]
    price, edit_on = parameters.get("price"), parameters.get("edit_on")
    words += [] if price is None else ["--price", f"{price.input:g}/{price.output:g}"]
    if edit_on is not None:
        rules = [edit_on] if isinstance(edit_on, str) else edit_on.words()
        words += [word for rule in rules for word in ("--edit-on", rule)]
    return words


# -- files of the user that commands load ------------------------------------------------------------------------------


def allow_imports(plan: str | None = None) -> None:
    """Let modules be imported from the working directory, and from the folder of a plan file.

    The folders go to the end of ``sys.path``, so no file in them replaces a module of Python, of this library or of its
    dependencies. Only commands that execute the user's code call this; ``check`` without ``--imports`` and ``show`` do
    not."""
    import subprocess  # noqa: F401  before: on some systems it tries to import modules that exist only on others

    for folder in (Path.cwd(), *(() if plan is None else (Path(plan).resolve().parent,))):
        if str(folder) not in sys.path:
            sys.path.append(str(folder))


OUTSIDE = "outside"
"""The editor of a plan that people and other processes edit."""


def editor_terms(path: str | None, edit_on: Any, option_values: dict[str, Any]) -> dict[str, Any]:
    """The options of an orchestrator for ``--editor`` and ``--edit-on``. Those of ``--editor model`` are taken out of
    ``option_values``; the editor is then a ModelTerms, which ``resolve_editor`` replaces."""
    model = take_model_terms(path, edit_on, option_values)
    if model is not None:
        return {"editor": model}
    if path == OUTSIDE:
        return {"editor": None, "external": True, "edit_on": edit_on or "all"}
    return {"editor": load_editor(path), "edit_on": edit_on or "all"}


def load_editor(path: str | None) -> Any:
    """The editor function that ``--editor`` names; None if it is left out."""
    from asterism.execution.function_modules import load_function

    if path is None:
        return None
    if ":" not in path:
        raise click.UsageError(f"--editor must be package.module:function, 'outside' or 'model', not {clean(path)!r}.")
    try:
        return load_function(path)
    except (Exception, SystemExit) as error:  # importing runs foreign code, which may raise anything
        raise click.ClickException(
            f"The editor {path!r} cannot be imported: {type(error).__name__}: {clean(str(error))}."
        ) from None


def default_policy_file() -> Path:
    """``$XDG_CONFIG_HOME/asterism/policy.yaml``, or the same under ``~/.config``."""
    return config_folder() / "policy.yaml"


def find_device_policy(path: str | None) -> tuple[DevicePolicy, str]:
    """The device policy, and a sentence about it: from the file at ``path``, or from the default file, or open.

    Raises InvalidDevicePolicy, and UsageError if the file cannot be read: a device that has a policy must not run
    without it."""
    from asterism.fleet.policy.device_policy import DevicePolicy

    file = Path(path) if path is not None else default_policy_file()
    try:
        return DevicePolicy.load(file), f"the device policy is {file}"
    except FileNotFoundError:
        if path is not None:
            raise click.UsageError(f"there is no device policy file {file}") from None
    except OSError as error:
        raise click.UsageError(f"the device policy file {file} cannot be read: {error.strerror}") from None
    return (
        DevicePolicy.open(),
        "no device policy file: this device executes every workflow in the store (see --device-policy)",
    )
