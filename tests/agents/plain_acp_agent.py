"""The scripted agent of ``scripted_acp_agent`` without the SDK: it starts in milliseconds."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

again: list[Any] = []
when_cancelled: list[Any] = []
after_end: list[Any] = []
prompts = 0


class Cancelled(Exception):
    pass


def send(**message: Any) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def receive() -> Any:
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)
    return json.loads(line)


def call(method: str, **params: Any) -> Any:
    """The result of a request to the client, or its error."""
    send(id="mine", method=method, params={"sessionId": "s", **params})
    while True:
        message = receive()
        if message.get("method") == "session/cancel":
            raise Cancelled
        if message.get("id") == "mine":
            return message


def say(text: str) -> None:
    content = {"type": "text", "text": text}
    update = {"sessionUpdate": "agent_message_chunk", "content": content}
    send(method="session/update", params={"sessionId": "s", "update": update})


def answer(message: Any, field: str | None = None) -> None:
    error = message.get("error")
    if error is not None:
        say(f"<error: {json.dumps(error['data'])}>")
    else:
        say(f"<{'done' if field is None else message['result'][field]}>")


# -- steps -------------------------------------------------------------------------------------------------------------


def do_say(value: Any, text: str) -> Any:
    say(value)


def do_repeat_prompt(value: Any, text: str) -> Any:
    say(text)


def do_where(value: Any, text: str) -> Any:
    say(json.dumps([os.getcwd(), *(os.environ.get(name) for name in value)]))


def do_again(value: Any, text: str) -> Any:
    again[:] = value


def do_plan(value: Any, text: str) -> Any:
    entries = [{"content": "x", "priority": "low", "status": status} for status in value]
    send(method="session/update", params={"sessionId": "s", "update": {"sessionUpdate": "plan", "entries": entries}})


def do_stop(value: Any, text: str) -> Any:
    return value


def do_exit(value: Any, text: str) -> Any:
    os._exit(value)


def do_kill(value: Any, text: str) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def do_hang(value: Any, text: str) -> Any:
    """With ``deaf`` it ignores SIGTERM, the cancellation of its turn and the end of its input."""
    if value.get("child"):
        child = subprocess.Popen(["sleep", "1000"])
        with open(value["file"] + ".child", "w") as file:
            file.write(f"{child.pid}\n")
    if value.get("deaf"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with open(value["file"] + ".new", "w") as file:
        file.write(f"{os.getpid()}\n")
    os.rename(value["file"] + ".new", value["file"])
    while value.get("deaf"):
        time.sleep(1000)
    while receive().get("method") != "session/cancel":
        pass
    raise Cancelled


def do_noise(value: Any, text: str) -> Any:
    sys.stdout.write("Welcome to the agent!\n[1, 2]\n{broken\n")
    sys.stdout.flush()
    sys.stderr.write("a warning\n")
    sys.stderr.flush()


def do_flood(value: Any, text: str) -> Any:
    while value > 0:
        value -= sys.stdout.write("x" * 65536)
    sys.stdout.flush()
    time.sleep(1000)


def do_permission(value: Any, text: str) -> Any:
    kinds = value.pop("options", ["allow_always", "allow_once", "reject_once"])
    options = [{"optionId": kind, "name": kind, "kind": kind} for kind in kinds]
    if "raw_input" in value:
        value["rawInput"] = value.pop("raw_input")
    told = call("session/request_permission", toolCall={"toolCallId": "c", **value}, options=options)
    outcome = told["result"]["outcome"]
    say(f"<{outcome.get('optionId', outcome['outcome'])}>")


def do_read(value: Any, text: str) -> Any:
    answer(call("fs/read_text_file", path=value), "content")


def do_write(value: Any, text: str) -> Any:
    answer(call("fs/write_text_file", path=value[0], content=value[1]))


def do_run(value: Any, text: str) -> Any:
    made = call("terminal/create", **value)
    if "error" in made:
        return answer(made)
    terminal = made["result"]["terminalId"]
    call("terminal/wait_for_exit", terminalId=terminal)
    output = call("terminal/output", terminalId=terminal)
    call("terminal/release", terminalId=terminal)
    return answer(output, "output")


def do_leave_running(value: Any, text: str) -> Any:
    call("terminal/create", command=value[0], args=value[1:])


def do_when_cancelled(value: Any, text: str) -> Any:
    when_cancelled[:] = value


def do_after_end(value: Any, text: str) -> Any:
    after_end[:] = value


def do_ask_and_exit(value: Any, text: str) -> Any:
    """Ask for a file, and end without the answer."""
    send(id="mine", method="fs/read_text_file", params={"sessionId": "s", "path": value})
    os._exit(0)


def do_two_commands(value: Any, text: str) -> Any:
    """Start two commands, and say the output of each once both have ended."""
    made = [call("terminal/create", **parameters)["result"]["terminalId"] for parameters in value]
    for terminal in made:
        call("terminal/wait_for_exit", terminalId=terminal)
    for terminal in made:
        answer(call("terminal/output", terminalId=terminal), "output")


def do_record(value: Any, text: str) -> Any:
    """Write what the client answers to requests into a file: nobody hears what is said now."""
    said = [call(method, **params) for method, params in value["requests"]]
    with open(value["file"] + ".new", "w") as file:
        json.dump([message.get("result", message.get("error")) for message in said], file)
    os.rename(value["file"] + ".new", value["file"])


def act(steps: list[Any], text: str) -> Any:
    for step in steps:
        ((name, value),) = step.items()
        reason = globals()[f"do_{name}"](value, text)
        if reason is not None:
            return reason
    return "end_turn"


def prompted(text: str) -> Any:
    global prompts
    prompts += 1
    try:
        return act(json.loads(text.splitlines()[0]) if prompts == 1 else again, text)
    except Cancelled:
        act(when_cancelled, text)
        return "cancelled"


def main() -> None:
    while True:
        message = receive()
        method, params = message.get("method"), message.get("params")
        if os.environ.get("AGENT_KILL") == method:
            os.kill(os.getpid(), signal.SIGKILL)
        if method == "initialize":
            send(id=message["id"], result={"protocolVersion": params["protocolVersion"]})
        elif method == "session/new":
            if os.environ.get("AGENT_START") == "login":
                send(id=message["id"], error={"code": -32000, "message": "Authentication required"})
            else:
                send(id=message["id"], result={"sessionId": "s"})
        elif method == "session/prompt":
            send(id=message["id"], result={"stopReason": prompted(params["prompt"][0]["text"])})
            act(after_end, "")


if __name__ == "__main__":
    main()
