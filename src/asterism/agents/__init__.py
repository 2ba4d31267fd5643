"""Language models and agents: what they read of a plan, and what they may do to it.

``untrusted_text``  marks what devices, issues and files say, so that a model can tell it from its instructions
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from asterism.base.startup import lazy_names

if TYPE_CHECKING:
    from asterism.agents.untrusted_text import UNTRUSTED_NOTICE, mark_untrusted

__all__ = ["UNTRUSTED_NOTICE", "mark_untrusted"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "asterism.agents.untrusted_text": ["UNTRUSTED_NOTICE", "mark_untrusted"],
    },
)
