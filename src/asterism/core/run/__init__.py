"""Runs: pieces of work of a fleet, each with one owner at a time.

- run.py: the record ``Run``, its states, the table of transitions, and the functions that compute the next record.
- transitions.py: what a coordinator, an owner or a person may do to a run. Each function takes a record and returns
  the next one.
- workflow.py: what a run executes and requires, and its timeouts.
- session.py: one life of a device process, as the store knows it.
- placement.py: which device gets a run or a task: filter, score, strategy.
- circuit_breaker.py: when a device stops taking runs, and when the monitor stops taking runs away.
- merge.py: two records of one run, from stores that were apart, become one.
- peer_record_validation.py: whether a record from a peer can be a record of a run at all.

Invariants: every assignment has a higher epoch than the one before; only the holder of the current grant changes what
it owns (``Fenced`` for all others); an ended run never changes; every step adds an entry to the story and one to the
revision; ``merge_records`` is commutative, associative and idempotent.

To add a step: a function in transitions.py, a row in ``TRANSITIONS`` (run.py) if the status changes, and its place in
the order of merge.py: a step must make a record greater. To add a placement strategy: ``STRATEGIES`` in placement.py.
"""
