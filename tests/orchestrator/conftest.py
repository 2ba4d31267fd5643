"""No test of the orchestrator may leave processes or files behind."""

from tests.left_behind import nothing_is_left_behind, what_is_there_before

__all__ = ["nothing_is_left_behind", "what_is_there_before"]
