#!/usr/bin/env bash
# One sync, and its outcome as outputs of the step: status, active, position and series.
#
# The token is handed to the one command that needs it. Python is started in isolated mode (-I) and outside the
# workspace, where nothing that lies in the workspace is taken for a module.
set -euo pipefail
unset "${!PYTHON@}"
token=$SERIES_TOKEN
unset SERIES_TOKEN GITHUB_TOKEN GH_TOKEN

case $SERIES_METRICS in
    "" | /*) ;;
    *) SERIES_METRICS=${GITHUB_WORKSPACE:-$PWD}/$SERIES_METRICS ;;
esac
cd "$RUNNER_TEMP"

words=(series sync --json --github "$SERIES_REPOSITORY" --assign "$SERIES_ASSIGN" --mode "$SERIES_MODE")
[ -z "$SERIES_ISSUE" ] || words+=(--issue "$SERIES_ISSUE")
[ -z "$SERIES_PATTERN" ] || words+=(--pattern "$SERIES_PATTERN")
[ -z "$SERIES_LABEL" ] || words+=(--label "$SERIES_LABEL")
[ -z "$SERIES_ACTIVE_LABEL" ] || words+=(--active-label "$SERIES_ACTIVE_LABEL")
[ -z "$SERIES_QUEUED_LABEL" ] || words+=(--queued-label "$SERIES_QUEUED_LABEL")
[ "$SERIES_RESPECT_UNASSIGN" != true ] || words+=(--respect-unassign)
[ -z "$SERIES_METRICS" ] || words+=(--metrics "$SERIES_METRICS")

result=$(mktemp "$RUNNER_TEMP/asterism-result-XXXXXX")
trap 'rm -f "$result"' EXIT

code=0
GITHUB_TOKEN=$token "$SERIES_PYTHON" -I -m asterism "${words[@]}" >"$result" || code=$?

case $code in
    0 | 75) ;;
    76)
        echo "::warning::The series are contended: others were first at every try. The next run does it."
        ;;
    *)
        cat "$result"
        echo "::error::asterism series sync ended with $code"
        exit "$code"
        ;;
esac

# Whatever the answer is, an output is one line.
"$SERIES_PYTHON" -I - "$result" "$code" >>"$GITHUB_OUTPUT" <<'PROGRAM'
import json
import sys

with open(sys.argv[1], encoding="utf-8") as file:
    told = json.load(file)
status = "contended" if sys.argv[2] == "76" else told.get("status", "synced")
for name, value in (("status", status), *((key, told.get(key)) for key in ("active", "position", "series"))):
    print(f"{name}={'' if value is None else ' '.join(str(value).split())}")
PROGRAM

if [ "$code" = 76 ] && [ "$SERIES_FAIL_WHEN_CONTENDED" = true ]; then
    exit 76
fi
