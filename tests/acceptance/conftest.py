"""Fixtures of acceptance tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trustme

from tests.acceptance.service import Certificate
from tests.ports import ANY_ADDRESS

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    """Return a certificate for this machine and the CA that signed it."""
    directory: Path = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    leaf = authority.issue_cert("127.0.0.1", "localhost", ANY_ADDRESS)
    made = Certificate(directory / "key.pem", directory / "chain.pem", directory / "ca.pem")
    leaf.private_key_pem.write_to_path(str(made.key))
    authority.cert_pem.write_to_path(str(made.ca))
    for certificate in leaf.cert_chain_pems:
        certificate.write_to_path(str(made.chain), append=True)
    return made
