"""All operations, by the name of their method. A client and a system inherit them from here."""

from __future__ import annotations

from asterism.api import (
    device_operations,
    edit_operations,
    fleet_operations,
    plan_list_operations,
    plan_operations,
    run_operations,
    schedule_operations,
    series_operations,
    token_operations,
    workflow_operations,
)
from asterism.api.operation import Operation


class Operations:
    """Every operation as a method, with the fields of its request as parameters."""

    list_plans = plan_list_operations.list_plans
    submit_plan = plan_operations.submit_plan
    show_plan = plan_operations.show_plan
    copy_plan = plan_operations.copy_plan
    read_changes = plan_operations.read_changes
    list_versions = plan_operations.list_versions
    show_version = plan_operations.show_version
    read_story = plan_operations.read_story
    show_task = plan_operations.show_task
    explain_task = plan_operations.explain_task
    read_task_logs = plan_operations.read_task_logs
    read_plan_logs = plan_operations.read_plan_logs
    draw_plan = plan_operations.draw_plan
    pause_plan = plan_operations.pause_plan
    resume_plan = plan_operations.resume_plan
    watch_plan = plan_operations.watch_plan
    cancel_plan = plan_operations.cancel_plan
    watch_cancel = plan_operations.watch_cancel
    remove_plan = plan_operations.remove_plan
    retry_plan = plan_operations.retry_plan
    edit_plan = edit_operations.edit_plan
    undo_edit = edit_operations.undo_edit
    list_cycles = edit_operations.list_cycles
    claim_cycle = edit_operations.claim_cycle
    answer_cycle = edit_operations.answer_cycle
    list_approvals = edit_operations.list_approvals
    approve_edit = edit_operations.approve_edit
    refuse_edit = edit_operations.refuse_edit
    show_budget = edit_operations.show_budget
    list_exchanges = edit_operations.list_exchanges
    decide_budget = edit_operations.decide_budget
    list_runs = run_operations.list_runs
    create_run = run_operations.create_run
    create_runs = run_operations.create_runs
    show_creation = run_operations.show_creation
    end_creation = run_operations.end_creation
    act_on_runs = run_operations.act_on_runs
    show_run = run_operations.show_run
    read_output = run_operations.read_output
    read_run_logs = run_operations.read_run_logs
    explain_run = run_operations.explain_run
    wait_run = run_operations.wait_run
    show_fleet = fleet_operations.show_fleet
    prune_runs = run_operations.prune_runs
    pause_run = run_operations.pause_run
    resume_run = run_operations.resume_run
    cancel_run = run_operations.cancel_run
    retry_run = run_operations.retry_run
    move_run = run_operations.move_run
    list_workflows = workflow_operations.list_workflows
    show_workflow = workflow_operations.show_workflow
    add_workflow = workflow_operations.add_workflow
    remove_workflow = workflow_operations.remove_workflow
    list_series = series_operations.list_series
    show_series = series_operations.show_series
    list_series_changes = series_operations.list_series_changes
    claim_series = series_operations.claim_series
    release_series = series_operations.release_series
    promote_series = series_operations.promote_series
    pause_series = series_operations.pause_series
    resume_series = series_operations.resume_series
    front_series = series_operations.front_series
    rebuild_series = series_operations.rebuild_series
    list_devices = device_operations.list_devices
    show_device = device_operations.show_device
    drain_device = device_operations.drain_device
    invite_device = device_operations.invite_device
    revoke_device = device_operations.revoke_device
    score_devices = device_operations.score_devices
    list_schedules = schedule_operations.list_schedules
    add_schedule = schedule_operations.add_schedule
    show_schedule = schedule_operations.show_schedule
    remove_schedule = schedule_operations.remove_schedule
    pause_schedule = schedule_operations.pause_schedule
    resume_schedule = schedule_operations.resume_schedule
    run_schedule = schedule_operations.run_schedule
    list_notices = fleet_operations.list_notices
    show_settings = fleet_operations.show_settings
    change_settings = fleet_operations.change_settings
    read_metrics = fleet_operations.read_metrics
    list_tokens = token_operations.list_tokens
    create_token = token_operations.create_token
    revoke_token = token_operations.revoke_token
    create_login = token_operations.create_login
    show_store = fleet_operations.show_store


OPERATIONS = {name: one for name, one in vars(Operations).items() if isinstance(one, Operation)}
"""The table: every operation by name, in the order of the documentation."""
