"""The files of static networks for machines: keyfiles, the script that chooses a machine's own, and its unit.

A minimal ISO and a network boot have them in the initrd, a full ISO in its Ignition config. The keyfiles are
where assisted-service puts them.
"""

from __future__ import annotations

import base64
import stat
from importlib import resources
from typing import TYPE_CHECKING, Any

from image_service.core.formats.newc import Member

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_DIRECTORY = "etc/assisted/network"
_SCRIPT_PATH = "usr/local/bin/static-network.sh"
_UNIT = "static-network.service"
_SCRIPT, _IN_INITRD, _IN_SYSTEM = (
    resources.files(__package__).joinpath(name).read_text()
    for name in ("static-network.sh", "initrd.service", "system.service")
)
_UNITS = "etc/systemd/system"


def initrd_members(files: Mapping[str, str]) -> Iterator[Member]:
    """Yield the members of an archive that is unpacked over the initrd.

    Args:
        files: of `convert_networks`.
    """
    for path, text in files.items():
        yield Member(f"{_DIRECTORY}/{path}", text.encode())
    yield Member(_SCRIPT_PATH, _SCRIPT.encode(), stat.S_IFREG | 0o755)
    yield Member(f"{_UNITS}/{_UNIT}", _IN_INITRD.encode(), stat.S_IFREG | 0o644)
    link = f"/{_UNITS}/{_UNIT}".encode()
    yield Member(f"{_UNITS}/initrd.target.wants/{_UNIT}", link, stat.S_IFLNK | 0o777)


def ignition_config(files: Mapping[str, str]) -> dict[str, Any]:
    """Return the part of an Ignition config; see `initrd_members`."""
    members = [(f"{_DIRECTORY}/{path}", text, 0o600) for path, text in files.items()]
    members.append((_SCRIPT_PATH, _SCRIPT, 0o755))
    return {
        "storage": {"files": [_ignition_file(*member) for member in members]},
        "systemd": {"units": [{"name": _UNIT, "enabled": True, "contents": _IN_SYSTEM}]},
    }


def _ignition_file(path: str, text: str, mode: int) -> dict[str, Any]:
    source = f"data:text/plain;base64,{base64.b64encode(text.encode()).decode()}"
    return {
        "path": f"/{path}",
        "mode": mode,
        "overwrite": True,
        "user": {"name": "root"},
        "contents": {"source": source},
    }
