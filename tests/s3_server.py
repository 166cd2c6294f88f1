"""A real S3 server of a test's own: versitygw, whose objects are files of a directory."""

from __future__ import annotations

import os
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

import attrs

from tests.acceptance.clients import needs_client
from tests.ports import free_port, wait_for_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

BUCKET = "images"
ACCESS_KEY = "AKIAORIGINSOFTESTS"
SECRET_KEY = "secret-key-of-origins-of-tests"
REGION = "us-east-1"
_ETAG = "user.etag"


@attrs.frozen
class S3Server:
    """A running server with one bucket.

    Args:
        process: of the server.
        port: on 127.0.0.1.
        directory: of the bucket.
    """

    process: subprocess.Popen[bytes]
    port: int
    directory: Path

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables with which botocore finds the server and may read the bucket."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def publish(self, key: str, etag: str = "1") -> str:
        """Give the file at a key an ETag, so that it can be pinned; return its URL.

        Args:
            key: path of a file below `directory`, written there directly.
            etag: without quotes; another one says that the object was overwritten.
        """
        os.setxattr(self.directory / key, _ETAG, f'"{etag}"'.encode())
        return f"s3://{BUCKET}/{key}"


@contextmanager
def running_s3_server(directory: Path, port: int | None = None) -> Iterator[S3Server]:
    """Run a server until the block ends.

    Args:
        directory: holds the buckets; its file system needs extended attributes.
        port: None: any.
    """
    bucket = directory / BUCKET
    bucket.mkdir(parents=True, exist_ok=True)
    port = port or free_port()
    address = f"127.0.0.1:{port}"
    command = [
        needs_client("versitygw"),
        "--port",
        address,
        "--keep-alive",
        "--quiet",
        "posix",
        str(directory),
    ]
    keys = {"ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY}
    with subprocess.Popen(
        command, env={**os.environ, **keys}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            wait_for_port(port, process)
            yield S3Server(process, port, bucket)
        finally:
            process.kill()
