from __future__ import annotations

import pytest

from image_service.common.programs.environment import OBJECT_STORE, environment_of

NEEDED = {
    "PATH": "/bin",
    "HOME": "/nowhere",
    "LC_ALL": "C.UTF-8",
    "PYTHONPATH": "/checkout",
    "SSL_CERT_FILE": "/ca.pem",
    "JOURNAL_STREAM": "8:1",
}
OF_A_STORE = {
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN": "secret",
    "https_proxy": "http://user:secret@proxy",
}
OTHERS = {
    "DATABASE_URL": "postgresql://user:secret@host/",
    "OS_IMAGES_REQUEST_HEADERS": '{"X-Key": "secret"}',
    "GITHUB_TOKEN": "secret",
    "NOTIFY_SOCKET": "/run/systemd/notify",
    "XPATH": "secret",
    "HOMELY": "secret",
}


@pytest.mark.parametrize(
    ("names", "more"),
    [
        ((), {}),
        (OBJECT_STORE, OF_A_STORE),
        (("DATABASE_URL",), {"DATABASE_URL": OTHERS["DATABASE_URL"]}),
    ],
    ids=["no more", "object store", "a name"],
)
def test_child_gets_what_it_needs_and_nothing_else(names: tuple[str, ...], more: dict[str, str]) -> None:
    assert environment_of({**NEEDED, **OF_A_STORE, **OTHERS}, *names) == {**NEEDED, **more}
