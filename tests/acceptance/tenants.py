"""Tenants of assisted-service: each infra-env has an owner, and is told only to its owner's token."""

from __future__ import annotations

import time
import uuid
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import attrs

from tests.acceptance.service import SERVE, Service, os_image, run_service
from tests.acceptance.upstream import CONFIG, Reply, Upstream, running
from tests.core.formats.filesystems.iso_builder import build_live_iso
from tests.server.standalone.faults import Call

if TYPE_CHECKING:
    import http.server
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from tests.acceptance.service import Answer, Certificate

VERSION = "tenants"
RANGE = {"Range": "bytes=150000-159999"}
SERVED = frozenset({200, 206})
TELLING = SERVED | {304, 412, 416}
"""The statuses that tell something about an image."""
_OK, _PARTIAL_CONTENT = 200, 206
_PROBES = 10
_PATIENCE_SECONDS = 60
_POLL_SECONDS = 0.05


@attrs.define
class Tenants:
    """The double of assisted-service with its tenants.

    Args:
        upstream: the double.
        after_seconds: delay of each answer.
        revoked: owners whose token is refused.
    """

    upstream: Upstream
    after_seconds: float = 0.0
    revoked: set[str] = attrs.field(factory=set)

    def register(self, owner: str | None, config: bytes = CONFIG) -> str:
        """Register an infra-env; return its identifier.

        Args:
            owner: whose token it needs; None: none is needed.
            config: its Ignition config.
        """
        infra_env_id = str(uuid.uuid4())
        self.tell(infra_env_id, owner, config)
        return infra_env_id

    def tell(self, infra_env_id: str, owner: str | None, config: bytes = CONFIG) -> None:
        """Answer about an infra-env: its owner and its Ignition config."""
        replies = {
            Call.IGNITION: Reply(config),
            Call.INFRA_ENV: Reply(b'{"openshift_version": "%b"}' % VERSION.encode()),
            Call.RAMDISK: Reply(status=204),
        }
        for call, reply in replies.items():
            self.upstream.tell(infra_env_id, partial(self._answer, owner, reply), call)

    def _answer(self, owner: str | None, reply: Reply, handler: http.server.BaseHTTPRequestHandler) -> Reply:
        asked_by = handler.headers["Authorization"]
        if owner is not None and (owner in self.revoked or asked_by != bearer(owner)["Authorization"]):
            reply = Reply(status=401)
        return attrs.evolve(reply, after_seconds=self.after_seconds)


@attrs.frozen
class Site:
    """The service, its tenants, and requests of them."""

    service: Service
    tenants: Tenants

    def request(
        self, owner: str, infra_env_id: str, method: str = "GET", fields: Mapping[str, str] = RANGE
    ) -> Answer:
        """Send a request of an owner for an image; by default for a range, as a mount does."""
        return self.service.get(iso_of(infra_env_id), {**bearer(owner), **fields}, method)

    def mount(self, owner: str, infra_env_id: str) -> Answer:
        """Read the first range of a mount; on a busy machine, again until it is served in time."""
        answers: list[Answer] = []

        def is_served() -> bool:
            answers.append(self.request(owner, infra_env_id))
            return answers[-1].status == _PARTIAL_CONTENT

        wait_for(is_served)
        return answers[-1]


def iso_of(infra_env_id: str) -> str:
    """Return the path of an infra-env's full ISO."""
    return f"/byid/{infra_env_id}/{VERSION}/x86_64/full.iso"


def bearer(token: str) -> dict[str, str]:
    """Return the header field with a token."""
    return {"Authorization": f"Bearer {token}"}


@contextmanager
def serving_tenants(
    directory: Path, certificate: Certificate, environment: Mapping[str, str]
) -> Iterator[Site]:
    """Run the service and its upstream until the block ends."""
    with running(certificate) as upstream, serving(directory, Tenants(upstream), environment) as site:
        yield site


@contextmanager
def serving(
    directory: Path,
    tenants: Tenants,
    environment: Mapping[str, str],
    more_images: Sequence[Mapping[str, str]] = (),
) -> Iterator[Site]:
    """Run the service until the block ends, with the directory's ``base.iso`` or a small live ISO."""
    iso = directory / "base.iso"
    if not iso.exists():
        iso.write_bytes(build_live_iso())
    variables = {**tenants.upstream.environment, **environment}
    images = [os_image(iso, VERSION), *more_images]
    with run_service(directory, images, command=SERVE, environment=variables) as service:
        # Each connection is of any worker.
        wait_for(lambda: all(service.get("/health").status == _OK for _ in range(_PROBES)))
        yield Site(service, tenants)


def wait_for(condition: Callable[[], bool], patience_seconds: float = _PATIENCE_SECONDS) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + patience_seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(_POLL_SECONDS)
