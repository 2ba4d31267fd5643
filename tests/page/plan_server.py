"""A server for the page that speaks the API over a plan in memory: edits are real, progress is set by the test.

It shows states that a real fleet reaches only by chance, such as a device that is silent and a script in every text.
The tests in ``test_served_page.py`` use the real server.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import itertools
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from asterism import Constellation, EditBatch, Task
from asterism.api.plan_operations import MOST_BYTES
from asterism.core.errors import EditRejected
from asterism.server.page_routes import page_routes
from asterism.server.request_guard import RequestGuard
from asterism.server.service_routes import operations_of

NOW = time.time
PROGRESS = {
    "status": "pending",
    "device": None,
    "reason": "",
    "started_at": None,
    "ended_at": None,
    "attempt": None,
    "provisional": False,
}


BULK = {"changed": ["run-2"], "refused": {"run-9": "it has ended"}, "next": None}


class PlanScene:
    """One plan with what the API tells about it. ``tell`` sends an event to every stream. ``files`` are the contents of
    files by task, output and path; those of ``damaged`` paths match no hash, and ``parts`` were asked for."""

    def __init__(self, plan: Constellation) -> None:
        self.plan = plan
        self.began = NOW() - 120
        self.facts: dict[str, dict[str, Any]] = {}
        self.state = "executing"
        self.versions = [
            {"version": 0, "at": self.began, "author": "", "reason": "", "edits": [], "triggers": [], "undoes": None}
        ]
        self.past: dict[int, tuple[Any, dict[str, Any]]] = {0: (plan.copy(), {})}
        self.rejected: list[dict[str, Any]] = []
        self.cycles: list[dict[str, Any]] = []
        self.approvals: list[dict[str, Any]] = []
        self.closed: list[dict[str, Any]] = []
        self.decided: list[dict[str, Any]] = []
        self.others: list[dict[str, Any]] = []  # more plans of the list
        self.batches: list[dict[str, Any]] = []
        self.files: dict[tuple[str, str, str], bytes] = {}
        self.damaged: set[str] = set()
        self.elements: list[dict[str, Any]] = []  # the tasks behind folded groups
        self.parts: list[tuple[str, int]] = []
        self.cost: dict[str, Any] | None = None
        self.budget: dict[str, Any] | None = None
        self.devices: list[dict[str, Any]] = []
        self.runs: list[dict[str, Any]] = []
        self.schedules: list[dict[str, Any]] = []
        self.ticks: list[dict[str, Any]] = []
        self.today = ""
        self.series: list[dict[str, Any]] = []
        self.notices: list[dict[str, Any]] = []
        self.posted: list[tuple[str, Any]] = []
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.away = False
        self.audit: list[dict[str, Any]] = []
        self.checked = {"valid": True, "name": "plan-1", "tasks": 1, "dependencies": 0, "params": [], "findings": []}
        self.denied = ""
        self.scopes = ["admin"]
        self.paused: str | None = None
        self.resumed: list[str] = []

    def set(self, task: str, status: str, **facts: Any) -> None:
        """Set what the view tells about a task."""
        self.facts[task] = {**self.facts.get(task, {}), "status": status, **facts}
        self.tell(
            "task",
            task=task,
            **{**PROGRESS, **{name: self.facts[task][name] for name in PROGRESS & self.facts[task].keys()}},
        )

    def tell(self, kind: str, **data: Any) -> None:
        self.events.append((kind, {"position": str(len(self.events) + 1), "at": NOW(), "kind": kind, **data}))

    def changes(self) -> list[dict[str, Any]]:
        """All events so far."""
        return [data for _, data in self.events]

    def edit(self, batch: EditBatch, *, dry_run: bool = False) -> None:
        """Apply a batch to the plan. Raises EditRejected."""
        (self.plan.copy() if dry_run else self.plan).apply(batch, NOW())
        if not dry_run:
            data = batch.to_json()
            self.versions.append({"version": self.plan.version, "at": NOW(), "undoes": None, "triggers": [], **data})
            self.past[self.plan.version] = (self.plan.copy(), dict(self.facts))
            changed = [edit["task_id"] for edit in data["edits"] if edit["op"] == "update_task"]
            self.tell("edit", version=self.plan.version, diff={"changed": changed})

    def view(self, version: int | None = None) -> dict[str, Any]:
        plan, facts = (self.plan, self.facts) if version is None else self.past[version]
        tasks = [self._task(task.id, facts) for task in plan]
        counts: dict[str, int] = {}
        for task in tasks:
            counts[task["status"]] = counts.get(task["status"], 0) + 1
        return {
            **{"name": plan.id, "state": self.state, "state_text": self.state, "version": plan.version},
            **{"position": str(len(self.events)), "owner": "laptop", "paused": self.paused, "params": {}},
            **{"started_at": self.began, "ended_at": None, "counts": counts, "tasks": tasks},
            "done": sum(counts.get(status, 0) for status in ("completed", "failed", "cancelled")),
            "dependencies": [
                {"source": dependency.source, "target": dependency.target, "on": dependency.on, "when": dependency.when}
                for dependency in plan.dependencies
            ],
            **({"cycles": self.cycles, "approvals": self.approvals, "budget": self.budget} if version is None else {}),
            **({} if version is None else {"edit": next(edit for edit in self.versions if edit["version"] == version)}),
        }

    def summary(self) -> dict[str, Any]:
        waiting = {"waiting_edits": len(self.approvals), "budget_spent": self.budget is not None}
        return {**self.view(), "tasks": None, **waiting}

    def _task(self, task: str, facts: dict[str, dict[str, Any]]) -> dict[str, Any]:
        return {
            **{"id": task, "name": task, "status": "pending", "reason": "", "device": None, "attempts": 0},
            **{"started_at": None, "ended_at": None, "provisional": False, "held_by": [], "needless": False},
            **{"group": None, "estimate": None, **facts.get(task, {})},
        }


class PlanServer:
    """The application over a scene."""

    def __init__(self, scene: PlanScene) -> None:
        self.scene = scene
        plan = "/api/v1/plans/{plan}"
        gets = {
            "/api/v1/me": lambda request: {"name": "ann", "scopes": scene.scopes, "logout": None},
            "/api/v1/me/operations": lambda request: {
                "operations": [
                    name
                    for name in operations_of(frozenset(scene.scopes), request.query_params.get("plan"))
                    if name != "propose_edit"  # it has no model
                ]
            },
            "/api/v1/plans": self._plans,
            plan: lambda request: scene.view(),
            f"{plan}/versions": lambda request: {
                **{**items(scene.versions), "rejected": scene.rejected},
                **{"cycles": scene.closed, "cost": scene.cost},
            },
            f"{plan}/versions/{{version}}": lambda request: scene.view(int(request.path_params["version"])),
            f"{plan}/changes": lambda request: {**items(scene.changes()), "position": "0", "reset": False},
            f"{plan}/cycles": lambda request: items(scene.cycles),
            f"{plan}/approvals": lambda request: items([*scene.approvals, *scene.decided]),
            f"{plan}/tasks": self._tasks,
            f"{plan}/tasks/{{task}}": self._task,
            f"{plan}/tasks/{{task}}/why": lambda request: {"reasons": [{"text": "it needs 'compile' to succeed"}]},
            f"{plan}/tasks/{{task}}/logs": self._logs,
            f"{plan}/files": self._files,
            f"{plan}/files/part": self._part,
            "/api/v1/devices": lambda request: items(scene.devices),
            "/api/v1/devices/{name}": lambda request: {
                **scene.devices[0],
                "holds": scene.runs[:1],
                "latest": scene.runs,
            },
            "/api/v1/runs": self._runs,
            "/api/v1/runs/{run}": lambda request: scene.runs[0],
            "/api/v1/runs/{run}/why": lambda request: {"reasons": [{"text": "no device with 'gpu' is free"}]},
            "/api/v1/runs/{run}/logs": lambda request: items([]),
            "/api/v1/batches": lambda request: items(scene.batches),
            "/api/v1/batches/{batch}": lambda request: scene.batches[0],
            "/api/v1/schedules": lambda request: items(scene.schedules),
            "/api/v1/schedules/{schedule}/ticks": self._ticks,
            "/api/v1/series": lambda request: items(scene.series),
            "/api/v1/notices": lambda request: items(scene.notices),
            "/api/v1/audit": self._audit,
        }
        routes = [Route(path, self._json(answer)) for path, answer in gets.items()]
        routes += [
            Route(f"{plan}/events", self._events),
            Route("/api/v1/events", self._events),
            Route("/api/v1/{path:path}", self._post, methods=["POST"]),
        ]
        self.app = RequestGuard(Starlette(routes=[*routes, *page_routes()]), ["127.0.0.1"], https=False)

    def _json(self, answer: Any) -> Any:
        async def respond(request: Request) -> Response:
            if self.scene.denied:
                return JSONResponse({"title": "Forbidden", "detail": self.scene.denied}, 403)
            return Response(status_code=503) if self.scene.away else JSONResponse(answer(request))

        return respond

    def _plans(self, request: Request) -> Any:
        summary = self.scene.summary()
        search = request.query_params.get("name", "").lower()
        return items([plan for plan in (summary, *self.scene.others) if search in plan["name"].lower()])

    def _tasks(self, request: Request) -> Any:
        status, search = (request.query_params.get(name, "") for name in ("status", "search"))
        found = [task for task in self.scene.elements if status in ("", task["status"]) and search in task["id"]]
        return {**items(found), "next": None}

    def _task(self, request: Request) -> Any:
        facts = self.scene.facts.get(request.path_params["task"], {})
        story = [{"at": self.scene.began, "what": "dispatched", "why": "it was ready"}]
        task = self.scene.plan.nodes.get(request.path_params["task"])
        definition = task.task.to_json() if task is not None else {}
        return {"definition": definition, "result": None, "executions": [], "story": story, **facts}

    def _logs(self, request: Request) -> Any:
        lines = self.scene.facts.get(request.path_params["task"], {}).get("output", [])
        first = int(request.query_params.get("after") or 0)
        return {"items": [{"text": line, "stream": "stdout"} for line in lines[first:]], "next": str(len(lines))}

    def _files(self, request: Request) -> Any:
        task = request.query_params["task"]
        return items([self._file(*key) for key in self.scene.files if key[0] == task])

    def _file(self, task: str, output: str, path: str) -> dict[str, Any]:
        data = self.scene.files[task, output, path]
        made = b"as it was made" if path in self.scene.damaged else data
        facts = {"size": len(data), "sha256": hashlib.sha256(made).hexdigest(), "mode": 0o644}
        return {"task": task, "output": output, "path": path, **facts}

    def _part(self, request: Request) -> Any:
        asked = request.query_params
        file = self._file(asked["task"], asked["output"], asked["path"])
        offset = int(asked.get("offset", 0))
        self.scene.parts.append((file["path"], offset))
        data = self.scene.files[file["task"], file["output"], file["path"]]
        part = data[offset : offset + int(asked.get("limit", MOST_BYTES))]
        return {"offset": offset, "size": len(data), "sha256": file["sha256"], "data": base64.b64encode(part).decode()}

    def _runs(self, request: Request) -> Any:
        wanted = {
            name: request.query_params.get(name)
            for name in ("status", "workflow", "device", "series", "batch", "waiting")
        }
        runs = [
            run for run in self.scene.runs if all(not value or run.get(name) == value for name, value in wanted.items())
        ]
        if "after" not in request.query_params:  # a part that looked at other runs
            return {"items": [], "next": "later"}
        return items(runs)

    def _audit(self, request: Request) -> Any:
        wanted = {name: request.query_params.get(name) for name in ("by", "operation", "target", "outcome")}
        return items(
            [
                entry
                for entry in self.scene.audit
                if all(not value or entry[name] == value for name, value in wanted.items())
            ]
        )

    def _ticks(self, request: Request) -> Any:
        first, last = request.query_params["first"], request.query_params["last"]
        return {
            **items([tick for tick in self.scene.ticks if first <= tick["date"] <= last]),
            "today": self.scene.today,
        }

    async def _events(self, request: Request) -> Response:
        if self.scene.away:
            return Response(status_code=503)
        last = request.headers.get("last-event-id")
        self.scene.resumed.append(last or "")
        seen = int(last or len(self.scene.events))

        async def lines() -> AsyncIterator[str]:
            nonlocal seen
            yield ": here\n\n"
            while not self.scene.away:
                for kind, data in self.scene.events[seen:]:
                    seen += 1
                    yield f"id: {seen}\nevent: {kind}\ndata: {json.dumps(data)}\n\n"
                await asyncio.sleep(0.02)

        return StreamingResponse(lines(), media_type="text/event-stream")

    async def _post(self, request: Request) -> Response:
        body = await request.json()
        path = request.path_params["path"]
        if "x-asterism-page" not in request.headers:
            return JSONResponse({"title": "Unauthorized", "detail": "no key of the page"}, 401)
        self.scene.posted.append((path, body))
        if path == "plan-checks":
            return JSONResponse(self.scene.checked)
        if path.endswith("/edits") or path.endswith("/answer"):
            try:
                batch = EditBatch.from_json({"author": "ann", **{name: body[name] for name in ("edits", "reason")}})
                self.scene.edit(batch, dry_run=body.get("dry_run", False))
            except EditRejected as error:
                broken = [
                    {"edit": violation.edit, "rule": violation.rule, "message": violation.message}
                    for violation in error.violations
                ]
                return JSONResponse(
                    {"title": "Edit rejected", "detail": "The plan refuses it.", "violations": broken}, 422
                )
        if path.startswith("plans/") and path.endswith("/retry"):
            return JSONResponse({"tasks": [*body["from_tasks"], "package"], "version": self.scene.plan.version})
        if path.endswith("/answer"):
            self.scene.cycles.clear()
        if "/approvals/" in path:
            [approval] = self.scene.approvals
            self.scene.approvals.clear()
            if path.endswith("/approve"):
                self.scene.edit(EditBatch.from_json({**approval["batch"], **body}))
        if path.endswith("/budget"):
            self.scene.budget = None
        self.scene.tell("plan")
        return JSONResponse({"version": self.scene.plan.version, **BULK})


def items(documents: list[Any]) -> dict[str, Any]:
    return {"items": documents, "next": None}


@contextmanager
def served(scene: PlanScene) -> Iterator[str]:
    """Serve a scene from a thread; the value is the address."""
    config = uvicorn.Config(
        PlanServer(scene).app, port=0, log_level="error", lifespan="off", timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    ready = threading.Event()
    started = server.startup

    async def startup(*arguments: Any, **named: Any) -> None:
        await started(*arguments, **named)
        ready.set()

    server.startup = startup  # type: ignore[method-assign]
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    ready.wait(60)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        scene.away = True
        server.should_exit = True
        thread.join(10)


NOTES = {
    "description": "Write the release notes: what changed for a user, in ten lines.",
    "tips": ["Read the commits since the last tag.", "Leave out what only developers see."],
    "result": {"type": "object", "required": ["notes"], "properties": {"notes": {"type": "string"}}},
}


def release_scene() -> PlanScene:
    """A release that is under way: every status, a hold, an open cycle, an approval, and a fleet."""
    plan = Constellation("release")
    plan.add(Task("fetch", shell="git fetch"))
    for name in ("compile", "lint", "docs"):
        plan.add(Task(name, shell=f"make {name}"), after="fetch")
    for number in range(1, 7):
        plan.add(Task(f"test-{number}", shell=f"make test-{number}"), after="compile")
    plan.add(Task("package", shell="make package"), after=["lint", *(f"test-{number}" for number in range(1, 7))])
    plan.add(Task("site", shell="make site"), after="docs")
    plan.add(Task("publish", shell="make publish"), after=["package", "site"])
    plan.add(Task("roll-back", shell="make roll-back"))
    plan.connect("publish", "roll-back", on="failure")
    plan.add(Task("announce", shell="make announce"))
    plan.connect("publish", "announce", when="result.ok")
    plan.add(Task("notes", agent=NOTES, device="coder"), after="package")
    scene = PlanScene(plan)
    began = scene.began
    done = {"attempts": 1, "group": None}
    scene.set("fetch", "completed", device="laptop", started_at=began, ended_at=began + 12, **done)
    scene.set("compile", "completed", device="lab-1", started_at=began + 12, ended_at=began + 60, **done)
    scene.set(
        "lint",
        "failed",
        device="laptop",
        reason="exit code 1: 3 errors",
        started_at=began + 12,
        ended_at=began + 30,
        **done,
    )
    scene.set("docs", "completed", device="lab-2", started_at=began + 13, ended_at=began + 40, **done)
    for number in range(1, 7):
        status = {1: "completed", 2: "running", 3: "running"}.get(number, "pending")
        facts = (
            {"device": f"lab-{1 + number % 2}", "started_at": began + 60 + number, "attempts": 1} if number < 4 else {}
        )
        scene.set(f"test-{number}", status, group="test", **facts, **({"ended_at": began + 90} if number == 1 else {}))
    scene.facts["test-2"]["output"] = ["collected 312 items", "tests/core ........", "tests/store ....."]
    scene.set("site", "pending", held_by=["docs"])
    for name in ("package", "publish", "roll-back", "announce", "notes"):
        scene.set(name, "waiting")
    scene.cycles = [
        {"id": 1, "opened_at": began + 40, "expires_at": None, "claimed_by": "ann", "stuck": False, "tasks": ["docs"]}
    ]
    scene.tell("cycle", cycle=1, what="opened", tasks=["docs"])
    scene.events[-1][1]["at"] = began + 40
    scene.approvals = [
        {
            **{"id": 1, "at": began + 50, "expires_at": began + 9000, "tasks": ["package"], "cycle": 2},
            **{"reasons": ["add task 'mend-lint' (cost=5)"], "cost": 6.5, "effects": {"mend-lint": ["spends"]}},
            **{"escalates_at": began + 3600, "escalates_to": ["command"]},
            "batch": {
                **{"author": "model-editor", "reason": "lint failed: mend it first"},
                "edits": [{"op": "add_task", "task": {"id": "mend-lint", "shell": "ruff check --fix"}}],
            },
        }
    ]
    scene.edit(
        EditBatch.from_json(
            {
                "author": "ann",
                "reason": "sign what we ship",
                "edits": [
                    {"op": "add_task", "task": {"id": "sign", "shell": "make sign"}},
                    {"op": "add_dependency", "source": "package", "target": "sign"},
                    {"op": "add_dependency", "source": "sign", "target": "publish"},
                ],
            }
        )
    )
    scene.set("sign", "waiting")
    models(scene)
    scene.rejected = [
        {
            **{
                "number": 1,
                "version": 1,
                "triggers": [],
                "author": "model-editor",
                "reason": "skip the tests",
                "at": began + 70,
            },
            "edits": [{"op": "remove_task", "task_id": "test-1"}],
            "violations": [{"edit": 0, "rule": "immutable", "message": "task 'test-1' has completed"}],
        }
    ]
    fleet(scene)
    return scene


def models(scene: PlanScene) -> None:
    """What the model that edits the plan has cost, in three cycles, and the budget that is spent."""
    model = {"model": "openai:gpt-5", "calls": 1, "input_tokens": 1204, "output_tokens": 88}
    about = (
        (2, "waiting", ["lint"], None, {**model, "dollars": 0.0031, "seconds": 2.1}),
        (3, "accepted", ["compile"], 1, {**model, "calls": 2, "dollars": 1.98, "seconds": 7.4}),
        (4, "empty", ["test-1"], None, {**model, "dollars": None, "seconds": 1.2}),
    )
    scene.closed = [
        {
            **{"id": number, "outcome": outcome, "tasks": tasks, "version": version, "cost": cost},
            **{"opened_at": scene.began + 50 + number, "closed_at": scene.began + 60 + number},
            **{"stuck": False, "rejections": 0},
        }
        for number, outcome, tasks, version, cost in about
    ]
    scene.cost = {**model, "calls": 4, "input_tokens": 4816, "output_tokens": 352, "dollars": None, "seconds": 10.7}
    scene.budget = {
        **{"budget": {"dollars": 2, "calls": 40}, "spent": {"dollars": 1.98, "calls": 4}, "without_editor": False},
        **{"held_since": scene.began + 75, "held_until": scene.began + 86_475, "decided_by": ""},
        "held_why": "$1.98 of $2.00 are spent, and $0.04 more are needed",
    }


def fleet(scene: PlanScene) -> None:
    now = NOW()
    devices = (
        ("lab-1", "busy", 4, 4, None),
        ("lab-2", "ready", 4, 1, None),
        ("laptop", "resting", 2, 0, 0.41),
        ("old-box", "silent", 1, 1, None),
    )
    for name, state, slots, used, battery in devices:
        scene.devices.append(
            {
                **{"name": name, "state": state, "slots": slots, "used": used, "battery": battery, "session": name},
                **{
                    "coordinator": name == "lab-1",
                    "host": f"{name}.example",
                    "can": ["shell", "gpu"],
                    "load": used / slots,
                },
                **{"last_heartbeat_at": now - (400 if state == "silent" else 3), "joined_at": now - 9000},
                **{"resting": "on battery" if state == "resting" else None, "quality": 0.97, "backlog": 0},
            }
        )
    for number, status in enumerate(("processing", "completed", "failed", "created", "paused", "cancelled")):
        scene.runs.append(
            {
                **{"id": f"run-{number}", "workflow": "backup", "label": f"backup of host {number}", "status": status},
                **{"device": "lab-1" if status != "created" else None, "series": "main" if number % 2 else None},
                **{
                    "created_at": now - 600,
                    "created_by": "ann",
                    "started_at": now - 500 if number < 3 else None,
                    "ended_at": now - 300 if number in (1, 2, 5) else None,
                },
                **{
                    "scores": {"lab-1": 0.91, "lab-2": 0.55},
                    "story": [{"at": now - 600, "what": "created", "why": None}],
                },
                **{
                    "paused": "by ann" if status == "paused" else None,
                    "held": False,
                    "not_before": 0,
                    "shown_label": None,
                },
                **{"input": {"host": f"host{number}"}, "output": None, "error": None, "failures": 0},
            }
        )
    scene.schedules = [
        {
            "name": "nightly",
            "workflow": "backup",
            "cron": "0 3 * * *",
            "timezone": "Europe/Berlin",
            "plan": None,
            "start": 0,
            "due_in": 31000,
            "paused": None,
        },
        {"name": "hourly", "workflow": "sync", "every": 3600, "due_in": None, "paused": "by ann"},
    ]
    calendar(scene)
    for number, (by, operation, target, outcome, why) in enumerate(AUDITED):
        scene.audit.append(
            {
                **{"id": f"2026-11-19/{number}", "at": now - 900 * number, "by": by, "operation": operation},
                **{"kind": "proxy", "credential": "", "address": "192.0.2.7", "key": "", "target": target},
                **{
                    "outcome": outcome,
                    "reason": why if outcome == "done" else "",
                    "detail": "" if outcome == "done" else why,
                },
            }
        )
    scene.series = [
        {
            "name": "main",
            "status": "active",
            "active": 120,
            "since": now - 7200,
            "by": "ann",
            "queue": [121, 124],
            "why_not_promoted": None,
        },
        {
            "name": "docs",
            "status": "free",
            "active": None,
            "since": None,
            "queue": [130],
            "why_not_promoted": "#130 is blocked by #128",
        },
    ]
    scene.notices = [
        {
            "number": 1,
            "at": now - 400,
            "kind": "device_lost",
            "message": "old-box sent no heartbeat for 30 s",
            "run": None,
            "device": "old-box",
        },
        {
            "number": 2,
            "at": now - 200,
            "kind": "late_result",
            "message": "a result came after the run was assigned again",
            "run": "run-2",
            "device": "lab-1",
        },
    ]


AUDITED = (
    ("ann", "approve_edit", "release/1", "done", "the linter is right"),
    ("bob@example.org", "cancel_plan", "release", "refused", "this needs the scope operate"),
    ("ci", "submit_plan", "release", "done", "nightly build"),
    ("ann", "revoke_token", "k7q2mzt4xa", "done", "the laptop was lost"),
)


def calendar(scene: PlanScene) -> None:
    """Ticks of ``nightly``, from the first of the month before until the end of this one: every state, and two ticks on
    some days, but one today: that day leads to its run."""
    today = datetime.fromtimestamp(NOW(), UTC).date()
    scene.today = today.isoformat()
    day = (today.replace(day=1) - timedelta(days=1)).replace(day=1)
    past = itertools.cycle(["succeeded"] * 5 + ["failed", "skipped", "missed", "cancelled", "none"])
    while day.month in (today.month, (today.replace(day=1) - timedelta(days=1)).month):
        for hour in (3, 15)[: 1 + (day.day % 4 == 0 and day != today)]:
            state = next(past) if day < today else "running" if day == today else "due"
            scene.ticks.append(_tick(day, hour, state))
        day += timedelta(days=1)


def _tick(day: date, hour: int, state: str) -> dict[str, Any]:
    at = datetime(day.year, day.month, day.day, hour, tzinfo=UTC).timestamp()
    worked = state in ("succeeded", "failed", "cancelled", "running")
    return {
        **{"tick": int(at), "local": f"{day}T{hour:02}:00:00+01:00", "date": str(day), "state": state},
        **{"work": f"run-{day}" if worked else None, "late": state == "running", "why": ""},
        **{"started_at": at if worked else None, "ended_at": at + 90 if worked and state != "running" else None},
    }
