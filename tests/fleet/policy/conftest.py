"""The policies in these tests allow functions of device_jobs.py, which are imported by name, as those of a user are."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "device"))
