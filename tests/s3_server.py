"""A real S3 server of a test's own: versitygw, whose objects are files of a directory."""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import attrs
import boto3

from tests.acceptance.clients import needs_client
from tests.ports import free_port, wait_for_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

BUCKET = "images"
ACCESS_KEY = "AKIAORIGINSOFTESTS"
SECRET_KEY = "secret-key-of-origins-of-tests"
REGION = "us-east-1"
USER_KEY = "AKIAUSEROFTESTS"
USER_SECRET = "secret-key-of-a-user-of-tests"
PREFIX = "mine"
"""Of the keys that a policy of `S3User` is about."""
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


@attrs.frozen
class S3User:
    """A user of a server with users, who may do what its policy says, and nothing at first."""

    server: S3Server

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables with which botocore finds the server as this user."""
        return {
            **self.server.environment,
            "AWS_ACCESS_KEY_ID": USER_KEY,
            "AWS_SECRET_ACCESS_KEY": USER_SECRET,
        }

    def permit(self, *actions: str, on_bucket: Sequence[str] = ()) -> None:
        """Replace its policy.

        Args:
            actions: on objects below `PREFIX`, such as ``PutObject``.
            on_bucket: on the bucket, such as ``ListBucketMultipartUploads``.
        """
        resource = f"arn:aws:s3:::{BUCKET}"
        statements = [
            {
                "Effect": "Allow",
                "Principal": {"AWS": [USER_KEY]},
                "Action": [f"s3:{action}" for action in each],
                "Resource": [where],
            }
            for each, where in ((actions, f"{resource}/{PREFIX}/*"), (on_bucket, resource))
            if each
        ]
        client = boto3.client(
            "s3",
            endpoint_url=self.server.environment["AWS_ENDPOINT_URL"],
            region_name=REGION,
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
        )
        with closing(client):
            if statements:
                policy = json.dumps({"Version": "2012-10-17", "Statement": statements})
                client.put_bucket_policy(Bucket=BUCKET, Policy=policy)
            else:
                client.delete_bucket_policy(Bucket=BUCKET)


@contextmanager
def running_s3_server_with_user(directory: Path) -> Iterator[S3User]:
    """Run a server that has users and policies, and yield a user without rights."""
    users = directory / "users"
    users.mkdir(parents=True)
    with running_s3_server(directory / "objects", options=["--iam-dir", str(users)]) as server:
        url = server.environment["AWS_ENDPOINT_URL"]
        admin = ("admin", "--access", ACCESS_KEY, "--secret", SECRET_KEY, "--endpoint-url", url)
        user = ("create-user", "--access", USER_KEY, "--secret", USER_SECRET, "--role", "user")
        subprocess.run(
            [needs_client("versitygw"), *admin, *user], check=True, stdout=subprocess.DEVNULL, timeout=60
        )
        yield S3User(server)


@contextmanager
def running_s3_server(
    directory: Path, port: int | None = None, options: Sequence[str] = ()
) -> Iterator[S3Server]:
    """Run a server until the block ends.

    Args:
        directory: holds the buckets; its file system needs extended attributes.
        port: None: any.
        options: more of the command line.
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
        *options,
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
