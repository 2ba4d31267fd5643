"""What an editor has cost in an edit cycle: calls of a model, tokens, money and time."""

from __future__ import annotations

from typing import Any

from asterism.core.errors import InvalidTask
from asterism.core.record import InvalidRecord, Record, decode


class EditorCost(Record):
    """What a model has cost that edits a plan. ``model`` is the one that answered last; ``dollars`` is null if a price
    is unknown. ``seconds`` is the time from the requests to their answers."""

    model: str = ""
    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    dollars: float | None = 0.0
    seconds: float = 0.0

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    def __add__(self, other: EditorCost) -> EditorCost:
        known = self.dollars is not None and other.dollars is not None
        return EditorCost(
            other.model or self.model,
            self.calls + other.calls,
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            (self.dollars or 0.0) + (other.dollars or 0.0) if known else None,
            self.seconds + other.seconds,
        )

    def __bool__(self) -> bool:
        return bool(self.calls)

    def __str__(self) -> str:
        """``2 calls of openai:gpt-5, 1,204 tokens in, 88 out, $0.0031, 2.1 s``"""
        model = f" of {self.model}" if self.model else ""
        money = "price unknown" if self.dollars is None else dollars_text(self.dollars)
        parts = (
            f"{self.calls} {'call' if self.calls == 1 else 'calls'}{model}",
            f"{self.input_tokens:,} tokens in",
            f"{self.output_tokens:,} out",
            money,
            f"{self.seconds:.1f} s",
        )
        return ", ".join(parts)

    @classmethod
    def from_json(cls, data: Any) -> EditorCost:
        """Raises InvalidTask."""
        try:
            return decode(cls, data)
        except InvalidRecord as error:
            raise InvalidTask(f"the cost of an editor is not readable: {error}") from None


def dollars_text(dollars: float) -> str:
    """``$2.00``, and with more digits below a cent."""
    if dollars >= 0.01 or not dollars:
        return f"${dollars:.2f}"
    return f"${dollars:.4f}" if dollars >= 1e-4 else f"${dollars:.2g}"
