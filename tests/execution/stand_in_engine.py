"""A stand-in for podman and docker: ``run``, ``ps`` and ``rm``, as far as the action ``container`` uses them.

A container is a process of its own session, as under a real engine: killing the client does not end it. The image says
nothing; the container runs on this machine. What it was started with is in the folder ``$STAND_IN_STATE``.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

STATE = Path(os.environ["STAND_IN_STATE"])
VALUES = ("--name", "--label", "--volume", "--workdir", "--filter", "--format", "--time")


def parsed(words: list[str]) -> tuple[dict[str, list[str]], list[str]]:
    """The options by name, and the words after them."""
    options: dict[str, list[str]] = {}
    while words and words[0].startswith("-"):
        name, equals, value = words.pop(0).partition("=")
        options.setdefault(name, []).append(value if equals else words.pop(0) if name in VALUES else "")
    return options, words


def run(words: list[str]) -> int:
    options, (image, *argv) = parsed(words)
    if image == "broken":
        print("Error: initializing source docker://broken: denied", file=sys.stderr)
        return 125
    [name] = options["--name"]
    record = STATE / f"{name}.json"
    environment = {"PATH": os.environ["PATH"]}
    for file in options.get("--env-file", ()):
        environment |= dict(line.split("=", 1) for line in Path(file).read_text().splitlines())
    for entry in options.get("--env", ()):
        variable, equals, value = entry.partition("=")
        environment[variable] = value if equals else os.environ[variable]
    [folder] = options.get("--workdir", ["/"])
    child = subprocess.Popen(argv, env=environment, cwd=folder, start_new_session=True)
    labels = options.get("--label", [])
    text = json.dumps({"pid": child.pid, "image": image, "options": options, "labels": labels, "argv": argv})
    record.with_suffix(".new").write_text(text)
    record.with_suffix(".new").rename(record)
    (STATE / "last").write_text(text)
    signal.signal(signal.SIGTERM, lambda *_: child.send_signal(signal.SIGTERM))
    code = child.wait()
    record.unlink(missing_ok=True)
    return 128 - code if code < 0 else code


def ps(words: list[str]) -> int:
    options, _ = parsed(words)
    [wanted] = options["--filter"]
    for record in sorted(STATE.glob("*.json")):
        if wanted.removeprefix("label=") in json.loads(record.read_text())["labels"]:
            print(record.stem)
    return 0


def remove(words: list[str]) -> int:
    options, names = parsed(words)
    assert "--force" in options
    for name in names:
        record = STATE / f"{name}.json"
        if record.exists():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(json.loads(record.read_text())["pid"], signal.SIGKILL)
            record.unlink()
        (STATE / f"{name}.removed").touch()
    return 0


if __name__ == "__main__":
    command, *rest = sys.argv[1:]
    sys.exit({"run": run, "ps": ps, "rm": remove}[command](rest))
