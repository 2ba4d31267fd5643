"""URLs in messages, with their passwords hidden, and why a URL cannot be requested.

A malformed URL is likely to appear in an error message, so this does not rely on its syntax: everything from the scheme
to the last ``@`` may be part of a login. It may hide a part of a path, but never shows a part of a password.
"""

from __future__ import annotations

import re

HIDDEN = "***"

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:(?=[/\\])", re.I)
_SECRET_FIELD = re.compile(
    r"((?:^|[?&;#\s])(?:\w*(?:password|passwd|passphrase|secret|token|signature)|pwd|api_?key|sig)\s*=\s*)[^&;#\s]+",
    re.I,
)
_WORD = re.compile(r"[^\s'\"<>`]+")


def masked_url(address: str) -> str:
    """A URL without its password. With HTTP the whole login is removed, since a user name may be a token."""
    return _SECRET_FIELD.sub(rf"\1{HIDDEN}", _without_login(address))


def masked_urls(text: str) -> str:
    """A text with every URL in it masked, such as the output of another program."""
    return _WORD.sub(lambda found: masked_url(found[0]), text)


def _without_login(address: str) -> str:
    found = _SCHEME.match(address)
    scheme = found[0] if found is not None else ""
    rest = address[len(scheme) :]
    slashes = rest[: len(rest) - len(rest.lstrip("/\\"))]
    rest = rest[len(slashes) :]
    login, _, host = rest.rpartition("@")
    user, colon, _ = login.partition(":")
    if not scheme.lower().startswith("http"):
        return f"{scheme}{slashes}{user}:{HIDDEN}@{host}" if colon else address
    if "@" in re.split(r"[/\\?#]", rest, maxsplit=1)[0]:
        return f"{scheme}{slashes}{host}"
    return f"{scheme}{slashes}{HIDDEN}@{host}" if colon else address  # a password may contain a /


def request_url_problem(url: str) -> str | None:
    """Why a URL cannot be requested; None if it can. ``{name}`` in it stands for an input, which may contain the scheme
    or the host."""
    if "{" in url.partition("://")[0]:
        return None
    if re.match(r"https?://", url, re.I) is None:
        return f"a URL begins with http:// or https://, not {masked_url(url)[:100]!r}"
    return f"{masked_url(url)[:100]!r} has no host" if re.match(r"https?://([/?#]|$)", url, re.I) else None
