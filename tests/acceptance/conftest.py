"""What acceptance tests share, and what was left out of them."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import pytest
import trustme

from tests.acceptance.clients import MISSING
from tests.acceptance.service import Certificate

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    """Make a certificate for 127.0.0.1 and a CA that signs it."""
    directory: Path = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    leaf = authority.issue_cert("127.0.0.1", "localhost")
    made = Certificate(directory / "key.pem", directory / "chain.pem", directory / "ca.pem")
    leaf.private_key_pem.write_to_path(str(made.key))
    authority.cert_pem.write_to_path(str(made.ca))
    for certificate in leaf.cert_chain_pems:
        certificate.write_to_path(str(made.chain), append=True)
    return made


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name each client that was not found, and the tests that were left out for that."""
    left_out: dict[str, set[str]] = defaultdict(set)
    for report in terminalreporter.stats.get("skipped", []):
        _path, _line, reason = report.longrepr
        _, found, client = reason.partition(MISSING)
        if found:
            left_out[client].add(report.nodeid.partition("[")[0])
    if left_out:
        terminalreporter.section("missing clients")
    for client, tests in sorted(left_out.items()):
        terminalreporter.line(f"{client}; left out for that:")
        terminalreporter.line("".join(f"    {test}\n" for test in sorted(tests)))
