"""The command line ``asterism``: one module per command group, and what only the terminal shows.

``main`` lists all commands and imports the module of a command when it is used, so that every command starts fast:
modules named ``*_commands`` import only click, the options and ``cli_context`` at their top, and everything else inside
the functions of the commands.

=====================  ===============================================================================================
command                modules
=====================  ===============================================================================================
demo                   ``demo_commands``; ``release_demo`` is its plan and its editor, ``workshop`` the work of it
run, check, show,      ``plan_file_commands``
schema
plan                   ``plan_commands``; ``plan_execution`` runs plans, ``plan_watch`` follows and cancels them,
                       ``plan_views`` prints the documents of the API
runs, batch            ``runs_commands``; ``run_views``; ``runs_watch`` is the live view of ``runs watch``
workflow, schedule     ``workflow_commands``, ``schedule_commands``, ``schedule_views``
fleet, notice, limit,  ``fleet_commands``, ``fleet_views``; ``top`` is ``asterism top``
event, top
device, monitor        ``device_commands``; ``device_process`` is the process of a device, and its log
serve, mcp             ``serve_commands``; ``server_process`` has their processes
login, token           ``access_commands``
store                  ``store_commands``
peer                   ``peer_commands``, ``peer_actions``
series                 ``series_commands`` and the other ``series_*`` modules
=====================  ===============================================================================================

Shared: ``cli_context`` (options, opening a system, answers), ``option_types``, ``plan_context`` (options and output of
commands on plans, batches of edits), ``interrupts`` (Ctrl-C), ``editor_options`` (editors, modules and device policies
of the user); for output ``screen`` (the terminal and its tables), and ``plan_live_view`` (a running plan).

Invariants: every text from outside is cleaned before it reaches a terminal (``base/text``); answers go to standard
output, notes to standard error; the fields of JSON output and the exit codes (``main``) are stable.

To add a command, add an ``async`` function to the module of its group: the first word of its name is that of the
command, its parameter ``system`` is where it happens, its other parameters are arguments, except those that an
``option`` declares. To add a group, write
``<noun>_commands.py`` and add a line to ``_SECTIONS`` in ``main``. Both have a section in
``docs/reference/command-line.md``: ``make reference`` writes its table of options.

For scripts that run a plan in a terminal, the package offers ``Screen``, ``watched`` and ``run_until_interrupted``.
"""

from typing import TYPE_CHECKING

from asterism.base.startup import lazy_names

if TYPE_CHECKING:
    from asterism.cli.interrupts import run_until_interrupted as run_until_interrupted
    from asterism.cli.plan.plan_live_view import watched as watched
    from asterism.cli.screen import Screen as Screen

__getattr__, __dir__ = lazy_names(__name__)
