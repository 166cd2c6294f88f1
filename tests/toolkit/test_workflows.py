"""Workflows: each runs, its dependencies disable it alone, and a wrong name is answered with the nearest."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

import pytest

from image_service.toolkit.commands import main
from image_service.toolkit.commands.workflows import WORKFLOWS
from image_service.toolkit.workspace import dependencies
from tests.acceptance.clients import run_client
from tests.s3_server import BUCKET, S3Server, running_s3_server
from tests.toolkit.coreos_disk import build_disk
from tests.toolkit.transfer.bundles import BundleMaker, RsaKey, tar_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from image_service.common.programs.dependencies import Dependency

SIZE = 4 << 20
SECRET = "secret-of-the-config"
CONFIG = f'{{"ignition": {{"version": "3.4.0"}}, "passwd": {{"users": [{{"name": "{SECRET}"}}]}}}}'


def call(capfd: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, dict[str, dict[str, str]], str]:
    """Return status, report and standard error of a call."""
    capfd.readouterr()
    status = main(["run", *map(str, arguments), "--json", "--progress=json"])
    output, errors = capfd.readouterr()
    return status, json.loads(output), errors


def test_unknown_workflow_is_a_usage_error_with_all_names(capfd: pytest.CaptureFixture[str]) -> None:
    status, report, _ = call(capfd, "down-parts/write-rw", "in", "out")
    assert status == 2
    for workflow in WORKFLOWS:
        assert workflow.name in report["error"]["reason"]
    assert "did you mean down-parts/write-raw?" in report["error"]["reason"]


def test_names_are_unique_and_each_has_two_arguments() -> None:
    assert len({workflow.name for workflow in WORKFLOWS}) == len(WORKFLOWS)
    for workflow in WORKFLOWS:
        assert all(workflow.arguments)


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda workflow: workflow.name)
def test_missing_dependency_ends_a_workflow_with_3_and_its_name(
    workflow: object, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    name, needed = next((each.name, each.dependencies) for each in WORKFLOWS if each is workflow)

    def find(dependency: Dependency) -> str | None:
        return None if dependency is needed[-1] else "/somewhere"

    monkeypatch.setattr("image_service.common.programs.dependencies.Dependency.find", find)
    place = "s3://bucket/key" if name.endswith(("upload", "up-parts")) else tmp_path / "out"
    ignition = ["--ignition", tmp_path / "config"] if name.startswith("customize") else []
    status, report, _ = call(capfd, name, "in", place, *ignition)
    assert status == 3
    assert needed[-1].debian in report["error"]["reason"]


def test_missing_program_disables_only_workflows_that_need_it(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(dependency: Dependency) -> str | None:
        return None if dependency is dependencies.BOTOCORE else "/somewhere"

    monkeypatch.setattr("image_service.common.programs.dependencies.Dependency.find", find)
    assert main(["list", "--json"]) == 0
    listed = {each["name"]: each["available"] for each in json.loads(capfd.readouterr().out)["workflows"]}
    assert {name for name, available in listed.items() if not available} == {
        name for name in listed if name.endswith(("upload", "up-parts"))
    }


def test_read_raw_refuses_another_format(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    run_client("qemu-img", "create", "-q", "-f", "qcow2", tmp_path / "disk", "1M")
    status, report, _ = call(capfd, "read-raw/up-parts", tmp_path / "disk", "s3://bucket/key")
    assert status == 6
    assert "declared to be raw, and its content is qcow2" in report["error"]["reason"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with running_s3_server(tmp_path_factory.mktemp("s3")) as running:
        yield running


@pytest.fixture
def store(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return server


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("raw") / "disk.raw"
    path.write_bytes(b"a disk of the test".ljust(SIZE // 2, b"\0") * 2)
    return path


def digest_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def is_equal(one: Path, form: str, other: Path) -> bool:
    run_client("qemu-img", "compare", "-f", form, "-F", "raw", one, other)
    return True


@pytest.mark.acceptance
def test_raw_disk_goes_up_in_parts_and_comes_down_in_each_way(
    store: S3Server, raw: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    manifest, out, scratch = tmp_path / "manifest", tmp_path / "out" / "disk", tmp_path / "scratch"
    out.parent.mkdir()
    scratch.mkdir()
    status, report, errors = call(
        capfd, "read-raw/up-parts", raw, f"s3://{BUCKET}/w", "--part-size", "1M", "--manifest-file", manifest
    )
    assert status == 0, report
    assert report["input"]["sha256"] == digest_of(raw)
    assert {json.loads(line)["phase"] for line in errors.splitlines()} == {"upload"}
    common = ["--allow-host", store.environment["AWS_ENDPOINT_URL"], "--scratch", scratch]
    status, report, errors = call(capfd, "down-parts/write-raw", manifest, out, *common)
    assert status == 0, report
    assert digest_of(out) == report["output"]["sha256"] == digest_of(raw)
    assert {"download", "convert"} <= {json.loads(line)["phase"] for line in errors.splitlines()}
    status, report, _ = call(capfd, "down-parts/convert", manifest, out, *common, "--format", "vmdk")
    assert status == 0, report
    assert is_equal(out, "vmdk", raw)
    place = f"s3://{BUCKET}/w/export.vhd"
    status, report, _ = call(capfd, "down-parts/convert/upload", manifest, place, *common, "--format", "vhd")
    assert status == 0, report
    exported = store.directory / "w/export.vhd"
    assert report["output"]["sha256"] == digest_of(exported)
    assert exported.stat().st_size == SIZE + 512
    assert exported.read_bytes()[:SIZE] == raw.read_bytes()
    status, report, _ = call(capfd, "down-parts/upload", manifest, f"s3://{BUCKET}/w/export.raw", *common)
    assert status == 0, report
    assert digest_of(store.directory / "w/export.raw") == digest_of(raw)
    assert list(scratch.iterdir()) == []


@pytest.mark.acceptance
def test_bundle_comes_down_in_each_way(
    store: S3Server, raw: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    user = RsaKey.make(tmp_path, "user")
    manifest = BundleMaker(user, user).make(tmp_path / "bundle", tar_of(raw), SIZE)
    out = tmp_path / "out"
    status, report, _ = call(capfd, "down-bundle/write-raw", manifest, out, "--key", user.key)
    assert status == 0, report
    assert digest_of(out) == digest_of(raw)
    status, report, _ = call(capfd, "down-bundle/convert", manifest, out, "--key", user.key)
    assert status == 0, report
    assert is_equal(out, "qcow2", raw)
    place = f"s3://{BUCKET}/b/disk.vmdk"
    status, report, _ = call(
        capfd, "down-bundle/convert/upload", manifest, place, "--key", user.key, "--format", "vmdk"
    )
    assert status == 0, report
    assert is_equal(store.directory / "b/disk.vmdk", "vmdk", raw)
    status, report, _ = call(capfd, "down-bundle/convert", manifest, out)
    assert status == 6
    assert "--key" in report["error"]["reason"]


@pytest.mark.acceptance
def test_disk_is_converted_and_published(
    store: S3Server, raw: Path, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    place = f"s3://{BUCKET}/c/disk.ova"
    status, report, _ = call(capfd, "convert/upload", raw, place, "--format", "ova")
    assert status == 0, report
    assert report["output"]["format"] == "ova"
    run_client("tar", "-C", tmp_path, "-xf", store.directory / "c/disk.ova")
    assert "disk.ovf" in {path.name for path in tmp_path.iterdir()}
    status, report, _ = call(capfd, "convert/up-parts", raw, f"s3://{BUCKET}/c", "--format", "vmdk")
    assert status == 0, report
    status, report, _ = call(capfd, "convert/up-parts", raw, f"s3://{BUCKET}/c", "--format", "vhdx")
    assert status == 6
    assert "an import manifest describes qcow2, raw, vhd, vmdk, not vhdx" in report["error"]["reason"]


@pytest.mark.acceptance
def test_disk_is_customized_converted_and_published(
    store: S3Server, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    disk = build_disk(tmp_path)
    config = tmp_path / "config.ign"
    config.write_text(CONFIG)
    ignition = ["--ignition", config, "--platform", "qemu"]
    out = tmp_path / "out.qcow2"
    status, report, errors = call(capfd, "customize/convert", disk, out, *ignition, "--format", "qcow2")
    assert status == 0, report
    assert report["input"]["sha256"] == digest_of(disk)
    assert report["output"]["sha256"] == digest_of(out)
    assert SECRET not in errors
    place = f"s3://{BUCKET}/d/disk.vmdk"
    status, report, _ = call(capfd, "customize/convert/upload", disk, place, *ignition, "--format", "vmdk")
    assert status == 0, report
    assert report["output"]["sha256"] == digest_of(store.directory / "d/disk.vmdk")
    status, report, _ = call(capfd, "customize/upload", disk, f"s3://{BUCKET}/d/disk.raw", *ignition)
    assert status == 0, report
    assert SECRET.encode() in (store.directory / "d/disk.raw").read_bytes()
    status, report, _ = call(
        capfd, "customize/convert/up-parts", disk, f"s3://{BUCKET}/d", *ignition, "--format", "raw"
    )
    assert status == 0, report
