"""What is wrong with a plan file, each mistake with its line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from asterism.core.errors import PlanError
from asterism.surfaces.output import clean


@dataclass(frozen=True, slots=True, order=True)
class Mistake:
    """One thing that is wrong, as a sentence. A ``warning`` does not keep the plan from running."""

    line: int
    text: str
    warning: bool = False

    def told(self, name: str) -> str:
        """As a line that editors and terminals can jump to: ``plan.yaml:7: …``. It is one line, whatever is in it."""
        return clean(f"{name}:{self.line}: {'warning: ' if self.warning else ''}{self.text}")


class BadPlan(PlanError):
    """A plan file that cannot be run; ``mistakes`` are all of them, in the order of their lines."""

    def __init__(self, name: str, mistakes: Sequence[Mistake]) -> None:
        self.name, self.mistakes = name, tuple(mistakes)
        super().__init__("\n".join(mistake.told(name) for mistake in self.mistakes))
