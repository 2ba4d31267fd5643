"""The example agents of the official ACP SDKs, for tests only.

``make acp-examples`` fetches them into a folder that git ignores. The wheel of the Python SDK has no examples, its
source distribution has: pip fetches the one of the pinned version, with the hash in ``requirements/test.txt``. Its
agent repeats the prompt and asks for nothing; the agent of the TypeScript SDK asks for a permission.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.npm_packages import Package, fetch, unpack

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".acp-examples"
PYTHON_AGENT = FOLDER / "python" / "agent.py"
TYPESCRIPT_AGENT = FOLDER / "node_modules" / "@agentclientprotocol" / "sdk" / "dist" / "examples" / "agent.js"
MISSING = "the example agents of the ACP SDKs are not here: make acp-examples fetches them (it needs npm)"

PACKAGES = (
    Package(  # the last version that contains its example
        "@agentclientprotocol/sdk",
        "1.9.0",
        "sha512-saCOTPYBK1iqWqJFAYHXbg3+zCoFXyZZFoqQAwdTWkbrZZPpAETr80QOnYr2l+dzPwL0jpNhn3eDY8MoEIDbUA==",
        "",
        "node_modules/@agentclientprotocol/sdk",
    ),
    Package(
        "zod",
        "4.6.7",
        "sha512-g8W2D2kU6a8untc053fX1uVBKzM7yqAxW/3zwk83+6RyF2+SKOuV+c0wBDhUwzV1PaGapmZH+rmcUzPf+3CGwg==",
        "",
        "node_modules/zod",
    ),
)


def fetch_python_example() -> None:
    pin = re.search(r"^agent-client-protocol==(\S+)( \\\n +--hash=\S+)+", _pins(), re.MULTILINE)
    assert pin is not None
    mark = FOLDER / "python.version"
    if mark.exists() and mark.read_text() == pin[0]:
        return
    with tempfile.TemporaryDirectory() as scratch:
        wanted = Path(scratch) / "wanted.txt"
        wanted.write_text(pin[0])
        words = ["pip", "download", "-qq", "--no-deps", "--no-binary", ":all:", "--require-hashes", "-d", scratch]
        subprocess.run([sys.executable, "-m", *words, "-r", str(wanted)], check=True)
        [archive] = Path(scratch).glob("*.tar.gz")
        unpack(archive, f"agent_client_protocol-{pin[1]}/examples", FOLDER / "python")
    mark.write_text(pin[0])
    print(f"agent-client-protocol {pin[1]}")


def _pins() -> str:
    return (ROOT / "requirements" / "test.txt").read_text()


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    fetch_python_example()
    if shutil.which("npm") is None:
        sys.exit("npm is missing, so the agent of the TypeScript SDK cannot be fetched")
    fetch(PACKAGES, FOLDER)
