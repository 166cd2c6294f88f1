"""Replicas that serve as one: their network, balancer, database and double of assisted-service."""

from __future__ import annotations

import json
import os
import secrets
import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

import attrs
import trustme
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from tests.acceptance.service import CHECKOUT, SERVE, Certificate, os_image
from tests.acceptance.upstream import Upstream, running
from tests.core.formats.filesystems.iso_builder import build_live_iso
from tests.postgres import running_postgres
from tests.replicas.balancer import running_balancer
from tests.replicas.infra_envs import register
from tests.replicas.mount import Mount
from tests.replicas.network import running_network
from tests.replicas.replica import Replica
from tests.replicas.tcp_proxy import running_proxy

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.postgres import PostgresServer
    from tests.replicas.balancer import Balancer, Mode
    from tests.replicas.infra_envs import InfraEnv
    from tests.replicas.network import Network

VERSION = "4.20"
TTL_SECONDS = 2
WRONG_CLOCK = 3
"""The replica whose clock is wrong."""
CLOCK_ERROR_SECONDS = 90
_WRONG_CLOCK_VARIABLES = {
    "CLOCK_ERROR_SECONDS": str(CLOCK_ERROR_SECONDS),
    "PYTHONPATH": os.pathsep.join([str(Path(__file__).with_name("wrong_clock")), str(CHECKOUT)]),
}


@attrs.frozen
class Site:
    """Running replicas.

    Args:
        directory: of everything, with a short name.
        network: the addresses.
        base: the base image.
        upstream: the double of assisted-service.
        postgres: the server.
        database_url: of the database that they share, without a proxy.
        balancer: haproxy.
        replicas: all replicas.
    """

    directory: Path
    network: Network
    base: Path
    upstream: Upstream
    postgres: PostgresServer
    database_url: str
    balancer: Balancer
    replicas: Sequence[Replica]

    @property
    def dsn(self) -> str:
        """The shared database, for psycopg."""
        return self.database_url.replace("+psycopg", "")

    def register(self, **attributes: Any) -> InfraEnv:
        """Register an infra-env."""
        return register(self.upstream, **attributes)

    def mount(self, infra_env: InfraEnv, mode: Mode) -> Mount:
        """Return a client of an infra-env's image behind the balancer."""
        return Mount(self.balancer.host(mode), path_of(infra_env))

    def client(self, infra_env: InfraEnv, replica: Replica, number: int = 0) -> Mount:
        """Return a client of one replica, with an address of its own (from 0)."""
        return Mount(replica.host, path_of(infra_env), self.network.client(number))


def path_of(infra_env: InfraEnv) -> str:
    """Return the path of an infra-env's full ISO."""
    return f"/byid/{infra_env.infra_env_id}/{VERSION}/x86_64/full.iso"


@contextmanager
def running_site(count: int = 3, command: Sequence[str] = SERVE, **environment: str) -> Iterator[Site]:
    """Run replicas until the block ends; all of them must have been able to serve.

    Args:
        count: of replicas.
        command: of each.
        **environment: more variables for each.
    """
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="replicas-")))
        network = stack.enter_context(running_network(count))
        upstream = stack.enter_context(running(_certificate(directory, network.host)))
        assisted = stack.enter_context(running_proxy(network.host, _server_of(upstream)))
        postgres = stack.enter_context(running_postgres())
        database_url = postgres.create_database()
        base = directory / "live.iso"
        base.write_bytes(build_live_iso())
        secret = directory / "secret"
        secret.write_text(f"{secrets.token_hex(32)}\n")
        secret.chmod(0o600)
        common = {
            **upstream.environment,
            "ASSISTED_SERVICE_HOST": f"{network.host}:{assisted.port}",
            "OS_IMAGES": json.dumps([os_image(base, VERSION)]),
            "SNAPSHOT_TTL": str(TTL_SECONDS),
            "INSTANCE_SECRET_FILE": str(secret),
            "SIGNING_KEY_FILE": str(_signing_key(directory)),
            **environment,
        }
        replicas = []
        for number in range(1, count + 1):
            own = directory / f"replica-{number}"
            own.mkdir()
            proxy = stack.enter_context(running_proxy(network.host, ("127.0.0.1", postgres.port)))
            through_proxy = {"DATABASE_URL": _with_server(database_url, f"{network.host}:{proxy.port}")}
            clock = _WRONG_CLOCK_VARIABLES if number == WRONG_CLOCK else {}
            replicas.append(
                Replica(
                    number,
                    network.address(number),
                    network.port,
                    own,
                    {**common, **clock, **through_proxy},
                    network.namespace(number),
                    proxy,
                )
            )
        for replica in replicas:
            stack.callback(replica.kill)
            replica.start(command)
        (directory / "haproxy").mkdir()
        balancer = stack.enter_context(
            running_balancer(directory / "haproxy", [replica.host for replica in replicas])
        )
        for replica in replicas:
            replica.wait_until_healthy()
        balancer.wait_until_up(*range(1, count + 1))
        yield Site(directory, network, base, upstream, postgres, database_url, balancer, replicas)


def _signing_key(directory: Path) -> Path:
    key = ec.generate_private_key(ec.SECP256R1())
    path = directory / "signing.key"
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    path.chmod(0o600)
    return path


def _with_server(url: str, server: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"{parts.username}@{server}"))


def _certificate(directory: Path, host: str) -> Certificate:
    """Return a certificate for the double of assisted-service as the replicas see it."""
    authority = trustme.CA()
    leaf = authority.issue_cert("127.0.0.1", host)
    made = Certificate(directory / "key.pem", directory / "chain.pem", directory / "ca.pem")
    leaf.private_key_pem.write_to_path(str(made.key))
    authority.cert_pem.write_to_path(str(made.ca))
    leaf.cert_chain_pems[0].write_to_path(str(made.chain))
    return made


def _server_of(upstream: Upstream) -> tuple[str, int]:
    host, _, port = upstream.environment["ASSISTED_SERVICE_HOST"].rpartition(":")
    return host, int(port)
