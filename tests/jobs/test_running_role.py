"""The jobs role as `make jobs` starts it: engine and worker as children, and the samples as base images."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import stat
from base64 import b64decode
from typing import TYPE_CHECKING

import attrs
import pytest

from image_service.server.standalone.sample import unpack_sample
from tests import forks
from tests.acceptance.clients import run_client
from tests.acceptance.service import CHECKOUT, fetch
from tests.archives import unpack
from tests.jobs.running_role import DISTRIBUTION, JOBS, RunningRole, running_role, wait_until
from tests.processes import children_of, exists
from tests.toolkit.coreos_disk import read_boot_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.acceptance

SECRET = "secret-of-the-cluster"
CONFIG = json.dumps({"ignition": {"version": "3.3.0"}, "passwd": {"users": [{"name": SECRET}]}}).encode()


@pytest.fixture(scope="module")
def role(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningRole]:
    with running_role(tmp_path_factory.mktemp("jobs")) as running:
        yield running


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("config") / "config.ign"
    path.write_bytes(CONFIG)
    return path


@attrs.frozen
class Made:
    """An appliance that the command for people has made and downloaded."""

    compose_id: str
    ova: Path


@pytest.fixture(scope="module")
def made(role: RunningRole, config: Path, tmp_path_factory: pytest.TempPathFactory) -> Made:
    ova = tmp_path_factory.mktemp("made") / "sample.ova"
    return Made(start(role, "vsphere-ova", config, "--output", ova), ova)


def start(role: RunningRole, image_type: str, config: Path, *arguments: str | Path) -> str:
    options = ("--distribution", DISTRIBUTION, "--type", image_type, "--ignition", config)
    return role.compose("start", *options, *arguments).split()[0]


def test_ova_of_the_sample_has_the_config_and_is_downloaded_by_ranges(
    role: RunningRole, made: Made, tmp_path: Path
) -> None:
    whole = made.ova.read_bytes()
    path = f"/composes/{made.compose_id}/download"
    answer = role.get(path)
    digest = b64decode(answer.headers["Repr-Digest"].removeprefix("sha-256=:").removesuffix(":"))
    assert (answer.body, digest) == (whole, hashlib.sha256(whole).digest())
    halves = [role.get(path, {"Range": f"bytes={part}"}) for part in ("0-99999", "100000-")]
    assert [half.status for half in halves] == [206, 206]
    assert b"".join(half.body for half in halves) == whole
    unpack(made.ova, tmp_path / "unpacked")
    (disk,) = (tmp_path / "unpacked").glob("*.vmdk")
    run_client("qemu-img", "convert", "-f", "vmdk", "-O", "raw", disk, tmp_path / "disk.raw")
    assert read_boot_file(tmp_path / "disk.raw", "ignition/config.ign") == CONFIG


def test_live_iso_is_customized_and_not_stored(role: RunningRole, config: Path, tmp_path: Path) -> None:
    iso = tmp_path / "live.iso"
    compose_id = start(role, "live-installer", config, "--output", iso)
    assert run_client("coreos-installer", "iso", "ignition", "show", iso) == CONFIG
    assert iso.stat().st_size == unpack_sample(tmp_path).stat().st_size
    assert role.status(compose_id)["status"] == "success"
    sizes = [path.stat().st_size for path in (role.data_dir / "store").rglob("*") if path.is_file()]
    assert iso.stat().st_size not in sizes


@pytest.mark.soak
def test_disk_of_a_requested_size_is_made(role: RunningRole, config: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk.qcow2"
    start(role, "guest-image", config, "--size", str(1024**3), "--output", disk)
    described = json.loads(run_client("qemu-img", "info", "--output=json", disk))
    assert (described["format"], described["virtual-size"]) == ("qcow2", 1024**3)


def test_disk_of_the_built_in_worker_is_not_sent_to_the_store(role: RunningRole, made: Made) -> None:
    del made  # its disk is stored
    page = fetch(f"{role.admin_url}/metrics").body.decode()
    requests = [line for line in page.splitlines() if "/jobs/{token}/artifacts/{name}" in line]
    assert [line for line in requests if 'method="POST"' in line]
    assert not [line for line in requests if 'method="PUT"' in line]


def test_secret_of_the_config_is_in_no_log_row_or_scratch(role: RunningRole, made: Made) -> None:
    assert SECRET not in role.log
    for path in (role.data_dir / "engine", role.data_dir / "worker" / "scratch"):
        assert [
            each for each in path.rglob("*") if each.is_file() and SECRET.encode() in each.read_bytes()
        ] == []
    for path in role.data_dir.glob("jobs.sqlite*"):
        assert SECRET.encode() not in path.read_bytes()
    for name in ("metadata", "manifests", "logs", "provenance", "sboms"):
        assert SECRET.encode() not in role.get(f"/composes/{made.compose_id}/{name}").body


def test_page_of_the_operator_has_each_compose_with_its_jobs_logs_and_image(
    role: RunningRole, made: Made
) -> None:
    compose_id = made.compose_id
    url = f"{role.admin_url}/api/v1/composes"
    assert f"status page: {role.admin_url}/" in role.log
    assert fetch(f"{role.admin_url}/").status == 200
    (compose,) = [each for each in json.loads(fetch(url).body)["composes"] if each["id"] == compose_id]
    assert (compose["what"], compose["state"]) == (f"{DISTRIBUTION} x86_64 vsphere-ova", "success")
    assert {job["state"] for job in compose["jobs"]} == {"finished"}
    assert SECRET not in json.dumps(compose)
    (build,) = json.loads(fetch(f"{url}/{compose_id}/logs").body)["image_builds"]
    assert [step["step"] for step in build["steps"]] == [job["step"] for job in compose["jobs"]]
    image = fetch(f"{url}/{compose_id}/image", headers={"Range": "bytes=0-511"})
    assert (image.status, image.body) == (206, made.ova.read_bytes()[:512])
    assert fetch(f"{url}/{compose_id}/cancellation", "POST").status == 409


def test_directory_has_one_role(role: RunningRole) -> None:
    second = {**role.environment, "JOBS_LISTEN": "127.0.0.1:0", "ADMIN_LISTEN": "127.0.0.1:0"}
    finished = forks.run(JOBS, env=second, timeout=300)
    assert finished.returncode == os.EX_CONFIG
    assert f"DATA_DIR: {role.data_dir}/engine is in use by another process" in finished.stdout
    assert "Traceback" not in finished.stdout


def test_socket_is_for_owner_and_group(role: RunningRole) -> None:
    assert stat.S_IMODE((role.data_dir / "jobs.sock").stat().st_mode) == 0o660


def test_killed_role_restarts_with_its_composes(tmp_path: Path) -> None:
    with running_role(tmp_path, JOBS_HEARTBEAT_TIMEOUT="15") as role:
        made = role.start("minimal-raw", config=CONFIG)
        role.wait_until_ended(made)
        interrupted = role.start("minimal-raw", config=CONFIG)
        role.process.send_signal(signal.SIGKILL)
        role.process.wait()
    with running_role(tmp_path, JOBS_HEARTBEAT_TIMEOUT="15") as role:
        assert role.status(made)["status"] == "success"
        assert role.get(f"/composes/{made}/download").status == 200
        assert role.wait_until_ended(interrupted)["status"] == "success"
        children = children_of(role.process.pid)
        assert len(children) == 2
    wait_until(lambda: not any(map(exists, children)), lambda: role.log)
    assert not (role.data_dir / "jobs.sock").exists()
    assert list((role.data_dir / "worker" / "scratch").iterdir()) == []


@pytest.mark.parametrize(
    ("variables", "faults"),
    [
        (
            {"JOBS_LISTEN": "0.0.0.0:0", "STORE_URL": "here"},
            (
                "JWT_KEYS_URL or JWT_KEYS_FILE must be set then",
                "STORE_URL='here': must be an absolute path",
            ),
        ),
        ({"JOBS_LISTEN": "unix:/proc/jobs.sock"}, ("cannot listen on /proc/jobs.sock",)),
    ],
    ids=["settings", "listener"],
)
def test_invalid_configuration_ends_with_78(
    variables: dict[str, str], faults: tuple[str, ...], tmp_path: Path
) -> None:
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(CHECKOUT), "DATA_DIR": str(tmp_path)}
    finished = forks.run(JOBS, env={**environment, **variables}, timeout=300)
    assert finished.returncode == os.EX_CONFIG
    for fault in faults:
        assert fault in finished.stdout + finished.stderr
