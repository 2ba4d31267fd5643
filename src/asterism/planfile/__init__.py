"""Plan files: a constellation, its devices and its policy, written in YAML."""

from asterism.base.yaml_lines import Mistake
from asterism.planfile.loader import BadPlan, DeviceLine, PlanFile, check, examine, load
from asterism.planfile.models import json_schema

__all__ = ["BadPlan", "DeviceLine", "Mistake", "PlanFile", "check", "examine", "json_schema", "load"]
