"""The sales of a day, as they were in Prefect 3: prints the number of rows. ``sales.yaml`` is the same for Asterism."""

import subprocess
import sys
import tempfile
from pathlib import Path

from prefect import flow, task, unmapped


@task
def shops(number: int) -> list[str]:
    return [f"shop{n}" for n in range(number)]


@task(retries=2, timeout_seconds=60)
def extract(shop: str, day: str, folder: Path) -> Path:
    rows = folder / f"{shop}.csv"
    subprocess.run(["sh", "-c", 'echo "$0,$1,${#0}" > "$2"', shop, day, str(rows)], check=True)
    return rows


@task
def report(rows: list[Path], folder: Path) -> str:
    command = ["sh", "-c", 'cat "$@" | wc -l | tee report.txt', "sh", *map(str, rows)]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


@task
def alarm(day: str) -> None:
    subprocess.run(["echo", f"no report of {day}"], check=True)


@flow
def sales(number: int, day: str = "2026-11-17") -> str:
    folder = Path(tempfile.mkdtemp())
    try:
        rows = extract.map(shops(number), day=unmapped(day), folder=unmapped(folder))
        counted: str = report(rows.result(), folder)
    except Exception:
        alarm(day)
        raise
    return counted


if __name__ == "__main__":
    print(sales(int(sys.argv[1])))
