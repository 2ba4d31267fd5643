"""The documented names of Galaxy (Microsoft UFO) and Orion (ALIEN), over Constellation and Orchestrator.

``asterism.compat.galaxy`` and ``asterism.compat.orion`` export the same classes under their two sets of names; every
other module is shared and internal. A program written against the published documents runs after changing its imports.

- Types and names: ``vocabulary`` (enumerations, events, refusals; Galaxy, Orion, private names), and
  ``documented_names``, those that Galaxy and Orion share.
- The plan: ``documented_plan`` (the plan itself), ``task_star`` (tasks), ``task_star_line`` (dependencies),
  ``plan_records`` (JSON).
- Editing: ``plan_editor``, with undo and redo.
- Running: ``plan_orchestrator`` runs a plan on an Orchestrator with the lock policy ``global``; ``managed_devices``
  adapts a device manager and assigns devices; ``synchronizer`` waits for the answers of agents and merges them.
- Events: ``event_bus``, ``session_observers``.
- ``manual_progress`` starts and ends tasks by hand while no orchestrator runs the plan.

Invariants: every change goes through the checks of the core; progress comes only from devices while an orchestrator
runs the plan; ``event_bus`` holds the only process-wide state of Asterism.

``tests/compat/test_documented_members.py`` lists every documented member. Add a member there first.
"""
