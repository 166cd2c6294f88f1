from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

import pytest
import trustme

from image_service.jobs.model import Step
from image_service.settings.jobs.engine import EngineSettings
from tests.jobs.engine.driver import Driver
from tests.jobs.engine.servers import EngineServer, tls_before

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.acceptance


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def context(authority: trustme.CA) -> ssl.SSLContext:
    """Of a server that accepts HTTP/2 from clients with a certificate."""
    found = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    found.set_alpn_protocols(["h2"])
    found.verify_mode = ssl.CERT_REQUIRED
    authority.issue_cert("localhost").configure_cert(found)
    authority.configure_trust(found)
    return found


def test_engine_behind_tls_that_asks_for_a_certificate(
    engine_server: EngineServer, authority: trustme.CA, context: ssl.SSLContext, tmp_path: Path
) -> None:
    certificate = authority.issue_cert("image-service")
    files = {name: tmp_path / f"{name}.pem" for name in ("ca", "certificate", "key")}
    authority.cert_pem.write_to_path(str(files["ca"]))
    certificate.private_key_and_cert_chain_pem.write_to_path(str(files["key"]))
    for blob in certificate.cert_chain_pems:
        blob.write_to_path(str(files["certificate"]), append=True)
    settings = EngineSettings(
        ca_file=files["ca"], certificate_file=files["certificate"], key_file=files["key"]
    )
    with (
        tls_before(engine_server.address, context) as port,
        Driver(f"localhost:{port}", settings).running() as driver,
    ):
        compose = driver.begin(Step("fetch", "fetch-base"))
        assert driver.end(compose) == (None, False)
