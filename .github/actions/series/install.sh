#!/usr/bin/env bash
# A Python of its own for Asterism, outside the workspace: with the packages that requirements/github.txt pins by their
# hashes, and Asterism itself from the revision of this action. Nothing is built, so nothing of the packages runs here.
#
# Whatever lies in the workspace could have the name of a module: Python is started in isolated mode (-I), elsewhere, and
# without what the environment says to it.
set -euo pipefail
unset "${!PYTHON@}"
cd "$RUNNER_TEMP"

root=$(cd "$GITHUB_ACTION_PATH/../../.." && pwd -P)
python3 -I -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "::error::Asterism needs Python 3.11 or later, but $(python3 -I --version 2>&1) is on PATH. Use actions/setup-python before, or name one with the input python."
    exit 1
}

folder=$(mktemp -d "$RUNNER_TEMP/asterism-XXXXXX")
python3 -I -m venv "$folder"
python=$folder/bin/python
"$python" -I -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes \
    --only-binary :all: -r "$root/requirements/github.txt"
packages=$("$python" -I -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
printf '%s\n' "$root/src" >"$packages/asterism.pth"
"$python" -I -c 'import asterism'
echo "python=$python" >>"$GITHUB_OUTPUT"
