"""assisted-service answers 404 for a token of another infra-env, and so do we, whatever was served before."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from image_service.server.standalone.sample import unpack_sample
from tests.acceptance.service import SERVE, Service, os_image, run_service
from tests.acceptance.tenants import wait_for
from tests.acceptance.upstream import CONFIG, Reply, Upstream, running
from tests.server.standalone.faults import Call

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from http.server import BaseHTTPRequestHandler

    from tests.acceptance.service import Certificate

pytestmark = pytest.mark.acceptance

VERSION = "9.6"
OWN, FOREIGN = "token-of-this-one", "token-of-another"
RANGE = {"Range": "bytes=0-99"}
IMAGES = (
    f"images/{{}}?version={VERSION}&arch=x86_64&type=full-iso",
    f"images/{{}}?version={VERSION}&arch=x86_64&type=minimal-iso",
    f"images/{{}}/pxe-initrd?version={VERSION}&arch=x86_64",
)
SCHEMES = ("image_token", "api_key", "Authorization")


def guarded(body: bytes, status: int = 200) -> Callable[[BaseHTTPRequestHandler], Reply]:
    """Return a script that knows an infra-env by its own token alone."""

    def answer(handler: BaseHTTPRequestHandler) -> Reply:
        return Reply(body, status) if OWN in f"{handler.path} {handler.headers}" else Reply(status=404)

    return answer


@pytest.fixture(scope="module")
def site(
    certificate: Certificate, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Service, Upstream]]:
    directory = tmp_path_factory.mktemp("tokens")
    iso = directory / "base.iso"
    unpack_sample(directory).rename(iso)
    with (
        running(certificate) as upstream,
        run_service(
            directory, [os_image(iso, VERSION)], command=SERVE, environment=upstream.environment
        ) as service,
    ):
        yield service, upstream


@pytest.mark.parametrize("image", IMAGES, ids=["full-iso", "minimal-iso", "pxe-initrd"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_token_of_another_infra_env_gets_404(site: tuple[Service, Upstream], scheme: str, image: str) -> None:
    service, upstream = site
    infra_env_id = upstream.register()
    upstream.tell(infra_env_id, guarded(CONFIG), Call.IGNITION)
    upstream.tell(infra_env_id, guarded(b'{"openshift_version": "%b"}' % VERSION.encode()), Call.INFRA_ENV)
    upstream.tell(infra_env_id, guarded(b"", 204), Call.RAMDISK)
    path = "/" + image.format(infra_env_id)

    def status(token: str) -> int:
        if scheme == "Authorization":
            return service.get(path, {**RANGE, "Authorization": f"Bearer {token}"}).status
        return service.get(f"{path}&{scheme}={token}", RANGE).status

    assert status(FOREIGN) == 404
    wait_for(lambda: status(OWN) == 206)  # the minimal ISO is derived meanwhile
    assert [status(token) for token in (FOREIGN, OWN, FOREIGN)] == [404, 206, 404]
    assert service.get(path, RANGE).status == 404
