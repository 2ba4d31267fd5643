"""The plan of the README: three functions, one of which fails until somebody has mended its tools.

Run it with ``python examples/quickstart.py``.
"""

import asyncio

from asterism import Constellation, LocalDevice, Orchestrator, Result, Task, edits

TOOLS = {"compiler": "broken"}


async def fetch():
    return ["main.c", "stars.c"]


async def build(fetch):  # results of upstream tasks arrive by name
    if TOOLS["compiler"] == "broken":
        raise RuntimeError("the compiler is broken")
    return f"{len(fetch)} files built"


def report():  # plain functions run in a thread
    return "told everybody"


async def repair(view, events):  # an editor: any async function, or an object with .edit
    if any(event.kind == "task_failed" for event in events):
        TOOLS["compiler"] = "mended"
        return [edits.AddTask(Task("rebuild", call=build)), edits.AddDependency("fetch", "rebuild")]


async def main() -> Result:
    plan = Constellation("release")
    plan.add(Task("fetch", call=fetch))
    plan.add(Task("build", call=build, retries=2, timeout=60, backoff=0.1), after="fetch")
    plan.add(Task("report", call=report, priority="high"), after={"build": "completion"})

    result = await Orchestrator(devices=[LocalDevice("laptop", slots=4)], editor=repair).run(plan)
    print(result.state)
    for task in result:
        print(f"  {task.id}: {task.status}, {task.value if task.error is None else task.error}")
    return result


if __name__ == "__main__":
    asyncio.run(main())
