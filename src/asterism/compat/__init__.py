"""The documented names of the Galaxy and Orion orchestrators, over Constellation and Orchestrator.

``asterism.compat.galaxy`` and ``asterism.compat.orion`` export the same classes under their two sets of names; every
other module is shared and internal. A program written against the published documents runs after changing its imports.

- The plan: ``living_plan`` (the plan itself), ``task_star`` and ``task_star_fields`` (tasks), ``task_star_line``
  (dependencies), ``plan_records`` and ``record_models`` (JSON), ``plan_analysis`` (read-only figures).
- Editing: ``plan_editor`` with ``command_history`` (undo and redo), ``checked_changes`` (refusals), ``copy_merge``
  (copies of agents).
- Running: ``plan_orchestrator`` starts a ``plan_run`` on an Orchestrator with the lock policy ``global``;
  ``managed_devices`` adapts a device manager; ``synchronizer`` and ``pending_ends`` wait for agents.
- Events: ``documented_events``, ``event_bus``, ``event_outlet``, ``session_observers``.
- ``manual_progress`` and ``manual_steps`` drive a plan by hand while no orchestrator runs it.

Invariants: every change goes through the checks of the core; progress comes only from devices while an orchestrator
runs the plan; ``event_bus`` holds the only process-wide state of Asterism.

``tests/compat/test_documented_members.py`` lists every documented member. Add a member there first.
"""
