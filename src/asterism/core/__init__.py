"""The pure core: plans, runs and series as data and functions, without I/O.

Nothing here reads a clock, draws a random number, does I/O or uses asyncio. Time enters as the argument ``now``;
effects leave as return values. So the same functions serve the orchestrator, the simulator and the property tests, and
a replayed journal gives the same plan.

- ``plan/``: tasks, the graph, edits, the assignment lock, the journal. Start with ``plan/constellation.py``.
- ``run/``: a run of a fleet, its transitions, the placement on devices, the merge of records of two stores. Start with
  ``run/run.py``.
- ``series/``: one active item and a queue, changed by compare-and-swap. Start with ``series/machine.py``.
- ``errors.py`` lists every error that Asterism raises on purpose. ``history.py`` is an entry of a story,
  ``json_values.py`` checks what counts as JSON, ``record.py`` makes JSON of records and reads them.

Rules: ``core`` imports no other package; ``plan`` imports nothing of ``run``, and ``run`` only ``plan/task.py``. A
status changes only by the tables in ``plan/status.py`` and ``run/run.py``. Every branch is covered by tests.
"""
