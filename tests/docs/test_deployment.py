"""The files of docs/how-to/deploy.md: units that systemd accepts, options that exist; and the Containerfile."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import click
import pytest

from asterism.cli.main import commands
from tests.docs.docs_pages import ROOT
from tests.process_scenes import PATIENCE

PAGE = (ROOT / "docs" / "how-to" / "deploy.md").read_text("utf-8")
FILES = dict(re.findall(r"```\w+\n# (\S+)\n(.*?)```", PAGE, re.DOTALL))
"""The files on the page: each block begins with a line that names it."""

UNITS = {Path(name).name: text for name, text in FILES.items() if name.startswith("/etc/systemd/")}
CONTAINERFILE = (ROOT / "Containerfile").read_text("utf-8")
METADATA = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]

EXTRAS = ("serve", "gateway", "http", "postgres")
"""What a machine with a server installs."""


def command_lines() -> list[str]:
    """Every call of asterism on the page, in units and in the container."""
    in_units = re.findall(r"/opt/asterism/bin/asterism ([^\n']*)", "\n".join(UNITS.values()))
    return [*in_units, *re.findall(r"^    (serve .*)$", PAGE, re.MULTILINE)]


def test_the_page_has_the_files_that_it_promises() -> None:
    assert set(UNITS) == {
        "asterism-server.service",
        "asterism-monitor.service",
        "asterism-device@.service",
        "asterism-backup.service",
        "asterism-backup.timer",
    }
    assert {"Caddyfile", "/etc/nginx/conf.d/asterism.conf", "/etc/asterism/asterism.env"} <= set(FILES)


@pytest.mark.parametrize("line", command_lines())
def test_every_command_and_option_exists(line: str) -> None:
    words = shlex.split(line.replace("$$(date +%%a)", "day"))
    command: click.Command = commands
    context = click.Context(commands)
    while isinstance(command, click.Group):
        subcommand = command.get_command(context, words.pop(0))
        assert subcommand is not None, line
        command = subcommand
    command.make_parser(context).parse_args([word.replace("%i", "lab-1") for word in words])


def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("there is no systemd-analyze on this machine")
    program = tmp_path / "asterism"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    for name, text in UNITS.items():
        text = text.replace("/opt/asterism/bin/asterism", str(program))
        (tmp_path / name).write_text(text)
    names = [name.replace("@.", "@lab-1.") for name in UNITS]
    (tmp_path / "asterism-device@lab-1.service").write_text((tmp_path / "asterism-device@.service").read_text())
    done = subprocess.run(
        [analyze, "verify", "--man=no", *(str(tmp_path / name) for name in names)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    complaints = [line for line in done.stderr.splitlines() if "asterism" in line]
    assert (done.returncode, complaints) == (0, []), done.stderr


def test_a_unit_waits_longer_than_a_device_drains() -> None:
    drain = next(option for option in _options("device", "join") if option.name == "drain_for").default
    assert drain == "60s"
    for name in ("asterism-device@.service", "asterism-monitor.service"):
        assert int(re.search(r"TimeoutStopSec=(\d+)", UNITS[name])[1]) > 60  # type: ignore[index]


def _options(*words: str) -> list[click.Parameter]:
    command: click.Command = commands
    for word in words:
        assert isinstance(command, click.Group)
        command = command.get_command(click.Context(command), word)  # type: ignore[assignment]
    return command.params


def test_the_proxies_keep_host_and_wait_longer_than_a_long_poll() -> None:
    nginx, caddy = FILES["/etc/nginx/conf.d/asterism.conf"], FILES["Caddyfile"]
    assert nginx.count("proxy_set_header Host $http_host;") == 1, "in a location it would take away all others"
    assert nginx.count("proxy_pass") == 2
    assert "proxy_buffering off;" in nginx
    assert "flush_interval -1" in caddy
    waits = re.findall(r"(?:proxy_read_timeout|read_timeout|response_header_timeout) (\d+)s", nginx + caddy)
    assert len(waits) == 3
    assert all(int(seconds) > 50 for seconds in waits)
    assert nginx.count("{") == nginx.count("}")
    assert caddy.count("{") == caddy.count("}")


# -- the Containerfile -------------------------------------------------------------------------------------------------

INSTRUCTIONS = {
    *("FROM", "WORKDIR", "COPY", "RUN", "ENV", "USER", "VOLUME", "EXPOSE", "STOPSIGNAL", "ENTRYPOINT", "CMD"),
    *("ARG", "LABEL", "HEALTHCHECK", "SHELL"),
}


def instructions(text: str) -> list[tuple[str, str]]:
    """(instruction, arguments), with continued lines joined."""
    joined = re.sub(r"\\\n\s*", "", "\n".join(line for line in text.splitlines() if not line.startswith("#")))
    return [(line.split()[0], line.partition(" ")[2].strip()) for line in joined.splitlines() if line.strip()]


def complaints(text: str) -> list[str]:
    """What the rules of hadolint that matter here say about a Containerfile; hadolint itself is no Python package."""
    problems, several = [], instructions(text)
    words = [word for word, _ in several]
    problems += [f"{word} is no instruction" for word in words if word not in INSTRUCTIONS]
    for word, argument in several:
        image, _, digest = argument.split()[0].partition("@")
        if word == "FROM" and (":" not in image or image.endswith(":latest") or digest != "${PYTHON_DIGEST}"):
            problems.append(f"the image {argument} has no version and digest")
        if word == "ARG" and "=" in argument:
            problems.append(f"{argument} has a default, which is another image one day")
        if word == "RUN" and "pip install" in argument and "--no-cache-dir" not in argument:
            problems.append("pip keeps its cache in the image")
        if word == "RUN" and "apt-get install" in argument and "rm -rf /var/lib/apt/lists" not in argument:
            problems.append("the lists of apt stay in the image")
        if word == "RUN" and re.search(r"\bsudo\b|curl [^|]*\| *(ba)?sh", argument):
            problems.append(f"RUN {argument} is not safe")
        if word in ("ENTRYPOINT", "CMD", "VOLUME") and not argument.startswith("["):
            problems.append(f"{word} is not in the form of a JSON array")
        if word == "WORKDIR" and not argument.startswith("/"):
            problems.append("WORKDIR is not an absolute path")
        if word == "ADD":
            problems.append("ADD instead of COPY")
    last = max(place for place, word in enumerate(words) if word == "FROM")
    users = [argument for word, argument in several[last:] if word == "USER"]
    if not users or users[-1].split(":")[0] in ("root", "0"):
        problems.append("it runs as root")
    return problems


def test_the_containerfile_obeys_the_rules() -> None:
    assert complaints(CONTAINERFILE) == []


@pytest.mark.parametrize(
    ("before", "after", "complaint"),
    [
        (":3.13-slim-bookworm", ":latest", "has no version"),
        ("@${PYTHON_DIGEST} AS", " AS", "has no version and digest"),
        ("ARG PYTHON_DIGEST", "ARG PYTHON_DIGEST=sha256:0", "has a default"),
        (" --no-cache-dir", "", "keeps its cache"),
        ("USER 10001:10001\n", "", "runs as root"),
        ('["asterism"]', "asterism", "JSON array"),
        ("WORKDIR /data", "WORKDIR data", "absolute"),
        ("STOPSIGNAL", "STOPSIG", "no instruction"),
    ],
)
def test_each_rule_finds_its_mistake(before: str, after: str, complaint: str) -> None:
    assert any(complaint in told for told in complaints(CONTAINERFILE.replace(before, after)))


def test_what_the_containerfile_copies_exists() -> None:
    for word, argument in instructions(CONTAINERFILE):
        if word == "COPY" and not argument.startswith("--from"):
            for name in argument.split()[:-1]:
                assert (ROOT / name).exists(), name
    assert 'CMD ["serve", "--no-login"]' in CONTAINERFILE


def test_the_image_installs_pinned_packages_only_and_all_that_a_server_needs() -> None:
    steps = [step for _, argument in instructions(CONTAINERFILE) for step in argument.split("&&")]
    installs = [step for step in steps if "pip install" in step]
    assert installs
    assert all("--require-hashes" in install or "--no-deps" in install for install in installs)
    pins, known = _pins("serve"), _pins("dev")
    wanted = [
        *METADATA["dependencies"],
        *(dependency for extra in EXTRAS for dependency in METADATA["optional-dependencies"][extra]),
    ]
    names = {re.split(r"[\[<>=]", requirement)[0].strip().lower() for requirement in wanted} - {"asterism"}
    assert names <= set(pins)
    assert {name: known[name] for name in pins} == pins


BUILD_TOOLS = ("hatchling", "editables", "packaging", "pathspec", "pluggy", "tomlkit", "trove-classifiers", "pip")


def test_the_image_has_no_build_tools() -> None:
    assert {*BUILD_TOOLS}.isdisjoint(_pins("serve"))
    stages = CONTAINERFILE.split("\nFROM ")[1:]
    assert len(stages) == 2
    assert "venv --without-pip /opt/asterism" in stages[0]
    assert "--no-build-isolation" not in stages[1]
    assert "pip uninstall --yes" in stages[1]
    copies = [argument for word, argument in instructions(f"FROM {stages[1]}") if word == "COPY"]
    assert copies == ["--from=build /opt/asterism /opt/asterism"]


def test_the_licences_of_all_files_of_the_package_are_named() -> None:
    vendored = json.loads((ROOT / "src/asterism/server/page/vendor/versions.json").read_text("utf-8"))
    assert METADATA["license"].split(" AND ") == sorted({"Apache-2.0", *(file["licence"] for file in vendored)})
    files = {path.relative_to(ROOT).as_posix() for pattern in METADATA["license-files"] for path in ROOT.glob(pattern)}
    vendor = "src/asterism/server/page/vendor/"
    assert files == {"LICENSE", *(vendor + file["licence_file"] for file in vendored)}


def _pins(name: str) -> dict[str, str]:
    text = (ROOT / "requirements" / f"{name}.txt").read_text("utf-8")
    return dict(re.findall(r"^([a-z0-9._-]+)(?:\[[a-z,]+\])?==(\S+)", text, re.MULTILINE))


def test_no_service_writes_a_login_link_into_its_log() -> None:
    assert "--no-login" in UNITS["asterism-server.service"]
    assert all("--no-login" in line for line in command_lines() if line.startswith("serve"))
