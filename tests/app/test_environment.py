from __future__ import annotations

import os

from image_service.server.processes.environment import (
    read_credentials,
    without_credentials,
    write_credentials,
)

CREDENTIALS = {
    "OS_IMAGES": '[{"url": "https://mirror/x?token=secret"}]',
    "RHCOS_VERSIONS": "[]",
    "OS_IMAGES_REQUEST_HEADERS": "x" * 128 * 1024,
    "OS_IMAGES_REQUEST_QUERY_PARAMS": '{"key": "ü\udcff"}',
    "COREOS_STREAMS": "[]",
    "STANDALONE_TOKEN": "secret",
    "https_proxy": "http://user:secret@proxy",
    "HTTP_PROXY": "http://proxy",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN": "secret",
    "EC2_PASSWORD": "secret",
    "TOKEN_OF_ANOTHER_PROGRAM": "secret",
}
OTHERS = {"PATH": "/bin", "LISTEN_PORT": "8080", "HTTPS_KEY_FILE": "/tls.key", "ASSISTED_SERVICE_HOST": "h"}


def test_workers_are_started_without_credentials() -> None:
    assert without_credentials(CREDENTIALS | OTHERS) == OTHERS


def test_workers_read_the_credentials_each_from_the_start() -> None:
    descriptor = write_credentials(CREDENTIALS | OTHERS)
    workers = [os.dup(descriptor) for _ in range(2)]
    os.close(descriptor)
    for worker in workers:
        assert read_credentials(worker) == CREDENTIALS
