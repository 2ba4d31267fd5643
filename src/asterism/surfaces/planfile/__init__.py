"""Plan files: a constellation, its devices and its policy, written in YAML."""

from asterism.surfaces.planfile.loading import DeviceLine, PlanFile, check, examine, load
from asterism.surfaces.planfile.mistakes import BadPlan, Mistake
from asterism.surfaces.planfile.schema import json_schema

__all__ = ["BadPlan", "DeviceLine", "Mistake", "PlanFile", "check", "examine", "json_schema", "load"]
