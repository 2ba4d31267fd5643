"""Commands on runs, workflows and schedules."""
