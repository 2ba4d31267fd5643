"""Masks: they replace the values of secrets in text that people read.

*Text* is written for people: errors, the end of a command's output, stories, notices, log lines, tables, reports. It is
masked. *Data* flows between tasks: inputs and results. It is never changed, since the next task needs it; a view that
shows data masks a copy (``Mask.data``).

A mask is made before any of the work is evaluated, from the names of secrets: those that the work refers to, those that
a device policy lists, and environment variables with a name such as ``API_TOKEN`` (``named_like_a_secret``). From then
on every error is masked on its way out (``with mask:``).

A value is found in many forms: each of its characters may be plain, percent-encoded, escaped for JSON, Python or a
shell, or an HTML entity, in any mixture; the whole value may be in base64. A value shorter than ``SHORTEST_MASKED`` is
not masked, since that would spoil every text and reveal the value by the positions of the mask. A value shorter than
``MASKED_ANYWHERE`` is masked only where it is a whole word. ``short_secret_warning`` warns about these.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import string
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache, partial
from operator import is_
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, quote_plus

from asterism.core.errors import RecordedError
from asterism.core.json_values import mappings_in

if TYPE_CHECKING:
    from asterism.core.plan.task import Task

HIDDEN = "[secret]"

SHORTEST_MASKED = 4
"""Values with fewer characters are not masked."""

MASKED_ANYWHERE = 8
"""Values with fewer characters are masked only where they are a whole word."""

_CONVENTIONAL = re.compile(
    r"(?:^|_)(?:TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|PASS|(?:API|ACCESS|PRIVATE|SECRET)_?KEY)$", re.I
)
_BASE64 = frozenset(string.ascii_letters + string.digits + "+/-_=")
_BESIDE_VARS = ("code", "filename", "filename2", "strerror")
"""Attributes of SystemExit and OSError that are not in their dictionary."""


@lru_cache(maxsize=4096)
def named_like_a_secret(name: str) -> bool:
    """Whether the name of a variable suggests a secret: ``GITHUB_TOKEN``, ``DB_PASSWORD``, ``API_KEY``."""
    return _CONVENTIONAL.search(name) is not None


def short_secret_warning(name: str, value: str) -> str | None:
    """The warning for a secret that is not masked everywhere; None if it is."""
    if not 0 < len(value) < MASKED_ANYWHERE:
        return None
    what = "is not masked in text" if len(value) < SHORTEST_MASKED else "is masked only where it is a whole word"
    return f"the secret {name!r} has only {len(value)} characters and {what}; use one of {MASKED_ANYWHERE} or more"


def secret_names(value: Any) -> Iterator[str]:
    """The names in ``{"secret": NAME}``, however deep in a value."""
    for part in mappings_in(value):
        if set(part) == {"secret"} and isinstance(part["secret"], str):
            yield part["secret"]


def secrets_of_task(task: Task) -> set[str]:
    """The names of the secrets to which a task refers: as a whole input or variable, or anywhere in a request."""
    values = [value for value in (*task.inputs.values(), *task.env.values()) if isinstance(value, Mapping)]
    whole = [value for value in values if "secret" in value and len(value) == 1]
    return {*secret_names(whole), *secret_names(task.http)}


class Mask:
    """``values`` are the secrets to which the work refers, by name. ``more`` returns other values when the first text
    has to be masked: most work has none. ``absent`` names secrets whose values are unknown in this process. As a
    context manager, a mask masks the error that leaves the block."""

    __slots__ = ("_cached", "_more", "absent", "values")

    def __init__(
        self,
        values: Mapping[str, str] = MappingProxyType({}),
        more: Callable[[], Iterable[str]] = tuple,
        absent: Iterable[str] = (),
    ) -> None:
        self.values = dict(values)
        self.absent = tuple(sorted(absent))
        self._more = more
        self._cached: tuple[_SecretPattern, ...] | None = None

    @property
    def _patterns(self) -> tuple[_SecretPattern, ...]:
        if self._cached is None:
            parts = {part for value in (*self.values.values(), *self._more()) for part in _parts(value)}
            self._cached = tuple(_pattern_of(part) for part in sorted(parts, key=len, reverse=True))
        return self._cached

    def __bool__(self) -> bool:
        return bool(self._patterns)

    def warnings(self) -> list[str]:
        """A sentence for each secret that is too short to be masked everywhere."""
        return [warning for name, value in self.values.items() if (warning := short_secret_warning(name, value))]

    @property
    def longest(self) -> int:
        """The greatest length of a value in any of its usual forms, in bytes."""
        return max((pattern.longest for pattern in self._patterns), default=0)

    def text(self, text: str) -> str:
        """The text, with ``[secret]`` in place of every value."""
        spans = sorted(span for pattern in self._patterns for span in pattern.spans(text))
        if not spans:
            return text
        parts: list[str] = []
        done = 0
        for first, last in spans:
            if first >= done or not parts:
                parts += (text[done:first], HIDDEN)
            done = max(done, last)
        return "".join([*parts, text[done:]])

    def tail(self, text: str, *, cut: bool = False, growing: bool = False) -> str:
        """As ``text``, for a text that may begin or end in the middle of a value. ``cut``: its beginning is missing.
        ``growing``: more follows. A possible part of a value is left out."""
        if not self._patterns:
            return text
        text = self.text(text)
        forms = [form for pattern in self._patterns for form in pattern.forms]
        if cut and growing and any(text in form for form in forms):
            return ""
        first = max(_overlap(form, text) for form in forms) if cut else 0
        last = len(text) - (max(_overlap(text, form) for form in forms) if growing else 0)
        return text[first:last]

    def data(self, value: Any) -> Any:
        """A copy of data for a view, with every text masked, and every number that is a value. The data itself if there
        is nothing to mask."""
        if not self._patterns:
            return value
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return HIDDEN if self.text(_digits(value)) == HIDDEN else value
        if isinstance(value, Mapping):
            items = {self.data(key): self.data(item) for key, item in value.items()}
            return value if _same(value, items) and _same(value.values(), items.values()) else items
        if type(value) in (list, tuple):
            masked = type(value)(self.data(item) for item in value)
            return value if _same(value, masked) else masked
        return value

    def result(self, value: Any) -> Any:
        """A copy of a result for a view. It is withheld if it may contain a secret whose value is unknown here: a
        result in a store may come from a device that knows more."""
        return self._withheld("it") if self.absent and value is not None else self.data(value)

    def about_data(self, text: str) -> str:
        """The message of an expression about its data, masked or withheld like a result."""
        return self._withheld("what was wrong") if self.absent else self.text(text)

    def _withheld(self, what: str) -> str:
        return f"[withheld: {what} may show a secret whose value is unknown here: {', '.join(self.absent)}]"

    def contains_secret(self, text: str) -> bool:
        """Whether a text contains a value; also a short one, of the secrets to which the work refers."""
        return self.text(text) != text or any(
            _pattern_of(value).within(text) for value in self.values.values() if value
        )

    def error(self, error: BaseException) -> BaseException:
        """The error without any value in it: the same error with its texts masked, or a RecordedError if that is not
        enough, as for a class that composes its message."""
        if not self._patterns:
            return error
        try:
            self._mask_in_place(error, set())
            clean = not self._leaks(error)
        except Exception:  # it cannot be printed, or contains itself
            clean = False
        if clean:
            return error
        recorded = RecordedError.of(error)
        return RecordedError(recorded.kind, self.text(recorded.message))

    def _mask_in_place(self, error: BaseException, seen: set[int]) -> None:
        if id(error) in seen:
            return
        seen.add(id(error))
        inner = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
        for other in (*inner, error.__cause__, error.__context__):
            if other is not None:
                self._mask_in_place(other, seen)
        error.args = tuple(self.data(argument) for argument in error.args)
        for name in (*vars(error), *_BESIDE_VARS):
            before = getattr(error, name, None)
            after = self.data(before)
            if after is not before:
                setattr(error, name, after)

    def _leaks(self, error: BaseException | None) -> bool:
        seen: set[int] = set()
        while error is not None and id(error) not in seen:
            seen.add(id(error))
            said = f"{error} {error!r}"
            if self.text(said) != said:
                return True
            if isinstance(error, BaseExceptionGroup) and any(map(self._leaks, error.exceptions)):
                return True
            error = error.__cause__ or error.__context__
        return False

    def __enter__(self) -> Mask:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None and (masked := self.error(error)) is not error:
            raise masked from None


def environment_mask(names: Iterable[str], listed: Callable[[str], bool] | None = None) -> Mask:
    """The mask of this process for work that refers to the secrets ``names``. ``listed`` decides which other variables
    are secrets. Variables with a name like a secret always are, if they are longer than an ordinary word."""
    names = set(names)
    known = {name: os.environ[name] for name in names if name in os.environ}
    return Mask(known, partial(environment_secrets, listed), names - known.keys())


def environment_secrets(listed: Callable[[str], bool] | None = None) -> list[str]:
    """The values of the variables of this process that are secrets; see ``environment_mask``."""
    return [
        value
        for name, value in os.environ.items()
        if (listed is not None and listed(name)) or (len(value) >= MASKED_ANYWHERE and named_like_a_secret(name))
    ]


# -- forms of a value --------------------------------------------------------------------------------------------------


class _SecretPattern:
    """A value to be masked: the pattern that finds it, and its usual forms."""

    __slots__ = ("_anywhere", "_cores", "_pattern", "forms", "longest")

    def __init__(self, value: str) -> None:
        pattern = "".join(_tokens(value))
        whole_word = len(value) < MASKED_ANYWHERE
        self._anywhere = re.compile(pattern)
        self._pattern = re.compile(rf"(?<!\w){pattern}(?!\w)") if whole_word else self._anywhere
        self._cores = () if whole_word else _base64_cores(value)
        self.forms = _forms(value)
        self.longest = max(len(form.encode(errors="surrogatepass")) for form in self.forms)

    def within(self, text: str) -> bool:
        return self._anywhere.search(text) is not None

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """The positions of the value, also overlapping ones."""
        match = self._pattern.search(text)
        while match is not None:
            yield match.span()
            match = self._pattern.search(text, match.start() + 1)
        for core in self._cores:
            first = text.find(core)
            while first >= 0:
                span = _base64_word(text, first, first + len(core))
                yield span
                first = text.find(core, span[1])


@lru_cache(maxsize=256)
def _pattern_of(value: str) -> _SecretPattern:
    return _SecretPattern(value)


def _parts(value: str) -> Iterator[str]:
    """The parts of a value that are masked: all of it, and each of its lines, since output is cut into lines."""
    for part in {value, value.strip(), *value.splitlines()}:
        if len(part) >= (SHORTEST_MASKED if part in (value, value.strip()) else MASKED_ANYWHERE):
            yield part


def _tokens(value: str) -> Iterator[str]:
    """A pattern for each character. Letters and digits, which are never escaped, stand for themselves."""
    for match in re.finditer(r"[A-Za-z0-9]+|\\+|.", value, re.DOTALL):
        text = match[0]
        if text[0] == "\\":
            yield _backslashes(len(text))
        else:
            yield text if text.isascii() and text.isalnum() else _character(text, first=match.start() == 0)


def _backslashes(count: int) -> str:
    """One pattern for a row of backslashes: separate patterns would try every split of the doubled ones."""
    encoded = r"(?:%5[cC]|&(?:bsol|#0*92|#[xX]0*5[cC]);|\\x5[cC]|\\u005[cC])"
    return rf"(?:\\{{{count},{8 * count}}}|{encoded}{{{count}}})"


def _character(sign: str, *, first: bool) -> str:
    """The pattern of a character that may be escaped. That of the first one begins with plain letters, which is
    fast."""
    slash, again = (r"\\" if first else r"\\{1,7}"), r"\\{1,7}"
    point, octets = ord(sign), sign.encode(errors="surrogatepass")
    units = sign.encode("utf-16-be", errors="surrogatepass")
    ways = [
        re.escape(sign),
        "".join(f"%{_hex(octet, 2)}" for octet in octets),
        slash + again.join(f"u{_hex(units[i], 2)}{_hex(units[i + 1], 2)}" for i in range(0, len(units), 2)),
        slash + again.join(f"x{_hex(octet, 2)}" for octet in octets),
        rf"&(?:{'|'.join(_entities(point))});",
    ]
    if not (sign.isascii() and sign.isprintable()):  # octal in shells; Python has one \\x or \\U for a character
        ways.append(slash + again.join(f"{octet:03o}" for octet in octets))
        # before its octets in this list: \\xc3 may also be the first of two
        ways.insert(1, rf"{slash}x{_hex(point, 2)}" if point <= 0xFF else rf"{slash}U{_hex(point, 8)}")
    ways += [slash + re.escape(sign), *([slash + _LETTERS[sign]] if sign in _LETTERS else ())]
    ways += {" ": [r"\+"], "'": [r"'\\''", "'\"'\"'"]}.get(sign, [])
    # the plain sign last: it may begin a longer way, such as &amp;. A quote that was read one way is not read another
    # way again: a row of them could be split in so many ways that looking through them would never end
    return f"(?{'>' if sign in _QUOTES else ':'}{'|'.join(reversed(ways))})"


def _entities(point: int) -> list[str]:
    from html.entities import codepoint2name

    name = "apos" if point == ord("'") else codepoint2name.get(point)
    return [*([] if name is None else [name]), f"#0*{point}", f"#[xX]0*{_hex(point, 0)}"]


_QUOTES = "'\""
_LETTERS = {"\n": "n", "\r": "r", "\t": "t", "\b": "b", "\f": "f", "\v": "v", "\a": "a", "\x1b": "[eE]"}


def _hex(number: int, width: int) -> str:
    """Hexadecimal digits in capitals or not."""
    return "".join(f"[{digit}{digit.upper()}]" if digit.isalpha() else digit for digit in f"{number:0{width}x}")


def _base64_cores(value: str) -> tuple[str, ...]:
    """The base64 text of the value without its ends, for each of the three possible alignments."""
    octets = value.encode(errors="surrogatepass")
    cores = set()
    for before in range(3):
        padded = bytes(before) + octets
        for encode in (b64encode, urlsafe_b64encode):
            cores.add(encode(padded).decode()[(0, 2, 3)[before] : len(padded) * 8 // 6])
    return tuple(core for core in cores if len(core) >= MASKED_ANYWHERE)


def _base64_word(text: str, first: int, last: int) -> tuple[int, int]:
    """The whole base64 text around a part of it: its ends contain bits of the value, too."""
    while first > 0 and text[first - 1] in _BASE64:
        first -= 1
    while last < len(text) and text[last] in _BASE64:
        last += 1
    return first, last


def _forms(value: str) -> frozenset[str]:
    """The usual forms of a whole value, for texts that were cut in the middle of one."""
    import html

    octets = value.encode(errors="surrogatepass")
    quoted = {quote(octets), quote(octets, safe=""), quote_plus(octets)}
    escaped = {json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}
    return frozenset(
        {value, *quoted, *map(_lower_hex, quoted), *escaped}
        | {form.replace("/", r"\/") for form in escaped}
        | {repr(value)[1:-1], html.escape(value), html.escape(value, quote=False)}
        | {shlex.quote(value), re.sub(r"([^\w])", r"\\\1", value), b64encode(octets).decode()}
    )


def _lower_hex(text: str) -> str:
    return re.sub("%[0-9A-F]{2}", lambda match: match[0].lower(), text)


def _overlap(left: str, right: str) -> int:
    """The length of the longest text that ends ``left`` and begins ``right``."""
    longest = min(len(left), len(right))
    return next((size for size in range(longest, 0, -1) if left.endswith(right[:size])), 0)


def _same(left: Iterable[Any], right: Iterable[Any]) -> bool:
    return all(map(is_, left, right))


def _digits(number: float) -> str:
    try:
        return str(number)
    except ValueError:  # more digits than Python prints
        return ""
