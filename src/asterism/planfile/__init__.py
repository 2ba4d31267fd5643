"""Plan files and workflow files in YAML: read them, and report every mistake with its line.

::

    from asterism.planfile import BadPlan, check, json_schema, load

    plan_file = load("plan.yaml")              # raises BadPlan with every mistake, each with its line
    result = await Orchestrator(...).run(plan_file.constellation)

    load("plan.yaml", params={"day": "2026-11-16"}, only=["load"])

    plan_file, mistakes = check("plan.yaml")   # the same, with warnings, without raising
    json_schema()                              # for editors that complete and check plan files

``loader`` turns the text of a plan file into a ``PlanFile``: the constellation, its devices and its lock policy. It
reads YAML with line numbers (``base/yaml_lines``), checks the shape with the records in ``models`` (``validate``
returns all mistakes, and the valid part), and everything else (names, conditions, inputs, functions) with ``checks``.
``include`` finds the files of a plan, and ``parameters`` the values of its parameters, which ``base/placeholders`` puts
into the tasks; ``foreach`` makes tasks of lists. ``python_plan`` makes the text of a plan file for a plan in Python,
``module:plan``. ``workflow_file`` reads workflows for a fleet.

Invariants: one pass reports all mistakes of a file; a message says what to write instead; nothing beside the file is
imported unless the caller allows it (``imports=True``).

To add a key to tasks, add it to ``models.Task``; a field of the same name in the task of the core gets its value,
unless ``loader._core_task`` converts it. The JSON Schema and the reference of plan files follow from the models, and
tests compare them.
"""

from typing import TYPE_CHECKING

from asterism.base.startup import lazy_names

if TYPE_CHECKING:
    from asterism.base.yaml_lines import Mistake as Mistake
    from asterism.planfile.loader import BadPlan as BadPlan
    from asterism.planfile.loader import DeviceLine as DeviceLine
    from asterism.planfile.loader import PlanFile as PlanFile
    from asterism.planfile.loader import check as check
    from asterism.planfile.loader import examine as examine
    from asterism.planfile.loader import load as load
    from asterism.planfile.models import json_schema as json_schema
    from asterism.planfile.parameters import GivenParameters as GivenParameters
    from asterism.planfile.workflow_file import BadWorkflowFile as BadWorkflowFile
    from asterism.planfile.workflow_file import load_workflows as load_workflows

__getattr__, __dir__ = lazy_names(__name__)
