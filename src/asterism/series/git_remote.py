"""The address of a git remote, split into what may be seen and what must not be.

Everybody on a machine can read the arguments of its processes, and git hands an address on to its own children. So git
is given the address without user and password. It gets both through a credential helper whose settings and values are
in the environment, which only the same user can read. An address that git itself would make of this one by
``insteadOf`` is treated the same way.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote, unquote

from asterism.base.url_text import masked_url
from asterism.series.register import RegisterUnavailable

SHORTEST_SECRET = 4
"""Letters of a password that is blotted out wherever git repeats it: a shorter one would be found in anything."""

REWRITES = r"^url\..*\.(push)?insteadof$"
"""The settings of git that replace the beginning of an address."""

_USER, _PASSWORD = "ASTERISM_GIT_USER", "ASTERISM_GIT_PASSWORD"
_HELPER = f"""!f() {{ test "$1" = get && printf 'username=%s\\npassword=%s\\n' "${_USER}" "${_PASSWORD}"; }}; f"""
_HTTP = re.compile(r"(?P<scheme>https?)://(?:(?P<user>[^/?#]*)@)?(?P<rest>(?P<host>[^/?#@]*).*)", re.IGNORECASE)
_LOGIN = re.compile(r"(?<=://)([^/@:]*):.*@")
_PORT = re.compile(r"(?:\[[^\]]*\]|[^:]*)(?::\d*)?")


@dataclass(frozen=True)
class RemoteAddress:
    """``plain`` is for git's arguments; ``settings`` and ``environment`` carry what it leaves out."""

    plain: str
    settings: tuple[tuple[str, str], ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)

    def added_to(self, environment: Mapping[str, str]) -> dict[str, str]:
        """The environment for git. Its own settings stay, and these come after them."""
        known = environment.get("GIT_CONFIG_COUNT", "")
        count = int(known) if known.isdigit() else 0
        numbered: dict[str, str] = {}
        for number, (name, value) in enumerate(self.settings, count):
            numbered |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value}
        if self.settings:
            numbered["GIT_CONFIG_COUNT"] = str(count + len(self.settings))
        return {**environment, **self.environment, **numbered}

    def without_secrets(self, text: str) -> str:
        """The text without the password, however it is written; if there is only a user, that may be a token."""
        secret = self.environment.get(_PASSWORD) or self.environment.get(_USER, "")
        for form in {secret, quote(secret, safe=""), quote(secret)}:
            if len(form) >= SHORTEST_SECRET:
                text = text.replace(form, "…")
        return text


def split(address: str) -> RemoteAddress:
    """Only HTTP takes a password. From the address of another kind, such as ssh, it is left out. Raises
    RegisterUnavailable for one that cannot be read with certainty."""
    match = _HTTP.fullmatch(address)
    if match is None:
        return RemoteAddress(_LOGIN.sub(r"\1@", address))
    if match["user"] is None:
        if "@" in address and not _PORT.fullmatch(match["host"]):
            raise RegisterUnavailable(
                f"{masked_url(address)} has a password with a letter that ends it: write / as %2F, ? as %3F, # as %23"
            )
        return RemoteAddress(address)
    plain = f"{match['scheme']}://{match['rest']}"
    scope = f"credential.{match['scheme'].lower()}://{match['host']}"
    user, colon, password = match["user"].partition(":")
    given = {_USER: unquote(user), _PASSWORD: unquote(password)}
    if any(not value.isprintable() for value in given.values()):
        raise RegisterUnavailable(f"{masked_url(address)} has a user or password that cannot be sent")
    settings: tuple[tuple[str, str], ...] = ((f"{scope}.username", given[_USER]),)
    if colon:  # an empty helper ends the list of those before it: nobody else is asked, and nobody is told to keep it
        settings = ((f"{scope}.helper", ""), (f"{scope}.helper", _HELPER))
    # what git would make of the plain address by insteadOf was made already: the longest rule wins, and this is it
    stays = tuple((f"url.{plain}.{rule}", plain) for rule in ("insteadOf", "pushInsteadOf"))
    return RemoteAddress(plain, (*settings, *stays), given)


def rewritten(address: str, rules: Sequence[tuple[str, str]], pushing: bool) -> str:
    """What git makes of an address by its settings, which are (name, value), if that holds a password; otherwise the
    address itself, which is left to git."""
    for kind in ("pushinsteadof", "insteadof") if pushing else ("insteadof",):
        found = [
            (value, name.removeprefix("url.").rpartition(".")[0])
            for name, value in rules
            if name.rpartition(".")[2] == kind and address.startswith(value)
        ]
        if found:
            beginning, base = max(found, key=lambda rule: len(rule[0]))
            made = base + address.removeprefix(beginning)
            match = _HTTP.fullmatch(made)
            return made if match is not None and match["user"] is not None else address
    return address
