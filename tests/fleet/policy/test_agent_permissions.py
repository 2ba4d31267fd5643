"""What an agent may ask for: the key ``permissions`` of a device policy."""

from __future__ import annotations

from pathlib import Path

import pytest

from asterism.fleet.policy.device_policy import PERMISSIONS, DevicePolicy, PolicyForbids, Rules
from asterism.fleet.policy.policy_file import InvalidDevicePolicy, parse


def test_nothing_is_allowed_without_a_file_or_a_key() -> None:
    for policy in (DevicePolicy.open(), DevicePolicy(Rules())):
        for kind in PERMISSIONS:
            with pytest.raises(PolicyForbids, match="see 'permissions' in it"):
                policy.permission(kind)


def test_a_file_lists_kinds_and_a_mistake_is_named() -> None:
    policy = DevicePolicy(parse("permissions: [read, edit]"))
    policy.permission("read")
    with pytest.raises(PolicyForbids):
        policy.permission("execute")
    with pytest.raises(InvalidDevicePolicy, match=r"permissions\[0\] must be one of read, edit, delete"):
        parse("permissions: [everything]")


def test_files_are_inside_the_directories(tmp_path: Path) -> None:
    inside = tmp_path / "in"
    inside.mkdir()
    (inside / "link").symlink_to(tmp_path)
    policy = DevicePolicy(Rules(directories=(str(inside),)))
    assert policy.file(str(inside / "new.txt")) == str((inside / "new.txt").resolve())
    for path in (str(tmp_path / "a"), str(inside / ".." / "a"), str(inside / "link" / "a"), f"{inside}-2/a", "a"):
        with pytest.raises(PolicyForbids, match="see 'directories' in it"):
            policy.file(path)
