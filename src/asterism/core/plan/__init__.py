"""Plans: a graph of tasks that may be edited while it runs.

A ``Constellation`` (constellation.py) is the plan that users build. It is a ``Graph`` (graph.py) of nodes (node.py),
each with a ``Task`` (task.py) and a status (status.py). Two counters of a node decide whether its task may start:
``open``, the unsatisfied dependencies, and ``held``, the parents whose end is not settled. No dispatch searches the
graph.

How a task moves:

1. ``Graph.begin`` puts the tasks without dependencies into the ready queue (ready_queue.py), one heap per lane. The
   rank of a task is the work on the longest path below it.
2. The orchestrator pops the best task of a lane and calls ``Graph.start``.
3. Its end goes through ``AssignmentLock.finish`` (assignment_lock.py): the same step records the end and, if an editor
   reviews it, holds its dependents. ``Graph.settle`` ends the hold when the cycle is closed.
4. When no task can move, ``Graph.close`` cancels the rest, each with a reason, and sets the final state.

Edits (edits.py) are data. ``apply`` (apply.py) carries out a batch completely or not at all. ``diff`` and ``merge``
(diff.py) turn a changed copy into a batch. topological_order.py keeps the order and finds cycles, edge by edge.

Records: plan_codec.py writes a plan as JSON and takes snapshots while the plan runs. journal.py records every step and
replays it. explain.py answers why a task does not run.

Invariants: I1 two executions never share an epoch; I2 the labels are a topological order; I3 an edit never changes a
task that runs or has ended, unless it is provisional; I4 edges agree at both ends. The tests recompute them
(``tests/laboratory/plan_invariants.py``).

To add an edit: a class in edits.py with its JSON, a handler in apply.py. To add a step that changes a plan: a method of
``Graph``, its recording in journal.py and its entry in the replay table. To add a lock policy:

1. plan_options.py: its name in ``LockPolicy``, from which ``POLICIES``, the option ``--lock-policy`` and the model
   of plan files take it; and what it holds: ``holds_everything``, or a flag of the graph, such as ``speculative``.
2. graph.py: which held tasks may start, in ``Graph.start`` and ``Graph.requeue``.
3. The same decision in explain.py (``_reviews``), in ``Result.holds`` of orchestrator/result.py, and in the invariants
   of the tests.
4. docs/explanation/assignment-lock.md, and the JSON Schema of plan files (docs/reference/plan-file.schema.json).
"""
