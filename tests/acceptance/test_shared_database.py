"""Processes that share a PostgreSQL database: it is away, hangs, comes back; and their secret."""

from __future__ import annotations

import json
import os
import secrets
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import attrs
import pytest

from tests import forks
from tests.acceptance import standstills
from tests.acceptance.service import CHECKOUT, SERVE, os_image, run_service
from tests.acceptance.tenants import VERSION, Site, Tenants, bearer, iso_of, serving, wait_for
from tests.acceptance.upstream import running
from tests.core.formats.filesystems.iso_builder import build_live_iso
from tests.ports import free_port
from tests.replicas.tcp_proxy import TcpProxy, running_proxy
from tests.variants import soaked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from tests.acceptance.service import Answer, Certificate
    from tests.postgres import PostgresServer

pytestmark = pytest.mark.acceptance

OWNER, OTHER_OWNER = "owner", "other owner"
CHANGED = b'{"ignition": {"version": "3.2.0"}, "passwd": {"users": [{"name": "core"}]}}'
FIRST_BYTE_SECONDS = 3.0
EXIT_SECONDS = 100


@attrs.frozen
class Database:
    """A database behind a proxy, and the ways in which it is away.

    Args:
        url: of the database, by the proxy.
    """

    server: PostgresServer
    proxy: TcpProxy
    url: str

    def away(self, fault: str) -> AbstractContextManager[None]:
        """Have the database away until the block ends."""
        faults: dict[str, Callable[[], AbstractContextManager[None]]] = {
            "stopped": self._stopped,
            "hangs": self.server.hanging,
            "cut": self._cut,
            "silent": self._silent,
        }
        return faults[fault]()

    @contextmanager
    def _stopped(self) -> Iterator[None]:
        self.server.stop("immediate")
        try:
            yield
        finally:
            self.server.start()

    @contextmanager
    def _cut(self) -> Iterator[None]:
        self.proxy.cut()
        try:
            yield
        finally:
            self.proxy.mend()

    @contextmanager
    def _silent(self) -> Iterator[None]:
        self.proxy.hang()
        try:
            yield
        finally:
            self.proxy.mend()


@pytest.fixture
def database(postgres: PostgresServer) -> Iterator[Database]:
    url = postgres.create_database()
    with running_proxy("127.0.0.1", ("127.0.0.1", postgres.port)) as proxy:
        yield Database(postgres, proxy, url.replace(f":{postgres.port}/", f":{proxy.port}/"))


@pytest.fixture
def tenants(certificate: Certificate) -> Iterator[Tenants]:
    with running(certificate) as upstream:
        yield Tenants(upstream)


def environment_of(url: str, directory: Path, *instance_secrets: str, **more: str) -> dict[str, str]:
    """Return the variables of a replica; its secrets are written to a file."""
    path = directory / f"{secrets.token_hex(4)}.secret"
    path.write_text("\n".join(instance_secrets or [secrets.token_hex(32)]) + "\n")
    path.chmod(0o600)
    return {
        "DATABASE_URL": url,
        "INSTANCE_SECRET_FILE": str(path),
        "SNAPSHOT_TTL": "1",
        "MOUNT_WINDOW": "3600",  # no mount is over because the machine is slow
        "LOG_RANGES": "each",
        **more,
    }


def timed(site: Site, infra_env: str, owner: str = OWNER, method: str = "GET") -> Answer:
    """Request a range, as a mount does, or the whole; the answer begins in time, whatever it is."""

    def ask() -> Answer:
        if method == "GET":
            return site.request(owner, infra_env)
        return site.service.get(iso_of(infra_env), bearer(owner), method)

    answer, seconds = standstills.timed(ask)
    assert seconds < FIRST_BYTE_SECONDS + standstills.ALLOWED_SECONDS
    return answer


def mount_from_each_worker(site: Site, infra_env: str, workers: int) -> str:
    """Read an image until each worker has served it, and knows it; return its ETag."""
    etags = set()

    def have_served() -> bool:
        etags.add(site.mount(OWNER, infra_env).headers["ETag"])
        lines, _, _ = site.service.stdout.rpartition(b"\n")
        logged = [json.loads(line) for line in lines.splitlines()]
        wanted = (infra_env, 206)
        served = {
            line.get("worker", 0) for line in logged if (line.get("infra_env"), line.get("status")) == wanted
        }
        return len(served) == workers

    wait_for(have_served)
    (etag,) = etags
    return etag


def exit_of(directory: Path, tenants: Tenants, environment: Mapping[str, str]) -> tuple[int, str]:
    """Run the service until it ends by itself; return its exit status and its output."""
    iso = directory / "base.iso"
    iso.write_bytes(build_live_iso())
    variables = {
        "DATA_DIR": str(directory / "data"),
        "LISTEN_PORT": str(free_port()),
        "OS_IMAGES": json.dumps([os_image(iso, VERSION)]),
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(CHECKOUT),
        **tenants.upstream.environment,
        **environment,
    }
    ended = forks.run(SERVE, env=variables, cwd=directory, timeout=EXIT_SECONDS)
    return ended.returncode, ended.stdout + ended.stderr


def test_replicas_serve_one_image_of_one_answer(tenants: Tenants, database: Database, tmp_path: Path) -> None:
    environment = environment_of(database.url, tmp_path, SNAPSHOT_TTL="3600")
    infra_env = tenants.register(OWNER)
    with ExitStack() as stack:
        answers = []
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
            site = stack.enter_context(serving(tmp_path / name, tenants, environment))
            answers.append(site.mount(OWNER, infra_env))
        assert len({(answer.headers["ETag"], answer.body) for answer in answers}) == 1
        assert tenants.upstream.count(infra_env) == 1


@pytest.mark.parametrize(
    ("fault", "workers"), [("stopped", 1), soaked("hangs", 2), soaked("cut", 1), soaked("silent", 1)], ids=str
)
def test_known_images_are_served_while_the_database_is_away(
    tenants: Tenants, database: Database, tmp_path: Path, fault: str, workers: int
) -> None:
    environment = environment_of(database.url, tmp_path, WORKERS=str(workers))
    known, changed = tenants.register(OWNER), tenants.register(OWNER)
    with serving(tmp_path, tenants, environment) as site:
        etags = {
            infra_env: mount_from_each_worker(site, infra_env, workers) for infra_env in (known, changed)
        }
        with database.away(fault):
            tenants.tell(changed, OWNER, CHANGED)
            refused = timed(site, tenants.register(OWNER))
            assert (refused.status, "Retry-After" in refused.headers) == (503, True)
            wait_for(lambda: b"database: unreachable" in site.service.get("/health").body)
            assert site.service.get("/health").status == 200
            until = time.monotonic() + 5  # several times the TTL
            while time.monotonic() < until:
                for infra_env, etag in etags.items():
                    answer = timed(site, infra_env)
                    assert (answer.status, answer.headers.get("ETag")) == (206, etag), answer.body
                assert timed(site, known, method="HEAD").headers["ETag"] == etags[known]
                assert timed(site, changed, method="HEAD").headers["ETag"] == etags[changed]
        wait_for(lambda: site.service.get("/health").body == b"ok\n")
        wait_for(lambda: site.request(OWNER, tenants.register(OWNER)).status == 206)
        wait_for(lambda: timed(site, changed, method="HEAD").headers["ETag"] != etags[changed])
        assert site.request(OWNER, changed).headers["ETag"] == etags[changed], "the mount goes on"


@pytest.mark.parametrize("fault", [soaked("stopped"), "silent"])
def test_process_starts_while_the_database_is_away(
    tenants: Tenants, database: Database, tmp_path: Path, fault: str
) -> None:
    iso = tmp_path / "base.iso"
    iso.write_bytes(build_live_iso())
    environment = {**tenants.upstream.environment, **environment_of(database.url, tmp_path)}
    images = [os_image(iso, VERSION)]
    infra_env = tenants.register(OWNER)
    with ExitStack() as stack:
        with database.away(fault):
            service = stack.enter_context(
                run_service(tmp_path, images, command=SERVE, environment=environment, probe="/live")
            )
            site = Site(service, tenants)
            health = service.get("/health")
            assert (health.status, "database" in health.body.decode()) == (503, True)
            assert timed(site, infra_env).status == 503
            assert tenants.upstream.count(infra_env) == 0
        wait_for(lambda: service.get("/health").status == 200)
        site.mount(OWNER, infra_env)


def test_process_ends_while_the_database_hangs(tenants: Tenants, database: Database, tmp_path: Path) -> None:
    environment = environment_of(database.url, tmp_path)
    with ExitStack() as stack, serving(tmp_path, tenants, environment) as site:
        site.mount(OWNER, tenants.register(OWNER))
        stack.enter_context(database.away("hangs"))
        assert timed(site, tenants.register(OWNER)).status == 503
        site.service.process.terminate()
        assert site.service.process.wait(EXIT_SECONDS) == 0


def test_secret_is_rotated_and_a_wrong_one_ends_the_start(
    tenants: Tenants, database: Database, tmp_path: Path
) -> None:
    old, new, wrong = (secrets.token_hex(32) for _ in range(3))
    infra_env = tenants.register(OWNER)
    etags = set()
    for instance_secrets in ((old,), (new, old), (new,)):
        environment = environment_of(database.url, tmp_path, *instance_secrets, SNAPSHOT_TTL="3600")
        with serving(tmp_path, tenants, environment) as site:
            etags.add(site.mount(OWNER, infra_env).headers["ETag"])
    assert len(etags) == tenants.upstream.count(infra_env) == 1
    for instance_secrets in ((wrong,), (old, wrong)):
        environment = environment_of(database.url, tmp_path, *instance_secrets)
        status, output = exit_of(tmp_path, tenants, environment)
        assert (status, "INSTANCE_SECRET_FILE" in output) == (os.EX_CONFIG, True)
        assert not any(secret in output for secret in (old, new, wrong))


@pytest.mark.soak
@pytest.mark.parametrize("workers", [1, 2])
def test_wrong_secret_ends_the_process_when_the_database_comes_back(
    tenants: Tenants, database: Database, tmp_path: Path, workers: int
) -> None:
    with serving(tmp_path, tenants, environment_of(database.url, tmp_path)):
        pass
    environment = {
        **tenants.upstream.environment,
        **environment_of(database.url, tmp_path, WORKERS=str(workers)),
    }
    images = [os_image(tmp_path / "base.iso", VERSION)]
    database.proxy.cut()
    with run_service(
        tmp_path, images, command=SERVE, environment=environment, probe="/live", ends_with=os.EX_CONFIG
    ) as service:
        database.proxy.mend()
        service.wait_for("(INSTANCE_SECRET_FILE)")
        service.process.wait(EXIT_SECONDS)


def test_url_without_secret_is_refused(tenants: Tenants, tmp_path: Path) -> None:
    url = "postgresql+psycopg://tester:top-secret@127.0.0.1/images"
    status, output = exit_of(tmp_path, tenants, {"DATABASE_URL": url})
    assert (status, "INSTANCE_SECRET_FILE must be set" in output) == (os.EX_CONFIG, True)
    assert "top-secret" not in output
