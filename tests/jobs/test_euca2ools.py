"""euca2ools against a running role and a real S3 server: imports from end to end, as its user sees them."""

from __future__ import annotations

import os
from base64 import b64encode
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import pytest

from tests.jobs.ec2_clients import (
    ec2_client,
    ec2_settings,
    images_of,
    import_settings,
    make_disk,
    s3_client,
    wait_for_import,
)
from tests.jobs.euca2ools import ImportPrograms, InstalledEuca2ools, ReplayedEuca2ools
from tests.jobs.open_store import running_open_store
from tests.jobs.running_role import RunningRole, running_role
from tests.s3_server import BUCKET, running_s3_server
from tests.variants import soaked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.acceptance


@attrs.frozen
class Site:
    """The programs, a role, and the keys in its object store."""

    programs: ImportPrograms
    role: RunningRole
    uploads: Callable[[], list[str]]

    def complete(self, task_id: str) -> None:
        """Wait until a task is completed; its upload is deleted then."""
        wait_for_import(ec2_client(self.role.url), task_id)
        assert self.uploads() == []


@pytest.fixture(scope="module", params=["replayed", "installed"])
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("jobs")
    if request.param == "replayed":
        with (
            running_s3_server(tmp_path_factory.mktemp("s3")) as s3,
            running_role(directory, **ec2_settings(directory, s3)) as role,
        ):
            client = s3_client(s3)
            yield Site(
                ReplayedEuca2ools(role.url, s3),
                role,
                lambda: [each["Key"] for each in client.list_objects_v2(Bucket=BUCKET).get("Contents", ())],
            )
        return
    programs = os.environ.get("EUCA2OOLS")
    if not programs:  # in no registry; so it is optional under REQUIRE_CLIENTS=1, too
        pytest.skip("optional client: EUCA2OOLS does not name the directory of euca2ools' programs")
    with running_open_store() as store:
        settings = import_settings(directory, f"http://127.0.0.1:{store.port}")
        with running_role(directory, **settings) as role:
            installed = InstalledEuca2ools(Path(programs), role.url, store.port)
            yield Site(installed, role, lambda: list(store.objects))


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_disk(tmp_path_factory.mktemp("disk") / "disk.raw")


def test_volume_is_uploaded_and_imported(site: Site, disk: Path) -> None:
    printed = site.programs.import_volume(disk, "-d", "a disk")
    assert (printed["TaskType"], printed["Status"]) == ("IMPORTVOLUME", "active")
    site.complete(printed["TaskId"])
    described = site.programs.describe(printed["TaskId"])
    assert described == {**described, "Status": "completed", "DiskImageFormat": "RAW", "VolumeSize": "1"}
    assert described["DiskImageSize"] == str(disk.stat().st_size)
    assert described["VolumeId"] in {image["volume_id"] for image in images_of(site.role)}


def test_instance_is_imported_with_all_options_of_the_program(site: Site, disk: Path, tmp_path: Path) -> None:
    user_data = tmp_path / "user-data"
    user_data.write_text("#!/bin/sh\n")
    data = user_data if isinstance(site.programs, InstalledEuca2ools) else b64encode(user_data.read_bytes())
    options = {
        "-g": "web",
        "-z": "here",
        "--key": "my-key",
        "--instance-initiated-shutdown-behavior": "stop",
        "--private-ip-address": "192.0.2.1",
        "--subnet": "subnet-1",
        "--user-data-file": data.decode() if isinstance(data, bytes) else str(data),
    }
    printed = site.programs.import_instance(disk, *(word for pair in options.items() for word in pair))
    assert (printed["TaskType"], printed["Status"]) == ("IMPORTINSTANCE", "active")
    site.complete(printed["TaskId"])
    image = next(each for each in images_of(site.role) if each["source"] == f"import:{printed['TaskId']}")
    specification = image["launch_specification"]
    assert specification.pop("UserDataSha256")
    assert specification == {
        "Architecture": "x86_64",
        "GroupNames": ["web"],
        "InstanceInitiatedShutdownBehavior": "stop",
        "InstanceType": "m1.small",
        "KeyName": "my-key",
        "Monitoring": False,
        "Placement": {"AvailabilityZone": "here"},
        "PrivateIpAddress": "192.0.2.1",
        "SubnetId": "subnet-1",
    }


@pytest.mark.parametrize("kind", [soaked("volume"), "instance"])
def test_import_is_resumed(site: Site, disk: Path, kind: str) -> None:
    start = site.programs.import_volume if kind == "volume" else site.programs.import_instance
    task_id = start(disk, "--no-upload")["TaskId"]
    assert site.programs.describe(task_id)["Status"] == "active"
    assert site.uploads() == []
    site.programs.resume_import(disk, task_id)
    site.complete(task_id)


def test_upload_of_a_cancelled_task_is_deleted(site: Site, disk: Path) -> None:
    task_id = site.programs.import_volume(disk, "--no-upload")["TaskId"]
    site.programs.cancel(task_id)
    assert site.programs.describe(task_id)["Status"] == "cancelled"
    site.programs.resume_import(disk, task_id)
    assert len(site.uploads()) == 1 + -(-disk.stat().st_size // (10 * 2**20))
    site.programs.delete_disk_image(task_id)
    assert site.uploads() == []
