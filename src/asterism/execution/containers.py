"""The action ``container``: a command in a container, run by ``podman`` or ``docker`` on the command line.

The container gets the working folder of the task and the files of its inputs at the same paths as a command of the
device would, the variables of the task, and nothing else of the device. It has the name and the labels of its run and
epoch, and ends with the task. Killing the client of an engine does not end the container, so it is removed by name:
after a cancellation here, after the death of this process by its guard, and by the next session of the device. A device
that gets a run again removes the containers of its earlier epochs first.
"""

from __future__ import annotations

import math
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from asterism.base import operating_system
from asterism.core.errors import AsterismError, DeviceUnavailable
from asterism.core.json_values import SizeLimit
from asterism.execution import command_inputs
from asterism.execution.actions import Attempt, Command, CommandFiles, run_program
from asterism.execution.plugin_actions import Action
from asterism.execution.processes import CommandFailed, own_part
from asterism.execution.task_inputs import is_reserved

ENGINE_VARIABLE = "ASTERISM_CONTAINER_ENGINE"
"""The engine of this device, if it is not the first of ``ENGINES`` on the PATH: a name or a path."""

ENGINES = ("podman", "docker")

_OF_DEVICE = ("ASTERISM_SESSION", "ASTERISM_FLEET", "ASTERISM_AGENT")
"""Variables that mark processes of this machine, which those of a container are not."""

_STEERS = re.compile(
    r"_*(DOCKER|CONTAINER|CONTAINERS|PODMAN|BUILDAH|REGISTRY|STORAGE|XDG|LD|DYLD|SSL|SSH|TMP|GO\w*)(_\w*)?|\w*_PROXY"
    r"|(NOTIFY|LISTEN|DBUS|SYSTEMD)_\w*|PATH|HOME|TMPDIR",
    re.IGNORECASE,
)
"""Variables that the client of an engine reads itself."""

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
"""The name of a variable. With a ``*`` at its end, podman would pass all variables of the device that begin so."""

_LINE = re.compile(r"(?![\"'`\s])[^\x00-\x08\x0a-\x1f\x7f\x85\u2028\u2029]{0,16000}(?<!\s)")
"""A value that every engine reads from a file of variables as it is."""

_NO_IMAGE = re.compile(
    r"-|\s*$|(dir|oci|oci-archive|docker-archive|docker-daemon|containers-storage|ostree|sif|tarball):", re.IGNORECASE
)
"""Options, and files of the device that podman would read as an image, which no registry allows or refuses."""

_FORMS = (
    ("entrypoint", r".+", "/bin/sh, python"),
    ("memory", r"[0-9]+[bkmg]?", "512m, 2g"),
    ("network", r"(?!host$)[A-Za-z0-9][\w.-]*", "none, backend"),
    ("user", r"\w[\w.-]*(:\w[\w.-]*)?", "1000, 1000:1000, nobody"),
)
"""What a text of a container is, with examples."""

_EPOCH = re.compile(r"-([0-9]+)-[0-9a-f]+-[0-9a-f]+$")
"""The epoch in the name of a container."""

_LISTED = SizeLimit(1 << 20, "docker container prune")


class SecretVisible(AsterismError):
    """A secret in a variable that cannot be passed to a container without showing it."""


@dataclass(frozen=True)
class Container(Action):
    """A command in a container of podman or docker. ``{name}`` in ``image`` and in a word of ``argv`` stands for an
    input; without ``argv`` the image says what to run. ``entrypoint`` is the program instead of that of the image.
    ``memory`` (such as ``512m``) and ``cpus`` (such as 1.5) are limits, ``network`` is ``none`` or a network of the
    engine, ``pull`` says when the image is fetched, ``user`` is a user, or user:group, in the container."""

    starts_processes: ClassVar[bool] = True
    uses_network: ClassVar[bool] = True

    image: str
    argv: tuple[str, ...] = ()
    entrypoint: str | None = None
    memory: str | None = None
    cpus: float | None = None
    network: str | None = None
    pull: Literal["missing", "always", "never"] = "missing"
    user: str | None = None

    def problems(self) -> Iterator[str]:
        if _NO_IMAGE.match(self.image):
            yield f"image: {self.image!r} is not the name of an image"
        if self.cpus is not None and not 0 < self.cpus < math.inf:
            yield "cpus is a number above 0"
        for name, pattern, example in _FORMS:
            value = getattr(self, name)
            if value is not None and not re.fullmatch(pattern, value):
                yield f"{name}: {value!r} is not valid (examples: {example})"

    @classmethod
    def unavailable(cls) -> str | None:
        return None if find_engine() is not None else missing_engine()

    async def execute(self, attempt: Attempt) -> Any:
        engine = find_engine()
        if engine is None:
            raise DeviceUnavailable(missing_engine())
        run = attempt.identity().get("ASTERISM_RUN")
        if run is not None:
            await _remove_earlier(attempt, engine, run)
        return await run_program(attempt, lambda texts: self._command(attempt, engine, texts))

    async def cancel(self, attempt: Attempt) -> None:
        engine = find_engine()
        if engine is not None:
            await _ask(attempt, remove_words(engine, [name_of(attempt)]))

    def _command(self, attempt: Attempt, engine: str, texts: Mapping[str, str]) -> Command:
        attempt.check_variables()
        image = attempt.fill(self.image)
        if _NO_IMAGE.match(image):
            raise AsterismError(f"{image!r} is not the name of an image")
        words = [engine, "run", "--rm", "--name", name_of(attempt), f"--pull={self.pull}"]
        for name, value in _labels(attempt).items():
            words += ["--label", f"asterism.{name}={value}"]
        limits = {"memory": self.memory, "cpus": self.cpus, "network": self.network, "entrypoint": self.entrypoint}
        words += [f"--{name}={value}" for name, value in limits.items() if value is not None]
        user = self.user or _own_user(engine)
        words += [] if user is None else [f"--user={user}"]
        mounted = attempt.folder or (None if attempt.action.cwd is None else attempt.directory())
        if mounted is not None:
            words += ["--volume", f"{mounted}:{mounted}:z", "--workdir", str(mounted)]
        inputs = command_inputs.prefixed_variables(texts, "")
        for name in attempt.resolved.environment:
            if not _VARIABLE.fullmatch(name):
                raise AsterismError(f"{name!r} is not the name of a variable of a container")
        variables = command_inputs.passable((), {**attempt.resolved.environment, **inputs, **attempt.identity()})
        marks = {name: variables.pop(name) for name in _OF_DEVICE if name in variables}
        given = attempt.resolved.environment
        filed = {name: variables.pop(name) for name in given if _LINE.fullmatch(variables.get(name, "\n"))}
        passed = {name: value for name, value in variables.items() if not _is_own(name)}
        shown = {name: value for name, value in variables.items() if _is_own(name)}
        _refuse_secrets(shown, attempt)
        words += [f"--env={name}" for name in passed]
        words += [f"--env={name}={value}" for name, value in shown.items()]
        last = [image, *map(attempt.fill, self.argv)]

        def complete(files: CommandFiles) -> list[str]:
            return [*words, *_variable_words(filed, files), *_file_words(files), *last]

        environment = command_inputs.passable([*words, *last], {**os.environ, **marks, **passed})
        undo = tuple(remove_words(engine, [name_of(attempt)]))
        return Command([*words, *last], None, environment, None, undo, complete)


def find_engine() -> str | None:
    """The path of the engine of this device; None if it has none."""
    named = os.environ.get(ENGINE_VARIABLE)
    return next(filter(None, map(shutil.which, (named,) if named else ENGINES)), None)


def missing_engine() -> str:
    named = os.environ.get(ENGINE_VARIABLE)
    if named:
        return f"{ENGINE_VARIABLE} is {named!r}, and there is no such command on this device"
    return "there is neither podman nor docker on this device"


def name_of(attempt: Attempt) -> str:
    """The name of the container of an attempt, unique on this machine."""
    labels = _labels(attempt)
    whose = re.sub(r"[^A-Za-z0-9_.-]", "-", labels.get("run") or labels.get("task") or "task")[:60]
    return f"asterism-{whose}-{labels['epoch']}-{os.getpid():x}-{id(attempt):x}"


def remove_words(engine: str, names: Iterable[str]) -> list[str]:
    """The command that ends containers at once, and removes them."""
    at_once = ["--time", "0"] if Path(engine).name == "podman" else []
    return [engine, "rm", "--force", *at_once, *names]


def _labels(attempt: Attempt) -> dict[str, str]:
    identity = attempt.identity()
    names = {"run": "ASTERISM_RUN", "epoch": "ASTERISM_EPOCH", "device": "ASTERISM_DEVICE"}
    names |= {"plan": "ASTERISM_PLAN", "task": "ASTERISM_TASK"}
    return {name: identity[variable] for name, variable in names.items() if variable in identity}


async def _remove_earlier(attempt: Attempt, engine: str, run: str) -> None:
    """Remove what earlier epochs of a run have left. Raises DeviceUnavailable if the engine does not answer.

    The container of a later epoch stays: another device of this machine owns the run, and this one comes too late."""
    own = int(_labels(attempt)["epoch"])
    try:
        listing = [engine, "ps", "--all", "--format", "{{.Names}}", "--filter", f"label=asterism.run={run}"]
        found = str(await _ask(attempt, listing)).split()
        names = [name for name in found if (epoch := _EPOCH.search(name)) is not None and int(epoch[1]) <= own]
        if names:
            attempt.note(f"removing what an earlier attempt has left: {', '.join(names)}")
            await _ask(attempt, remove_words(engine, names))
    except (CommandFailed, OSError) as error:
        raise DeviceUnavailable(f"the container engine of this device does not answer: {error}") from error


async def _ask(attempt: Attempt, words: list[str]) -> Any:
    return await attempt.commands.run(words, dict(os.environ), result_limit=_LISTED)


def _own_user(engine: str) -> str | None:
    """The user for whom an engine with a daemon, which runs as root, makes the files of a task."""
    user = operating_system.user_id()
    return f"{user}:{operating_system.group_id()}" if user and Path(engine).name == "docker" else None


def _file_words(files: CommandFiles) -> Iterator[str]:
    """The files of the attempt, one by one: what else is in their folder is not the container's."""
    for name, path in files.variables.items():
        writable = name == "ASTERISM_PROGRESS"
        yield f"--env={name}"
        yield f"--volume={path}:{path}:{'z' if writable else 'ro,z'}"


def _variable_words(variables: Mapping[str, str], files: CommandFiles) -> list[str]:
    """The variables of the task in a file that only this user can read: the client of the engine, which may be a
    script, does not have them. Raises DeviceTrouble."""
    if not variables:
        return []
    assert files.folder is not None  # it has the command that removes the container
    path = files.folder / "variables"
    with own_part("the variables of its container could not be written"):
        text = "".join(f"{name}={value}\n" for name, value in variables.items())
        path.touch(0o600)
        path.write_text(text, "utf-8", "surrogateescape")
    return [f"--env-file={path}"]


def _is_own(name: str) -> bool:
    """Whether a variable means something to the client of the engine, too, or to a shell that runs it: it keeps that of
    the device."""
    steers = _STEERS.fullmatch(name) is not None or (is_reserved(name) and not name.startswith("ASTERISM_"))
    return name in os.environ or steers


def _refuse_secrets(variables: Mapping[str, str], attempt: Attempt) -> None:
    """Raise SecretVisible for a secret that the list of processes of this machine would show."""
    secrets = [value for value in attempt.resolved.mask.values.values() if value]
    for name, value in variables.items():
        if any(secret in value for secret in secrets):
            raise SecretVisible(
                f"the variable {name!r} has a meaning for the container engine; give the secret another"
            )
