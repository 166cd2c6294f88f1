"""cloud-init's own code reads the configs of edited ISOs and of config ISOs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from image_service.core.families.live.debian import DEBIAN_LIVE
from image_service.core.families.live.editing import edit_medium
from image_service.core.families.live.medium import LiveMedium
from image_service.core.formats.boot_configuration.finding import find_configs
from image_service.core.images.config_medium import MEDIA, write_config_medium
from tests.acceptance.debian import unpacked_package
from tests.core.families.live.test_families import BOOT, make
from tests.core.formats.iso_edit.isos import base_of, extract

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.acceptance

USER_DATA = b"#cloud-config\nhostname: edited\n"
_PACKAGES = ("cloud-init", "python3-configobj")
_READ = """
import json, sys
from cloudinit import util
from cloudinit.sources import DataSourceNoCloud
directory, cmdline = sys.argv[1:]
found = {}
if cmdline:
    assert DataSourceNoCloud.parse_cmdline_data("ds=nocloud", found, cmdline)
    seed = found["seedfrom"]
    assert seed.startswith("/")
    meta_data, user_data, _ = util.read_seeded(directory + seed.removeprefix("/run/live/medium"))
else:
    read = util.pathprefix2dict(directory, required=["user-data", "meta-data"])
    meta_data, user_data = util.load_yaml(read["meta-data"]), read["user-data"]
print(json.dumps([meta_data, user_data.decode()]))
"""


def read_by_cloud_init(directory: Path, cmdline: str = "") -> tuple[dict[str, str], str]:
    """Return meta-data and user-data; with kernel arguments, from where those say."""
    paths = [str(unpacked_package(name) / "usr/lib/python3/dist-packages") for name in _PACKAGES]
    done = subprocess.run(
        [sys.executable, "-c", _READ, str(directory), cmdline],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    meta_data, user_data = json.loads(done.stdout)
    return meta_data, user_data


def test_live_system_reads_user_data_from_where_its_kernel_argument_says(tmp_path: Path) -> None:
    files = {**BOOT, "live/filesystem.squashfs": b"hsqs"}
    medium = LiveMedium(base_of(make("LIVE", files)))
    edited = edit_medium(medium, DEBIAN_LIVE.place(medium, USER_DATA)).apply(medium.base)
    extract(edited.read_at(0, edited.size), tmp_path)
    (menu, *_) = find_configs(LiveMedium(edited)).files
    words = menu.content.decode().replace("'", "").split()
    (argument,) = (word for word in words if word.startswith("ds="))
    meta_data, user_data = read_by_cloud_init(
        tmp_path / "files", f"BOOT_IMAGE=/x quiet {argument} console=ttyS0"
    )
    assert (meta_data["instance-id"], user_data) == ("image-service", USER_DATA.decode())


def test_second_medium_has_all_that_cloud_init_requires(tmp_path: Path) -> None:
    content = MEDIA["cidata"].complete({"user-data": USER_DATA})
    extract(write_config_medium("cidata", content, datetime(2026, 1, 1, tzinfo=UTC)), tmp_path)
    meta_data, user_data = read_by_cloud_init(tmp_path / "files")
    assert meta_data["instance-id"]
    assert user_data == USER_DATA.decode()
