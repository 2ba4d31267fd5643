"""The address of a git remote, split into a part that may be shown and its secrets.

All users of a machine can read the arguments of its processes, and git passes an address on to its own children. So git
gets the address without user and password. A credential helper passes both to git; its settings and values are in the
environment, which only the same user can read. The same applies to an address that git itself makes of this one by
``insteadOf``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote, unquote

from asterism.base.text import masked_url
from asterism.series.register import RegisterUnavailable

MIN_MASKED_SECRET = 4
"""Characters of a secret that is masked in the output of git: a shorter one would match ordinary text."""

REWRITE_SETTINGS = r"^url\..*\.(push)?insteadof$"
"""The settings of git that replace the beginning of an address."""

_USER, _PASSWORD = "ASTERISM_GIT_USER", "ASTERISM_GIT_PASSWORD"
_HELPER = f"""!f() {{ test "$1" = get && printf 'username=%s\\npassword=%s\\n' "${_USER}" "${_PASSWORD}"; }}; f"""
_HTTP = re.compile(r"(?P<scheme>https?)://(?:(?P<user>[^/?#]*)@)?(?P<rest>(?P<host>[^/?#@]*).*)", re.IGNORECASE)
_LOGIN = re.compile(r"(?<=://)([^/@:]*):.*@")
_PORT = re.compile(r"(?:\[[^\]]*\]|[^:]*)(?::\d*)?")


@dataclass(frozen=True)
class RemoteAddress:
    """``plain`` is for the arguments of git; ``settings`` and ``environment`` carry the secrets that it leaves out."""

    plain: str
    settings: tuple[tuple[str, str], ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)

    def variables(self, environment: Mapping[str, str]) -> dict[str, str]:
        """The variables to add to the environment of git. The settings that it already has come first."""
        count = int(known) if (known := environment.get("GIT_CONFIG_COUNT", "")).isdigit() else 0
        numbered: dict[str, str] = {}
        for number, (name, value) in enumerate(self.settings, count):
            numbered |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value}
        if self.settings:
            numbered["GIT_CONFIG_COUNT"] = str(count + len(self.settings))
        return {**self.environment, **numbered}

    def without_secrets(self, text: str) -> str:
        """The text with the password masked, in every encoding. Without a password the user may be a token."""
        secret = self.environment.get(_PASSWORD) or self.environment.get(_USER, "")
        for form in {secret, quote(secret, safe=""), quote(secret)}:
            if len(form) >= MIN_MASKED_SECRET:
                text = text.replace(form, "…")
        return text


def split_address(address: str) -> RemoteAddress:
    """Take the secrets out of an address. Only HTTP accepts a password; in other addresses, such as ssh, it is dropped.

    Raises RegisterUnavailable for an ambiguous address."""
    match = _HTTP.fullmatch(address)
    if match is None:
        return RemoteAddress(_LOGIN.sub(r"\1@", address))
    if match["user"] is None:
        if "@" in address and not _PORT.fullmatch(match["host"]):
            raise RegisterUnavailable(
                f"{masked_url(address)} has a reserved character in its password: write / as %2F, ? as %3F, # as %23"
            )
        return RemoteAddress(address)
    plain = f"{match['scheme']}://{match['rest']}"
    scope = f"credential.{match['scheme'].lower()}://{match['host']}"
    user, colon, password = match["user"].partition(":")
    given = {_USER: unquote(user), _PASSWORD: unquote(password)}
    if any(not value.isprintable() for value in given.values()):
        raise RegisterUnavailable(f"{masked_url(address)} has a control character in its user or password")
    settings: tuple[tuple[str, str], ...] = ((f"{scope}.username", given[_USER]),)
    if colon:  # an empty helper clears the list, so no other helper is asked, or told to store the password
        settings = ((f"{scope}.helper", ""), (f"{scope}.helper", _HELPER))
    # insteadOf has been applied already; a rule for the whole address is the longest, so it wins and changes nothing
    unchanged = tuple((f"url.{plain}.{rule}", plain) for rule in ("insteadOf", "pushInsteadOf"))
    return RemoteAddress(plain, (*settings, *unchanged), given)


def rewrite_address(address: str, rules: Sequence[tuple[str, str]], pushing: bool) -> str:
    """The address that git makes of this one by its ``insteadOf`` settings, given as (name, value), if that address has
    a user or password; otherwise the address itself, for git to rewrite."""
    for kind in ("pushinsteadof", "insteadof") if pushing else ("insteadof",):
        matching = [
            (value, name.removeprefix("url.").rpartition(".")[0])
            for name, value in rules
            if name.rpartition(".")[2] == kind and address.startswith(value)
        ]
        if matching:
            beginning, base = max(matching, key=lambda rule: len(rule[0]))
            rewritten = base + address.removeprefix(beginning)
            match = _HTTP.fullmatch(rewritten)
            return rewritten if match is not None and match["user"] is not None else address
    return address
