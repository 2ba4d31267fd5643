"""All operations, by the name of their method. A client and a system inherit them from here."""

from __future__ import annotations

from asterism.api import run_operations, workflow_operations
from asterism.api.operation import Operation


class Operations:
    """Every operation as a method, with the fields of its request as parameters."""

    list_runs = run_operations.list_runs
    create_run = run_operations.create_run
    act_on_runs = run_operations.act_on_runs
    show_run = run_operations.show_run
    read_output = run_operations.read_output
    read_run_logs = run_operations.read_run_logs
    explain_run = run_operations.explain_run
    wait_run = run_operations.wait_run
    prune_runs = run_operations.prune_runs
    pause_run = run_operations.pause_run
    resume_run = run_operations.resume_run
    cancel_run = run_operations.cancel_run
    retry_run = run_operations.retry_run
    move_run = run_operations.move_run
    list_workflows = workflow_operations.list_workflows
    show_workflow = workflow_operations.show_workflow
    add_workflow = workflow_operations.add_workflow


OPERATIONS = {name: one for name, one in vars(Operations).items() if isinstance(one, Operation)}
"""The table: every operation by name, in the order of the documentation."""
