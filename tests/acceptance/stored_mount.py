"""A mount in a store that an earlier release wrote: the archive, and the command that makes it.

usage: python -m tests.acceptance.stored_mount CHECKOUT

runs the service of another checkout with the archive's clock, mounts an image, changes its infra-env, and
writes ``data/stored_mount.tar.xz``: ``DATA_DIR`` as that service left it, and ``expected.json``.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import subprocess
import sys
import tarfile
import time
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import attrs

from tests.acceptance.service import INFRA_ENVS, Service, run_service
from tests.archives import unpack

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ARCHIVE = Path(__file__).with_name("data") / "stored_mount.tar.xz"
EPOCH_SECONDS = 1_795_000_000  # 2026-11-18T12:26:40Z
READER, OTHER_READER = "127.0.0.1", "127.0.0.2"
SAMPLE = "5a3b1e00-0000-4000-8000-000000000001"
RANGE_BYTES = 65_536
MOUNT_WINDOW_SECONDS = 600


@attrs.frozen
class Image:
    """The ETag and SHA-256 of an image, as a client read it."""

    etag: str
    sha256: str


@contextmanager
def run_with_clock(
    directory: Path, epoch_seconds: float, environment: Mapping[str, str] | None = None
) -> Iterator[Service]:
    """Run the service with a wall clock that shows `epoch_seconds` at its start."""
    code = f"import sys, time; real = time.time; offset = {epoch_seconds} - real()\n"
    code += "time.time = lambda: real() + offset\n"
    code += "from image_service.cli import main; sys.exit(main())"
    command = (sys.executable, "-c", code, "serve", "--standalone")
    variables = {"SNAPSHOT_TTL": "1", "MOUNT_WINDOW": str(MOUNT_WINDOW_SECONDS), **(environment or {})}
    with run_service(directory, [], command=command, environment=variables) as service:
        yield service


def path_of_image(service: Service) -> str:
    """Return the path of the sample's full ISO."""
    found: str = service.ask_api(f"{INFRA_ENVS}/{SAMPLE}").json()["download_url"]
    return "/" + found.split("/", 3)[3]


def read_image(service: Service, path: str, address: str) -> Image:
    """Read an image from `address` in plain ranges, as a BMC does."""
    connection = http.client.HTTPConnection(
        service.url.removeprefix("http://"), timeout=100, source_address=(address, 0)
    )
    content, total, etags = b"", 1, set()
    with closing(connection):
        while len(content) < total:
            fields = {"Range": f"bytes={len(content)}-{len(content) + RANGE_BYTES - 1}"}
            connection.request("GET", path, headers=fields)
            response = connection.getresponse()
            assert response.status == http.client.PARTIAL_CONTENT, response.status
            total = int(response.headers["Content-Range"].partition("/")[2])
            etags.add(response.headers["ETag"])
            content += response.read()
    (etag,) = etags
    return Image(etag, hashlib.sha256(content).hexdigest())


def change_infra_env(service: Service) -> None:
    """Replace the Ignition config of the sample's infra-env."""
    override = {"ignition": {"version": "3.2.0"}, "passwd": {"users": [{"name": "core"}]}}
    connection = http.client.HTTPConnection(service.api_url.removeprefix("http://"), timeout=100)
    with closing(connection):
        body = json.dumps({"ignition_config_override": json.dumps(override)})
        connection.request("PATCH", f"{INFRA_ENVS}/{SAMPLE}", body, {"Content-Type": "application/json"})
        assert connection.getresponse().status == http.client.CREATED


def make_archive(checkout: Path) -> None:
    """Write the archive with the service of `checkout`."""
    with TemporaryDirectory() as name:
        directory = Path(name)
        with run_with_clock(directory, EPOCH_SECONDS, {"PYTHONPATH": str(checkout)}) as service:
            path = path_of_image(service)
            mounted = read_image(service, path, READER)
            change_infra_env(service)
            newest = mounted
            while newest == mounted:  # until the change is known
                time.sleep(1)
                newest = read_image(service, path, OTHER_READER)
            assert read_image(service, path, READER) == mounted
        commit = subprocess.run(
            ["git", "-C", checkout, "rev-parse", "HEAD"], check=True, capture_output=True, text=True
        )
        expected = {
            "commit": commit.stdout.strip(),
            "path": path,
            "mounted": attrs.asdict(mounted),
            "newest": attrs.asdict(newest),
        }
        (directory / "data" / "expected.json").write_text(json.dumps(expected, indent=1))
        with tarfile.open(ARCHIVE, "w:xz", preset=9) as archive:
            archive.add(directory / "data", "data")


def unpack_archive(directory: Path) -> tuple[str, Image, Image]:
    """Unpack ``DATA_DIR``; return the image's path, the mounted image and the newest one."""
    unpack(ARCHIVE, directory)
    expected = json.loads((directory / "data" / "expected.json").read_text())
    (directory / "data" / "expected.json").unlink()
    return expected["path"], Image(**expected["mounted"]), Image(**expected["newest"])


if __name__ == "__main__":
    make_archive(Path(sys.argv[1]))
