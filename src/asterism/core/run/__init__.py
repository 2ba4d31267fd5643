"""Runs: exclusive pieces of work of a fleet, as pure transitions over immutable records."""
