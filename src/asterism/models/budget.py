"""What a call of a model may cost at most: prices, estimates of tokens, and the room that a budget leaves.

Figures that a model reports are not trusted: a count that the text cannot possibly have is replaced by an estimate.
The budget itself, and the account of what is spent, are in ``durable/editor_budget.py``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from asterism.core.errors import AsterismError
from asterism.core.record import replace
from asterism.durable.editor_budget import Account, Budget, Spent

DEFAULT_BUDGET = Budget(calls=200, tasks=500)
"""The limits of a budget that does not name them: no model edits a plan for ever while nobody looks."""

LEAST_SECONDS = 0.001
"""A request takes at least this long."""

LEAST_OUTPUT = 256
"""A call with room for fewer tokens of output than this is not made."""

CHARACTERS_PER_TOKEN = 3
"""A cautious estimate of the length of a token in a prompt, in ASCII characters."""

BYTES_PER_TOKEN = 2
"""The same for other characters, in bytes of UTF-8: a Chinese character is up to two tokens."""

ADDED_BY_PROVIDER = 10_000
"""How many tokens a provider adds to a prompt at most: its own instructions, the frame of messages and tools."""

LONGEST_TOKEN = 12
"""No tokenizer makes fewer tokens of a text of some length than its characters divided by this."""


@dataclass(frozen=True, slots=True)
class Price:
    """Dollars for a million tokens, in and out."""

    input: float
    output: float

    def dollars(self, input_tokens: int, output_tokens: int) -> float:
        return (input_tokens * self.input + output_tokens * self.output) / 1e6


def estimated_tokens(text: str) -> int:
    """How many tokens a text may have: a cautious count."""
    size = len(text.encode(errors="surrogatepass"))
    plain = len(text.encode("ascii", "ignore"))
    return math.ceil(plain / CHARACTERS_PER_TOKEN + (size - plain) / BYTES_PER_TOKEN)


def listed_price(name: str) -> Price | None:
    """The price of a model in the public list of genai-prices."""
    try:
        from genai_prices import Usage, calc_price
    except ImportError:
        return None
    provider, _, model = name.rpartition(":")
    provider = {"openai-chat": "openai", "openai-responses": "openai"}.get(provider, provider)
    million = 1_000_000
    try:
        prices = [
            float(calc_price(usage, model, provider_id=provider or None).total_price)
            for usage in (Usage(input_tokens=million, output_tokens=0), Usage(input_tokens=0, output_tokens=million))
        ]
    except LookupError:
        return None
    return Price(*prices)


def plausible_tokens(reported: int, text: str, most: int) -> int:
    """The count that a model reports, unless no text of this length has so few tokens, or it is above ``most``."""
    return reported if max(0, len(text) / LONGEST_TOKEN) <= reported <= most else estimated_tokens(text)


def most_input(text: str) -> int:
    """How many tokens a prompt has at most: one for each byte, and what a provider adds to it."""
    return len(text.encode(errors="surrogatepass")) + ADDED_BY_PROVIDER


def room_for_output(account: Account, input_tokens: int, price: Price | None, wanted: int) -> int:
    """How many tokens of output the rest of a budget pays for, at most ``wanted``."""
    return max(0, math.floor(min([wanted, *_rooms(account, input_tokens, price)])))


def _rooms(account: Account, input_tokens: int, price: Price | None) -> Iterator[float]:
    if account.budget.tokens is not None:
        yield account.left("tokens") - input_tokens
    if account.budget.dollars is not None and price is not None:
        paid = price.dollars(input_tokens, 0)
        rest = account.left("dollars") - paid
        free = math.inf if rest >= 0 else 0.0
        yield rest / price.output * 1e6 if price.output else free


class BudgetSpent(AsterismError):
    """A request needs more than what is left in the account of a plan."""

    def __init__(self, message: str, account: Account, needed: Spent) -> None:
        super().__init__(message)
        self.account, self.needed = account, needed


class Reserved(Exception):
    """The rest of the budget is reserved for calls under way. The first of them has ended at ``end`` at the latest."""

    def __init__(self, end: float) -> None:
        super().__init__()
        self.end = end


def room_for_time(account: Account, timeout: float) -> float | None:
    """How many seconds a request may take: its timeout, or what is left if that is less; None without a limit. What
    calls under way may take does not count: a request waits for them rather than have too little time."""
    if account.budget.seconds is None:
        return None
    return max(LEAST_SECONDS, min(timeout, replace(account, open={}).left("seconds")))


def dearest(reads: int, writes: int, price: Price | None, seconds: float | None = None) -> Spent:
    """What a request costs at most, which may take this many seconds."""
    dollars = 0.0 if price is None else price.dollars(reads, writes)
    return Spent(dollars, reads + writes, 1, LEAST_SECONDS if seconds is None else seconds)
