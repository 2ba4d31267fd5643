"""URLs as they may be shown: without passwords, however badly they are written.

A URL with a mistake in it is the one that ends up in an error message, so nothing here relies on its syntax: from the
scheme to the last ``@`` everything may be part of a login. It is better to hide a piece of a path than to show a piece
of a password.
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
    """An address without its password. With HTTP the whole login is left out, for a name alone may be a token."""
    return _SECRET_FIELD.sub(rf"\1{HIDDEN}", _without_login(address))


def masked_urls(text: str) -> str:
    """A text in which every address is masked, such as what another program said."""
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
    return f"{scheme}{slashes}{HIDDEN}@{host}" if colon else address  # it may be a password with a / in it


def request_url_problem(url: str) -> str | None:
    """Why a request can never be sent to a URL, in words; None if it can. ``{name}`` in it stands for an input, which
    may bring the scheme or the host along."""
    if "{" in url.partition("://")[0]:
        return None
    if re.match(r"https?://", url, re.I) is None:
        return f"a URL begins with http:// or https://, not {masked_url(url)[:100]!r}"
    return f"{masked_url(url)[:100]!r} names no host" if re.match(r"https?://([/?#]|$)", url, re.I) else None
