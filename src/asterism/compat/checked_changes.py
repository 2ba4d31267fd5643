"""Changes of a plan through the checks of the core; a refusal is a ValueError, as documented."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from asterism.core.errors import AsterismError, EditRejected, Violation
from asterism.core.plan.constellation import Constellation


class ModificationRejected(EditRejected, ValueError):
    """A change that was not made; ``violations`` lists every reason."""


@contextlib.contextmanager
def refusing() -> Iterator[None]:
    """Errors of the core come out as ModificationRejected."""
    try:
        yield
    except ModificationRejected:
        raise
    except EditRejected as rejected:
        raise ModificationRejected(rejected.violations) from rejected
    except AsterismError as error:
        raise ModificationRejected([Violation(None, "invalid", str(error))]) from error


def refuse(rule: str, why: str) -> ModificationRejected:
    """The error for a change that breaks one rule."""
    return ModificationRejected([Violation(None, rule, why)])


def by_hand(plan: Constellation) -> None:
    """Refuse manual progress while an orchestrator runs the plan: then only devices report."""
    if plan.owner is not None:
        raise refuse(
            "progress", f"{plan.id!r} is being run: what its tasks have done is reported by devices, not by hand"
        )
