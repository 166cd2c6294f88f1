"""Odd statuses of assisted-service about mounts: a refusal serves nothing, a failure has its grace."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import attrs
import pytest

from tests.acceptance.tenants import RANGE, SERVED, TELLING, Site, serving_tenants, wait_for
from tests.acceptance.upstream import CONFIG, Reply
from tests.variants import ONE_OR_TWO

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tests.acceptance.service import Answer, Certificate

pytestmark = pytest.mark.acceptance

REFUSALS = (301, 302, 303, 307, 308, 400, 401, 402, 403, 404, 405, 406, 407, 409, 410, 418, 422, 451)
FAILURES = (408, 425, 429, 500, 501, 502, 503, 504)
TTL_SECONDS, GRACE_SECONDS = 1, 3
LONG_GRACE_SECONDS = 120
REVALIDATION_SECONDS = 20
"""More than a busy machine takes, and much less than the long grace."""
POLL_SECONDS = 0.1
ROUNDS = 3
OTHER_CONFIG = CONFIG[:-1] + b', "passwd": {"users": [{"name": "core"}]}}'


@attrs.frozen
class Mount:
    """A mount of an infra-env about which assisted-service changes its answers.

    Args:
        status: what it answers meanwhile.
        before: a range that was read before.
    """

    site: Site
    status: int
    infra_env_id: str
    before: Answer

    @property
    def etag(self) -> str:
        """The image's ETag."""
        return self.before.headers["ETag"]

    def get(self, fields: Mapping[str, str] = RANGE, method: str = "GET") -> Answer:
        """Send a request for the image."""
        return self.site.request("anybody", self.infra_env_id, method, fields)

    def goes_on(self) -> bool:
        """Return True if the mount is served, with the same bytes; False if it is refused."""
        answer = self.get()
        same = (answer.headers.get("ETag"), answer.body) == (self.etag, self.before.body)
        assert answer.status not in SERVED or same
        return answer.status in SERVED

    def statuses(self) -> set[int]:
        """Send each kind of request: of the mount, of new readers, HEAD, with preconditions."""
        kinds = (
            RANGE,
            RANGE | {"If-Range": self.etag},
            {"Range": "bytes=0-99"},
            {"Range": "bytes=99999999999-"},
            {"If-None-Match": self.etag},
            {"If-Match": '"other"'},
        )
        nothing: dict[str, str] = {}
        return {self.get().status, self.get(nothing).status, self.get(nothing, "HEAD").status} | {
            self.get(fields).status for fields in kinds
        }


@pytest.fixture(scope="module", params=ONE_OR_TWO)
def workers(request: pytest.FixtureRequest) -> int:
    count: int = request.param
    return count


@contextmanager
def serving(directory: Path, certificate: Certificate, workers: int, grace_seconds: int) -> Iterator[Site]:
    environment = {
        "SNAPSHOT_TTL": str(TTL_SECONDS),
        "SNAPSHOT_GRACE": str(grace_seconds),
        "WORKERS": str(workers),
    }
    with serving_tenants(directory, certificate, environment) as served:
        yield served


@pytest.fixture(scope="module")
def site(workers: int, certificate: Certificate, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Run a service that would serve all for long if it took a refusal for a failure."""
    with serving(tmp_path_factory.mktemp("odd"), certificate, workers, LONG_GRACE_SECONDS) as served:
        yield served


def mount_all(site: Site, statuses: tuple[int, ...]) -> list[Mount]:
    """Mount an infra-env for each status, and let assisted-service answer with it from now on."""
    mounts = []
    for status in statuses:
        infra_env_id = site.tenants.register(None)
        mounts.append(Mount(site, status, infra_env_id, site.mount("anybody", infra_env_id)))
    for mount in mounts:
        reply = Reply(b"{}", mount.status, headers={"Location": "/login"})
        site.tenants.upstream.tell(mount.infra_env_id, reply)
    return mounts


def check_taken_back(mounts: list[Mount]) -> None:
    """Let assisted-service answer as before, and check that the same bytes go on."""
    for mount in mounts:
        mount.site.tenants.tell(mount.infra_env_id, None)
    wait_for(lambda: all(mount.goes_on() for mount in mounts))
    assert {frozenset(mount.statuses()) for mount in mounts} == {frozenset({200, 206, 304, 412, 416})}


def test_refusal_serves_nothing_until_it_is_taken_back(site: Site) -> None:
    mounts = mount_all(site, REFUSALS)
    told_at = time.monotonic()
    while served := [mount.status for mount in mounts if mount.goes_on() or mount.statuses() & TELLING]:
        assert time.monotonic() < told_at + TTL_SECONDS + REVALIDATION_SECONDS, f"{served} still serve"
        time.sleep(POLL_SECONDS)
    for _ in range(ROUNDS):
        assert {mount.status: told for mount in mounts if (told := mount.statuses() & TELLING)} == {}
        time.sleep(POLL_SECONDS)
    check_taken_back(mounts)


@pytest.mark.soak
def test_failure_is_bridged_for_the_grace_and_no_longer(
    workers: int, certificate: Certificate, tmp_path: Path
) -> None:
    with serving(tmp_path, certificate, workers, GRACE_SECONDS) as site:
        mounts = mount_all(site, FAILURES)
        told_at = time.monotonic()
        while True:
            ended = [mount.status for mount in mounts if not mount.goes_on()]
            if time.monotonic() > told_at + GRACE_SECONDS:
                break
            assert ended == []
            time.sleep(POLL_SECONDS)
        # In one worker for longer than in the other, maybe.
        wait_for(lambda: not any(mount.statuses() & TELLING for mount in mounts))
        check_taken_back(mounts)


def test_refusal_followed_by_another_image_serves_it_to_who_starts_over(site: Site) -> None:
    (mount,) = mount_all(site, (401,))
    wait_for(lambda: mount.statuses() == {401})  # in all workers
    site.tenants.tell(mount.infra_env_id, None, OTHER_CONFIG)
    newest = set()

    def starts_over() -> bool:
        assert mount.get().status not in TELLING
        head = mount.get({"Range": "bytes=0-99"})
        newest.add(head.headers.get("ETag"))
        return head.status == 206

    wait_for(starts_over)
    newest.discard(None)
    assert len(newest) == 1
    assert newest != {mount.etag}
    assert {mount.get().headers["ETag"]} == newest
