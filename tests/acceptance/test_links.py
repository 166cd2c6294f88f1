"""Short links of a running service: all workers and replicas open them; no file or log contains one."""

from __future__ import annotations

import http.client
import json
import re
import uuid
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import attrs
import pytest
import sqlalchemy as sa

from image_service.server.snapshots.replicas.database import open_replica_database
from image_service.server.snapshots.storage.sql_statements import LINKS
from tests import forks
from tests.acceptance.clients import run_client
from tests.acceptance.service import CHECKOUT, SERVE, Answer, fetch, os_image, run_service
from tests.acceptance.tenants import wait_for
from tests.acceptance.upstream import CONFIG, Reply, Upstream, running
from tests.core.formats.filesystems.iso_builder import build_live_iso
from tests.ports import free_port
from tests.server.standalone.faults import Call

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator, Mapping
    from http.server import BaseHTTPRequestHandler

    from tests.acceptance.service import Certificate, Service
    from tests.postgres import PostgresServer

pytestmark = pytest.mark.acceptance

VERSION = "linked"
KEY = "the-api-key-of-the-tests-of-links"
SECRET = "5e" * 32
TTL_SECONDS = 1
TWO_WORKERS = {"WORKERS": "2"}
MAX_GUESSES = 3000
_TIMEOUT_SECONDS = 100


@attrs.define
class Owner:
    """An infra-env whose owner's key may be revoked."""

    upstream: Upstream
    infra_env: str = attrs.field(factory=lambda: str(uuid.uuid4()))
    is_revoked: bool = False

    def __attrs_post_init__(self) -> None:
        replies = {Call.IGNITION: Reply(CONFIG), Call.RAMDISK: Reply(status=204)}
        for call in Call:
            reply = replies.get(call, Reply(b"{}"))
            self.upstream.tell(self.infra_env, partial(self._answer, reply), call)

    def _answer(self, reply: Reply, handler: BaseHTTPRequestHandler) -> Reply:
        is_allowed = f"api_key={KEY}" in handler.path and not self.is_revoked
        return reply if is_allowed else Reply(status=401)

    @property
    def path(self) -> str:
        """Of its full ISO, with the key."""
        return f"/byid/{self.infra_env}/{VERSION}/x86_64/full.iso?api_key={KEY}"


@attrs.frozen
class Linking:
    """A service with an administrative listener."""

    service: Service
    admin_url: str

    def make(self, url: str, *options: str) -> str:
        """Return a new link, made on the command line."""
        done = self.run_link(*options, "-", standard_input=url)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def run_link(self, *arguments: str, standard_input: str = "") -> subprocess.CompletedProcess[str]:
        """Run the command."""
        command = [*SERVE[:-1], "link", "--admin", self.admin_url, *arguments]
        return forks.run(command, text=standard_input, cwd=CHECKOUT, timeout=_TIMEOUT_SECONDS)

    def list(self) -> dict[str, bool]:
        """Return the ids of the links that can be used, and whether the secret opens their descriptions."""
        document = json.loads(fetch(f"{self.admin_url}/api/v1/links").body)
        return {link["id"]: link["readable"] for link in document["links"]}

    def revoke(self, link_id: str) -> int:
        """Revoke a link, and return the status."""
        return fetch(f"{self.admin_url}/api/v1/links/{link_id}", "DELETE").status


@contextmanager
def linking(
    directory: Path, owner: Owner, environment: Mapping[str, str], port: int | None = None
) -> Iterator[Linking]:
    directory.mkdir(exist_ok=True)
    iso = directory / "base.iso"
    if not iso.exists():
        iso.write_bytes(build_live_iso())
    listen = f"127.0.0.1:{free_port()}"
    variables = {
        **owner.upstream.environment,
        "ADMIN_LISTEN": listen,
        "SNAPSHOT_TTL": str(TTL_SECONDS),
        "LOGLEVEL": "debug",
        "LOG_RANGES": "each",
        **environment,
    }
    images = [os_image(iso, VERSION)]
    with run_service(directory, images, command=SERVE, environment=variables, port=port) as service:
        wait_for(lambda: all(service.get("/health").status == 200 for _ in range(10)))
        yield Linking(service, f"http://{listen}")


@pytest.fixture
def owner(certificate: Certificate) -> Iterator[Owner]:
    with running(certificate) as upstream:
        yield Owner(upstream)


def code_of(url: str) -> str:
    return url.rpartition("/")[2].partition(".")[0]


def get(url: str, method: str = "GET", **fields: str) -> Answer:
    """Send a request on a connection of its own, which any worker accepts; again while a busy one refuses."""
    answers: list[Answer] = []

    def is_answered() -> bool:
        answers.append(fetch(url, method, headers=fields))
        return answers[-1].status not in {503, 504}

    wait_for(is_answered)
    return answers[-1]


def statuses(url: str) -> set[int]:
    return {get(url).status for _ in range(12)}


def altered(url: str) -> str:
    code = code_of(url)
    return url.replace(code, code[:-1] + ("a" if code[-1] != "a" else "b"))


def guess(url: str, count: int) -> list[int]:
    """Request wrong codes on one connection."""
    split = urlsplit(url)
    found = []
    with closing(http.client.HTTPConnection(split.netloc, timeout=_TIMEOUT_SECONDS)) as connection:
        for number in range(count):
            connection.request("GET", f"/s/{number:016}.iso")
            with connection.getresponse() as response:
                response.read()
                found.append(response.status)
    return found


def assert_nothing_is_kept(directory: Path, *secrets: str) -> None:
    """Search the output and all files of a service."""
    for path in filter(Path.is_file, directory.rglob("*")):
        content = path.read_bytes()
        assert not [secret for secret in secrets if secret.encode() in content], path


def assert_refuses_guesses(link: str, count: int) -> None:
    found = guess(link, count)
    refused_from = found.index(429)
    assert refused_from <= MAX_GUESSES
    assert set(found[:refused_from]) == {404}
    assert set(found[refused_from:]) <= {429, 404}  # one more each half a minute
    assert found.count(404) < MAX_GUESSES / 10
    options = ("--silent", "--interface", "127.0.0.2", "--output", "/dev/null", "--write-out", "%{http_code}")
    assert run_client("curl", *options, link) == b"200"


def test_links_in_all_workers_until_their_end(tmp_path: Path, owner: Owner) -> None:
    directory, port = tmp_path / "service", free_port()
    with linking(directory, owner, TWO_WORKERS, port) as site:
        url = site.service.url + owner.path
        link = site.make(url, "--label", "rack 7")
        assert re.fullmatch(r"http://localhost:[0-9]+/s/[a-z2-7]{16}\.iso", link)
        link = link.replace("localhost", "127.0.0.1")
        whole, linked = get(url), get(link)
        assert (linked.status, linked.body) == (200, whole.body)
        assert linked.headers["ETag"] == whole.headers["ETag"]
        head = get(link, "HEAD")
        assert (head.status, head.headers["Content-Length"]) == (200, str(len(whole.body)))
        assert get(link, Range="bytes=1000-1999").body == whole.body[1000:2000]
        assert get(f"{link}.sha256").body == get(url.replace("full.iso", "full.iso.sha256")).body
        assert statuses(link) == {200}
        assert statuses(altered(link)) == {404}
        copy = tmp_path / "copy"
        run_client("qemu-img", "convert", "-f", "raw", "-O", "raw", link, copy)
        assert copy.read_bytes()[: len(whole.body)] == whole.body
        assert run_client("curl", "--silent", "--range", "7-", link) == whole.body[7:]
        owner.is_revoked = True
        wait_for(lambda: statuses(link) == {401})
        owner.is_revoked = False
        wait_for(lambda: statuses(link) == {200})
        for arguments, reason in (
            (["http://images.example.com/x.iso"], "url is not of this service"),
            (["--expires-in", "99999999", url], "expires_in must be a whole number"),
        ):
            done = site.run_link(*arguments)
            assert (done.returncode, done.stdout) == (1, "")
            assert reason in done.stderr
    with linking(directory, owner, TWO_WORKERS, port) as site:
        assert get(link).body == whole.body
        (link_id,) = site.list()
        check_changed_rows(site, site, url, f"sqlite:///{directory}/data/snapshots.sqlite")
        brief = site.make(url, "--expires-in", "1")
        assert site.revoke(link_id) == 204
        assert statuses(link) == {410}
        assert site.revoke(link_id) == 404
        wait_for(lambda: statuses(brief) == {410})
        assert_refuses_guesses(site.make(url).replace("localhost", "127.0.0.1"), 500)
    assert_nothing_is_kept(directory, code_of(link), code_of(brief), KEY)


@pytest.mark.soak
def test_ten_thousand_guesses_are_refused(tmp_path: Path, owner: Owner) -> None:
    with linking(tmp_path, owner, TWO_WORKERS) as site:
        link = site.make(site.service.url + owner.path)
        assert_refuses_guesses(link.replace("localhost", "127.0.0.1"), 10_000)


def is_served(link: str) -> bool:
    return get(link).status == 200


def has_ended(link: str) -> bool:
    return get(link).status == 410


def write(database: str, link_id: str, **values: object) -> None:
    """Change the row of a link, as a writer of the database can."""
    engine = sa.create_engine(database)
    with engine.begin() as connection:
        connection.execute(sa.update(LINKS).where(LINKS.c.id == link_id).values(values))
    engine.dispose()


def check_changed_rows(first: Linking, second: Linking, url: str, database: str) -> None:
    """Damage the description of one link, and prolong another: neither hides others or lasts longer."""
    before = second.list()
    damaged, prolonged = (
        json.loads(first.make(url, "--json", "--expires-in", seconds)) for seconds in ("600", "2")
    )
    write(database, damaged["id"], description=b"damaged")
    write(database, prolonged["id"], expires_at=4e9)
    assert second.list() == {**before, damaged["id"]: False, prolonged["id"]: True}
    for site in (first, second):
        place = urlsplit(site.service.url)
        there = urlsplit(prolonged["url"])._replace(netloc=place.netloc).geturl()
        wait_for(partial(has_ended, there))
    assert second.revoke(damaged["id"]) == 204
    assert second.list() == {**before, prolonged["id"]: True}


def backup(url: str) -> dict[str, object]:
    """Return the row of the one link."""
    with closing(open_replica_database(url)) as database:
        row = database.transact(lambda connection: connection.execute(sa.select(LINKS)).mappings().one())
    return dict(row)


def test_links_of_replicas_that_share_a_database(
    tmp_path: Path, owner: Owner, postgres: PostgresServer
) -> None:
    secret_file = tmp_path / "secret"
    secret_file.write_text(f"{SECRET}\n")
    secret_file.chmod(0o600)
    url = postgres.create_database()
    shared = {"DATABASE_URL": url, "INSTANCE_SECRET_FILE": str(secret_file)}
    with ExitStack() as stack:
        first, second = (
            stack.enter_context(linking(tmp_path / name, owner, shared)) for name in ("first", "second")
        )
        link = first.make(first.service.url + owner.path, "--pinned")
        there = f"{second.service.url}{urlsplit(link).path}"
        assert get(link).body == get(there).body
        assert get(link).headers["ETag"] == get(there).headers["ETag"]
        assert get(altered(there)).status == 404
        (link_id,) = second.list()
        row = backup(url)
        check_changed_rows(first, second, first.service.url + owner.path, url)
        assert second.revoke(link_id) == 204
        assert get(there).status == 410
        wait_for(lambda: get(link).status == 410)
        write(url, link_id, **{**row, "expires_at": 4e9})
        for each in (link, there):
            wait_for(partial(is_served, each))
        assert second.run_link("--revoke-all").stdout == "2\n"
        assert get(there).status == 410
        wait_for(lambda: get(link).status == 410)
    url = url.replace("postgresql+psycopg", "postgresql")
    dump = run_client(str(postgres.programs / "pg_dump"), "--inserts", url)
    assert not [secret for secret in (code_of(link), KEY, owner.infra_env) if secret.encode() in dump]
    for name in ("first", "second"):
        assert_nothing_is_kept(tmp_path / name, code_of(link), KEY)
