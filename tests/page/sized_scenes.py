"""Plans of 10, 200 and 5,000 tasks in the middle of their work, for pictures and measures of the page."""

from __future__ import annotations

from collections.abc import Iterable

from asterism import Constellation, Task
from tests.page.plan_server import PlanScene, fleet, models

HOSTS = ("build-farm-eu-west-01", "build-farm-eu-west-02", "lab-1", "lab-2", "laptop")
SOURCES = (
    *("orders", "invoices", "customers", "suppliers", "stock", "shipments", "returns", "payments", "visits"),
    *("campaigns", "tickets", "contracts", "rates", "products", "prices", "stores", "regions", "staff", "sensors"),
    *("forecasts", "weather", "holidays", "budgets", "audits"),
)
ELEMENTS = 60
LAYER = 50


def small_scene() -> PlanScene:
    """Ten tasks: two have completed, one has failed."""
    plan = Constellation("nightly")
    plan.add(Task("fetch", shell="git fetch"))
    for name in ("compile", "lint", "docs"):
        plan.add(Task(name, shell=f"make {name}"), after="fetch")
    for name in ("test-core", "test-store", "test-page"):
        plan.add(Task(name, shell=f"make {name}"), after="compile")
    plan.add(Task("package", shell="make package"), after=["lint", "test-core", "test-store", "test-page"])
    plan.add(Task("publish", shell="make publish"), after=["package", "docs"])
    plan.add(Task("announce", shell="make announce"), after="publish")
    scene = PlanScene(plan)
    _work(scene, ["fetch", "compile", "lint", "docs", "test-core", "test-store"], failed=["lint"], running=2)
    _ended_work(scene)
    return scene


def middle_scene() -> PlanScene:
    """About 200 tasks: wide layers, and a ``foreach`` of 60 elements."""
    plan = Constellation("warehouse")
    plan.add(Task("calendar", shell="true"))
    for source in SOURCES:
        plan.add(Task(f"extract-{source}-from-production", shell="true"), after="calendar")
        plan.add(Task(f"clean-{source}", shell="true"), after=f"extract-{source}-from-production")
        plan.add(Task(f"check-{source}", shell="true"), after=f"clean-{source}")
    for first, second in zip(SOURCES[::2], SOURCES[1::2], strict=True):
        plan.add(Task(f"join-{first}-{second}", shell="true"), after=[f"check-{first}", f"check-{second}"])
    joins = [f"join-{first}-{second}" for first, second in zip(SOURCES[::2], SOURCES[1::2], strict=True)]
    plan.add(Task("train", shell="true"), after=joins)
    for number in range(ELEMENTS):
        plan.add(Task(f"train[{number}]", shell="true"), after=joins[number % len(joins)])
        plan.connect(f"train[{number}]", "train")
    for number in range(30):
        plan.add(Task(f"score-market-{number + 1:02}", shell="true"), after="train")
    plan.add(Task("report", shell="true"), after=[f"score-market-{number + 1:02}" for number in range(30)])
    for name in ("publish", "mail", "archive"):
        plan.add(Task(name, shell="true"), after="report")
    scene = PlanScene(plan)
    done = ["calendar"]
    done += [f"{what}-{source}" for what in ("clean", "check") for source in SOURCES[:18]]
    done += [f"extract-{source}-from-production" for source in SOURCES]
    failed = ["check-stock", "clean-staff"]
    _work(scene, [*done, "clean-regions", "clean-staff", *joins[:4], *joins[4:8]], failed=failed, running=4)
    for number in range(ELEMENTS):
        scene.facts[f"train[{number}]"] = {**scene.facts.get(f"train[{number}]", {}), "group": "train"}
    _ended_work(scene)
    return scene


def large_scene(count: int = 5_000) -> PlanScene:
    """Layers of 50 tasks, each after two of the layer before it; the first third has completed."""
    plan = Constellation("large")
    for number in range(count):
        layer, place = divmod(number, LAYER)
        after = {(layer - 1) * LAYER + above % LAYER for above in (place, place + 1)} if layer else set()
        plan.add(Task(f"step-{number:04}", shell="true"), after=[f"step-{above:04}" for above in sorted(after)])
    scene = PlanScene(plan)
    done = [f"step-{number:04}" for number in range(count // 3)]
    _work(scene, done, failed=done[700:720:7], running=LAYER)
    _ended_work(scene)
    return scene


def _work(scene: PlanScene, tasks: Iterable[str], *, failed: Iterable[str], running: int) -> None:
    """All the tasks have ended but the last ``running``, which run; one after the other on each of the hosts."""
    tasks, failed = list(tasks), set(failed)
    step = 100 / max(1, len(tasks) / len(HOSTS))
    for turn, task in enumerate(tasks):
        started = scene.began + turn // len(HOSTS) * step
        facts = {"device": HOSTS[turn % len(HOSTS)], "started_at": started, "attempts": 1}
        if turn >= len(tasks) - running:
            scene.set(task, "running", **facts)
        elif task in failed:
            scene.set(task, "failed", ended_at=started + step, reason="exited with 1: 3 rows have no key", **facts)
        else:
            scene.set(task, "completed", ended_at=started + step * 0.9, **facts)
    waiting = [node.id for node in scene.plan.nodes.values() if node.id not in scene.facts]
    for task in waiting:
        scene.facts[task] = {"status": "waiting"}


def _ended_work(scene: PlanScene) -> None:
    models(scene)
    scene.budget = None
    fleet(scene)
    scene.devices[1].update(name=HOSTS[0], host="vm 3d1219c7c4c5 fe00-77aa", slots=0, used=0)


SCENES = {10: small_scene, 200: middle_scene, 5_000: large_scene}
