"""The functions in device_jobs.py are imported by name, as those of a user are."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent / "device"))
