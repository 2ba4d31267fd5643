"""The device policy: which commands, functions, hosts, directories and secrets a device allows.

A device policy lists what is allowed; everything else is refused. A run, its workflow and its input cannot widen it: it
judges what would be executed, after every ``{name}`` is filled in and every symbolic link is followed, and exactly what
was judged is executed. Without a device policy everything is allowed.

Limits. An allowed command does what it likes, with any arguments: a policy that lists ``sh``, ``env`` or ``python``
allows everything. A function runs inside the agent and sees all that the agent sees; ``environment`` and
``directories`` apply to commands. Host names are compared as text: a listed name means a trusted owner. A name that
only a pattern such as ``*.example.org`` allows may belong to anybody, so it does not reach addresses that are not
public, such as the loopback or the metadata of a cloud.

``permissions`` lists what an agent on the device may ask for. It applies without a device policy file, too: an agent
follows the text that it reads, so nothing that it asks for is allowed unless a file says so.

``plugins`` lists the plug-ins whose work the device does. A plug-in that is listed runs inside the agent, and starts
what programs it likes: ``plugins: [container]`` allows every image, with the network.

``secrets`` lists variables of the device that hold secrets: work may read them as ``{"secret": NAME}``, and their
values are masked in all text that leaves the device, even if the work does not refer to them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from asterism.base.secret_mask import secret_names
from asterism.core.errors import AsterismError, DeviceUnavailable, NotJson
from asterism.core.plan.task import import_path, kind_of, plugin_name
from asterism.core.run.run import Run
from asterism.core.run.work import Workflow
from asterism.execution.task_inputs import VARIABLE_PREFIX
from asterism.fleet.policy.rule_patterns import (
    DEFAULT_PORTS,
    HostRule,
    NamePatterns,
    compile_pattern,
    is_pattern,
    is_public,
    parse_host,
)

ORDINARY = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "TZ", "TMPDIR", "LANG", "LANGUAGE", "LC_*"),
    "__CF_USER_TEXT_ENCODING",
)
"""The variables of the device that every command gets."""

_AUTHORITY = re.compile(r"[^{}/?#]*//[^{}/?#]*(?=[/?#]|$)")
"""The scheme and host of a URL, if no input is part of them."""
_IMPORT = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)


class PolicyForbids(AsterismError):
    """The device policy does not allow it. ``begun`` says whether something was executed before, as with a redirect to
    a host that is not allowed."""

    def __init__(self, why: str, *, begun: bool = False) -> None:
        self.begun = begun
        super().__init__(why)


@dataclass(frozen=True)
class Rules:
    """The rules of a device policy. ``workflows`` of None allows all workflows; any other empty rule allows nothing."""

    commands: tuple[str, ...] = ()
    shell: bool = False
    callables: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    directories: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    workflows: tuple[str, ...] | None = None
    permissions: tuple[str, ...] = ()
    plugins: tuple[str, ...] = ()


PERMISSIONS = ("read", "edit", "delete", "move", "search", "execute", "fetch", "think", "switch_mode", "other")
"""What an agent may ask for: the kinds of tool calls of the Agent Client Protocol."""


@dataclass(frozen=True)
class Program:
    """A command as it will be executed: the file, with all links followed, and the name it is called by."""

    file: str
    name: str


class DevicePolicy:
    """``name`` names it in messages. ``rules`` of None allow everything. With ``only_public`` no request goes to an
    address that is not public, whatever ``hosts`` says. Raises ValueError for a rule that is not valid; ``load`` names
    its line."""

    def __init__(self, rules: Rules | None, name: str = "the device policy", *, only_public: bool = False) -> None:
        self.everything, self.only_public = rules is None, only_public
        self.rules, self.name = rules or Rules(), name
        self._workflows = None if self.rules.workflows is None else NamePatterns(self.rules.workflows)
        self._passed = NamePatterns((*ORDINARY, *self.rules.environment))
        self._listed = NamePatterns(self.rules.environment)
        self._secrets = NamePatterns(self.rules.secrets)
        self._plugins = NamePatterns(self.rules.plugins)
        self._hosts = [HostRule.parse(entry) for entry in self.rules.hosts]
        self._callables = [_import_pattern(entry) for entry in self.rules.callables]

    @classmethod
    def load(cls, path: Path | str) -> DevicePolicy:
        """Read a device policy from a file. Raises InvalidDevicePolicy with every mistake, and OSError if the file
        cannot be read."""
        from asterism.fleet.policy.policy_file import read  # pydantic and yaml are slow to import

        file = Path(path)
        return cls(read(file), file.name)

    @classmethod
    def open(cls) -> DevicePolicy:
        """A device policy that allows everything."""
        return cls(None)

    @classmethod
    def without_file(cls) -> DevicePolicy:
        """The device policy of a server that has no file: requests to public addresses, and nothing else."""
        return cls(Rules(hosts=("*:*",)), "a server without a device policy file", only_public=True)

    def _forbid(self, what: str, key: str, **details: Any) -> PolicyForbids:
        if self.only_public:
            advice = f"list it under '{key}' in a file, and name the file with --device-policy"
            return PolicyForbids(f"{self.name} does not allow {what}: {advice}", **details)
        return PolicyForbids(f"{self.name} of this device does not allow {what}: see '{key}' in it", **details)

    # -- beforehand --------------------------------------------------------------------------------------------------

    def objection(self, subject: Run | Workflow) -> str | None:
        """Why this device never executes a run, or runs of a workflow, whatever the input; None if it may."""
        if self.everything:
            return None
        reasons = []
        for judged in self._judgements(subject):
            try:
                judged()
            except PolicyForbids as error:
                reasons.append(str(error))
            except Exception:  # not available now, or wrong in another way: reported by the execution
                continue
        return "; ".join(reasons) or None

    def _judgements(self, subject: Run | Workflow) -> Iterator[Callable[[], object]]:
        work = subject.work
        yield lambda: self.workflow(subject.name if isinstance(subject, Workflow) else subject.workflow)
        if work.argv is not None and "{" not in work.argv[0] and "}" not in work.argv[0]:
            yield lambda: self.command(work.argv[0])  # type: ignore[index]
        if work.shell is not None:
            yield self.shell
        if work.call is not None:
            yield lambda: self.call(work.call)
        if work.plugin is not None:
            yield lambda: self.plugin(work.plugin)
        if work.http is not None:
            known = _AUTHORITY.match(work.http["url"])
            if known is not None:
                yield lambda: self.url(known[0])
            headers = work.http.get("headers")
            if isinstance(headers, Mapping):
                yield lambda: self.headers(headers)
        if kind_of(work) in ("argv", "shell", "agent", "plugin"):
            yield lambda: self.directory(work.cwd)
            yield lambda: self.variables(work.env)
        for name in secret_names([work.env, work.http]):
            yield partial(self.secret, name)

    # -- one by one; each raises PolicyForbids -----------------------------------------------------------------------

    def workflow(self, name: str) -> None:
        if not self.everything and self._workflows is not None and name not in self._workflows:
            raise self._forbid(f"the workflow {name!r}", "workflows")

    def shell(self) -> None:
        if not self.everything and not self.rules.shell:
            raise self._forbid("shell lines", "shell")

    def command(self, word: str) -> Program | None:
        """The program that the first word of a command names; None if the operating system looks it up. Raises
        DeviceUnavailable if it is allowed and does not exist."""
        if self.everything:
            return None
        forbidden = self._forbid(f"the command {word[:200]!r}", "commands")
        if not word.startswith("/") and "/" in word:
            raise forbidden
        path = word if "/" in word else _on_path(word)
        if path is None:
            if any("/" not in entry and compile_pattern(entry).fullmatch(word) for entry in self.rules.commands):
                raise DeviceUnavailable(f"there is no command {word!r} on this device")
            raise forbidden
        name = _named(path)
        program = Program(os.path.realpath(name), name)
        by_name = "/" not in word  # found on the PATH, like the entries of that name
        if not any(_allows_program(entry, program, by_name) for entry in self.rules.commands):
            raise forbidden
        if not os.path.isfile(program.file):
            raise DeviceUnavailable(f"there is no command {word!r} on this device")
        return program

    def call(self, call: Callable[..., Any] | str | None) -> None:
        """Judge a function by its import path, before anything is imported."""
        if self.everything or call is None:
            return
        try:
            path = import_path(call, "a run")
        except NotJson:
            raise self._forbid(f"{call!r}, which cannot be imported,", "callables") from None
        if not _IMPORT.fullmatch(path) or not any(pattern.fullmatch(path) for pattern in self._callables):
            raise self._forbid(f"the function {path[:200]!r}", "callables")

    def plugin(self, plugin: Mapping[str, Any] | None) -> None:
        """Judge the work of a plug-in by the name of the plug-in, before it is imported."""
        if plugin is not None:
            self.plugin_named(plugin_name(plugin))

    def plugin_named(self, name: str) -> None:
        if not self.everything and name not in self._plugins:
            raise self._forbid(f"the plug-in {name[:200]!r}", "plugins")

    def called(self, path: str, function: Callable[..., Any]) -> None:
        """Judge an imported function by its own module: a pattern does not allow what a module merely imports."""
        if self.everything or path in self.rules.callables:
            return
        real = f"{getattr(function, '__module__', None)}:{getattr(function, '__qualname__', None)}"
        if not any(pattern.fullmatch(real) for pattern in self._callables):
            raise self._forbid(f"the function {path!r}, which is really {real!r}", "callables")

    def host(self, scheme: str, host: str, port: int | None, userinfo: bool = False, *, begun: bool = False) -> None:
        """Judge the parts of a URL, as the HTTP client has parsed them."""
        if self.everything:
            return
        if scheme not in DEFAULT_PORTS:
            raise self._forbid(f"the scheme {scheme!r}", "hosts", begun=begun)
        if userinfo:
            raise self._forbid("a name or password in an address", "hosts", begun=begun)
        place, number = parse_host(host), DEFAULT_PORTS[scheme] if port is None else port
        if place is None or not any(rule.allows(scheme, place, number) for rule in self._hosts):
            raise self._forbid(f"requests to {scheme}://{host[:200]}:{number}", "hosts", begun=begun)

    @property
    def judges_addresses(self) -> bool:
        """Whether a name may be allowed by a pattern, so that the address it resolves to has to be judged, too."""
        return self.only_public or (not self.everything and any(rule.pattern for rule in self._hosts))

    def address(self, host: str, port: int, address: str, *, begun: bool = False) -> None:
        """Judge an address to which the name of an allowed host resolves, before the connection to it."""
        place, known = parse_host(host), parse_host(address)
        if not self.judges_addresses or (not isinstance(known, str) and is_public(known)):
            return
        trusted = not isinstance(place, str) or any(rule.trusts(place, known, port) for rule in self._hosts)
        if trusted and not self.only_public:
            return  # ``host`` has judged what is an address itself
        what = f"requests to {host[:200]}:{port}, whose address {address} is not public"
        raise self._forbid(what, "hosts", begun=begun)

    def url(self, url: Any, *, begun: bool = False) -> None:
        """Judge a URL, parsed by httpx as for the request itself: two parsers might read it differently."""
        if self.everything:
            return
        import httpx

        known = httpx.URL(url)
        self.host(known.scheme, known.raw_host.decode("ascii"), known.port, bool(known.userinfo), begun=begun)

    def headers(self, headers: Iterable[str]) -> None:
        """Refuse a ``Host`` header: it may name another host than the URL that is judged."""
        if not self.everything and any(str(name).strip().lower() == "host" for name in headers):
            raise self._forbid("a request with a 'Host' of its own", "hosts")

    def directory(self, cwd: str | None) -> str | None:
        """The working directory of a command, with all links followed; None for that of the agent. A command without a
        directory runs in the first listed one, if the agent runs in none of them. Raises DeviceUnavailable if it does
        not exist."""
        if self.everything:
            return cwd
        roots = [os.path.realpath(os.path.expanduser(root)) for root in self.rules.directories]
        if cwd is None and not roots:
            return None
        place = os.path.realpath(os.getcwd() if cwd is None else cwd)
        if not any(_inside(place, root) for root in roots):
            if cwd is not None:
                raise self._forbid(f"the directory {cwd[:200]!r}", "directories")
            place = roots[0]
        if not os.path.isdir(place):
            raise DeviceUnavailable(f"there is no directory {place!r} on this device")
        return place

    def passes(self, name: str) -> bool:
        """Whether commands get this variable of the device."""
        return self.everything or name in self._passed

    def may_set(self, name: str) -> bool:
        """Whether a workflow may set a variable of this name."""
        return self.everything or name in self._listed or name in self._secrets

    def may_be_given(self, name: str) -> bool:
        """Whether an input may become a variable of this name."""
        return self.everything or (name in self._listed and name not in self._secrets)

    def variables(self, names: Iterable[str]) -> None:
        refused = [name for name in names if not self.may_set(name)]
        if refused:
            raise self._forbid(f"to set {', '.join(map(repr, refused))}", "environment")

    def counts_on(self, name: str) -> None:
        """Refuse a shell line that uses the variable of an input which may not become one."""
        if not self.may_be_given(name):
            raise self._forbid(f"to set {name!r} (${VARIABLE_PREFIX}{name} is there in any case)", "environment")

    def secret(self, name: str) -> None:
        if not self.everything and name not in self._secrets:
            raise self._forbid(f"to read the secret {name!r}", "secrets")

    def permission(self, kind: str) -> None:
        """Judge the kind of something that an agent asks for. Without a device policy file nothing is allowed."""
        if kind not in self.rules.permissions:
            raise self._forbid(f"an agent to ask for {kind!r}", "permissions")

    def file(self, path: str) -> str:
        """A file that an agent may read or write, with all links followed: it is in one of ``directories``."""
        if not os.path.isabs(path):
            raise self._forbid(f"the path {path[:200]!r}, which is not absolute", "directories")
        place = os.path.realpath(path)
        roots = [os.path.realpath(os.path.expanduser(root)) for root in self.rules.directories]
        if not self.everything and not any(_inside(place, root) for root in roots):
            raise self._forbid(f"the file {path[:200]!r}", "directories")
        return place

    def holds_secret(self, name: str) -> bool:
        """Whether the device policy lists a variable as a secret."""
        return name in self._secrets


# -- commands ----------------------------------------------------------------------------------------------------------


def _on_path(name: str) -> str | None:
    """The path of a command on the device's PATH. Relative entries of the PATH are skipped."""
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        path = os.path.join(folder, name)
        if os.path.isabs(folder) and os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return None


def _named(path: str) -> str:
    """The path with all links in its directory followed. The last part is kept: programs behave by their name."""
    folder, name = os.path.split(path)
    return os.path.realpath(path) if name in ("", ".", "..") else os.path.join(os.path.realpath(folder), name)


def _allows_program(entry: str, program: Program, by_name: bool) -> bool:
    """Whether an entry of ``commands`` allows this program.

    A name allows the command that the PATH has under it. A path allows that very file: another link to the same program
    is another entry, since some programs behave by their name. A pattern of paths must match the target of a link,
    too."""
    if "/" not in entry:
        name = os.path.basename(program.name)
        if not compile_pattern(entry).fullmatch(name):
            return False
        path = None if by_name else _on_path(name)
        return by_name or (path is not None and _named(path) == program.name)
    entry = os.path.expanduser(entry)
    if not is_pattern(entry):
        return _named(entry) == program.name
    pattern = _path_pattern(entry)
    return pattern.fullmatch(program.name) is not None and pattern.fullmatch(program.file) is not None


def _path_pattern(entry: str) -> re.Pattern[str]:
    """A pattern of paths, with all links followed in the directories before the first wildcard."""
    parts = entry.split("/")
    fixed = next(index for index, part in enumerate(parts) if is_pattern(part))
    folder = os.path.realpath("/".join(parts[:fixed]) or "/").rstrip("/")
    pattern = compile_pattern("/".join(["", *parts[fixed:]]), "/")
    return re.compile(re.escape(folder) + pattern.pattern, pattern.flags)


def _inside(place: str, root: str) -> bool:
    return place == root or place.startswith(root.rstrip("/") + "/")


def _import_pattern(entry: str) -> re.Pattern[str]:
    """``*`` in the module part matches submodules, too; in the function part it matches one name, since imported
    objects hang below the names of a module."""
    module, colon, function = entry.partition(":")
    if not colon or not module or not function:
        raise ValueError("must be package.module:function, with * for any part")
    above, below = compile_pattern(module), compile_pattern(function, ".")
    return re.compile(f"{above.pattern}:{below.pattern}", above.flags)
