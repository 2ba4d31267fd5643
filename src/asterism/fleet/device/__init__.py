"""A device of a fleet: the agent, its lease, its worker and its executors."""
