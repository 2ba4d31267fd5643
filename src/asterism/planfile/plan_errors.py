"""What is wrong with a plan file, each mistake with its line."""

from __future__ import annotations

from collections.abc import Sequence

from asterism.base.yaml_lines import Mistake
from asterism.core.errors import PlanError


class BadPlan(PlanError):
    """A plan file that cannot be run; ``mistakes`` are all of them, in the order of their lines."""

    def __init__(self, name: str, mistakes: Sequence[Mistake]) -> None:
        self.name, self.mistakes = name, tuple(mistakes)
        super().__init__("\n".join(mistake.format(name) for mistake in self.mistakes))
