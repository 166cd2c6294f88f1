"""``image-service serve --check`` beside a service, and without one."""

from __future__ import annotations

import json
import os
import socket
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from tests import forks
from tests.acceptance.service import CHECKOUT, SERVE, run_service
from tests.server.catalog.origin import Reply, running

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Mapping
    from pathlib import Path

pytestmark = pytest.mark.acceptance

SECRET = "top-secret"
IMAGE = {"openshift_version": "4.19", "cpu_architecture": "x86_64", "version": "9.6"}


def check(directory: Path, environ: Mapping[str, str], *options: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a directory, in which it must not change anything."""
    before = tree(directory)
    ended = forks.run(
        [*SERVE, "--check", *options],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(CHECKOUT), **environ},
        cwd=directory,
        timeout=100,
    )
    assert tree(directory) == before
    return ended


def tree(directory: Path) -> dict[Path, tuple[int, int]]:
    """Every file and directory, with size and time of modification."""
    return {path: (path.stat().st_size, path.stat().st_mtime_ns) for path in directory.rglob("*")}


def told_of(ended: subprocess.CompletedProcess[str]) -> list[str]:
    """Return the lines on standard error, without the warning that xorriso is missing."""
    return [line for line in ended.stderr.splitlines() if "xorriso" not in line]


def test_valid_configuration_is_printed_without_secrets(tmp_path: Path) -> None:
    environ = {
        "ASSISTED_SERVICE_HOST": "assisted.invalid",
        "DATA_DIR": str(tmp_path / "absent"),
        "IMAGE_SERVICE_BASE_URL": "https://images.example.com",
        "OS_IMAGES": json.dumps([{**IMAGE, "url": f"https://mirror.invalid/x.iso?token={SECRET}"}]),
        "OS_IMAGES_REQUEST_HEADERS": json.dumps({"Authorization": SECRET}),
    }
    ended = check(tmp_path, environ, "--offline")
    assert ended.returncode == 0
    lines = ended.stdout.splitlines()
    assert "environment  ASSISTED_SERVICE_HOST=assisted.invalid" in lines
    assert "             4.19 (9.6 x86_64 full-iso): https://mirror.invalid/x.iso?***" in lines
    assert "environment  OS_IMAGES_REQUEST_HEADERS=Authorization=***" in lines
    assert told_of(ended) == [
        f"image-service: warning: {tmp_path / 'absent'} does not exist; the start will create it",
        "image-service: the configuration is valid",
    ]
    assert SECRET not in ended.stdout + ended.stderr


def test_all_faults_are_printed_and_the_status_is_78(tmp_path: Path) -> None:
    (tmp_path / "images.json").write_text(json.dumps([{**IMAGE, "url": f"ftp://{SECRET}", "version": 9.6}]))
    (tmp_path / "key").write_text("no key")
    environ = {
        "DATA_DIR": str(tmp_path / "absent"),
        "HTTPS_CERT_FILE": str(tmp_path / "key"),
        "HTTPS_KEY_FILE": str(tmp_path / "key"),
        "LISTEN_PORT": "80800",
        "OS_IMAGES": f"@{tmp_path}/images.json",
    }
    ended = check(tmp_path, environ)
    assert (ended.returncode, ended.stdout) == (78, "")
    first, *faults = ended.stderr.splitlines()
    assert first == "image-service: the configuration is not valid:"
    assert [fault.partition(" must")[0] for fault in faults] == [
        "LISTEN_PORT='80800':",
        f"OS_IMAGES=@{tmp_path}/images.json: entry 0: url",
        f"OS_IMAGES=@{tmp_path}/images.json: entry 0: version",
        "ASSISTED_SERVICE_HOST: is not set, but required",
        (
            f"HTTPS_KEY_FILE and HTTPS_CERT_FILE: the key file {tmp_path}/key contains no private key in PEM"
            " format"
        ),
    ]
    assert SECRET not in ended.stderr


def test_origins_are_tried_unless_offline(tmp_path: Path) -> None:
    with running() as origin:
        good, bad = origin.serve("/good.iso", Reply(b"image")), origin.serve("/bad.iso", Reply(status=403))
        images = [{**IMAGE, "url": good}, {**IMAGE, "version": "9.7", "url": f"{bad}?token={SECRET}"}]
        images.append({**IMAGE, "version": "9.8", "url": (tmp_path / "missing.iso").as_uri()})
        environ = {"DATA_DIR": str(tmp_path), "OS_IMAGES": json.dumps(images)}

        offline = check(tmp_path, environ, "--standalone", "--offline")
        assert origin.requests == []
        online = check(tmp_path, environ, "--standalone")
        assert len(origin.requests) == 2
    missing = (
        f"image-service: warning: OS_IMAGES: {tmp_path}/missing.iso does not exist, or uid {os.geteuid()} may"
        " not read it"
    )
    refused = f"image-service: warning: cannot fetch {bad}: answered with status 403"
    for ended, warnings in ((offline, [missing]), (online, [missing, refused])):
        assert ended.returncode == 0
        assert told_of(ended) == [*warnings, "image-service: the configuration is valid"]


def test_database_is_tried_unless_offline(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("ab" * 32)
    (tmp_path / "secret").chmod(0o600)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # and does not listen
        server = f"127.0.0.1:{closed.getsockname()[1]}"
        environ = {
            "DATA_DIR": str(tmp_path),
            "DATABASE_URL": f"postgresql://images:{SECRET}@{server}/images",
            "INSTANCE_SECRET_FILE": str(tmp_path / "secret"),
        }
        for options, is_tried in (([], True), (["--offline"], False)):
            ended = check(tmp_path, environ, "--standalone", *options)
            assert ended.returncode == 0
            assert ("warning: DATABASE_URL: PostgreSQL database images at " in ended.stderr) == is_tried
            assert SECRET not in ended.stdout + ended.stderr


def test_assisted_service_is_tried_unless_offline(tmp_path: Path) -> None:
    """404 is an answer, a closed port is none."""
    with running() as upstream, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # and does not listen
        answering = urlsplit(upstream.url("")).netloc
        silent = f"127.0.0.1:{closed.getsockname()[1]}"
        (tmp_path / "x.iso").touch()
        environ = {
            "DATA_DIR": str(tmp_path),
            "IMAGE_SERVICE_BASE_URL": "https://images.example.com",
            "OS_IMAGES": json.dumps([{**IMAGE, "url": (tmp_path / "x.iso").as_uri()}]),
        }
        for host, options, is_warned in (
            (answering, [], False),
            (silent, [], True),
            (silent, ["--offline"], False),
        ):
            ended = check(tmp_path, {**environ, "ASSISTED_SERVICE_HOST": host}, *options)
            assert ended.returncode == 0
            assert (
                f"check ASSISTED_SERVICE_HOST and that it is running (http://{silent})" in ended.stderr
            ) == is_warned
        assert len(upstream.requests) == 1
        assert "Authorization" not in upstream.requests[0].headers


def test_configuration_of_a_running_service_is_valid(tmp_path: Path) -> None:
    with run_service(tmp_path, [], command=(*SERVE, "--standalone")) as service:
        port = service.url.rpartition(":")[2]
        environ = {"DATA_DIR": str(tmp_path / "data"), "LISTEN_PORT": port}
        ended = check(tmp_path, environ, "--standalone")
        assert service.get("/live").status == 200
    assert ended.returncode == 0


def test_offline_without_check_is_refused() -> None:
    ended = forks.run([*SERVE, "--offline"], cwd=CHECKOUT, timeout=100)
    assert ended.returncode == 2
    assert "--offline needs --check" in ended.stderr
