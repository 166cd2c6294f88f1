"""An nginx of a test's own, which serves the files of a directory and logs the preconditions it gets."""

from __future__ import annotations

import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

import attrs

from tests.acceptance.clients import needs_client
from tests.ports import free_port, wait_for_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.acceptance.service import Certificate

_LOG = "$status $http_range|$http_if_match|$http_if_unmodified_since|$sent_http_content_range"
_CONFIG = """
daemon off;
master_process off;
pid {directory}/pid;
error_log stderr;
events {{ }}
http {{
    log_format asked '{log}';
    access_log {directory}/asked asked;
    client_body_temp_path {directory}/temp;
    proxy_temp_path {directory}/temp;
    fastcgi_temp_path {directory}/temp;
    uwsgi_temp_path {directory}/temp;
    scgi_temp_path {directory}/temp;
    sendfile on;
    server {{
        listen 127.0.0.1:{port}{tls};
        root {directory}/files;
        {locations}
    }}
}}
"""


@attrs.frozen
class Nginx:
    """The server.

    Args:
        port: on loopback.
        directory: where its files are, and its log.
        scheme: of its URLs.
    """

    port: int
    directory: Path
    scheme: str = "http"

    @property
    def files(self) -> Path:
        """The directory that it serves."""
        return self.directory / "files"

    def url(self, path: str) -> str:
        """The URL of a path."""
        return f"{self.scheme}://127.0.0.1:{self.port}{path}"

    def asked(self) -> list[str]:
        """The log lines of the requests."""
        return (self.directory / "asked").read_text().splitlines()


@contextmanager
def running_nginx(
    directory: Path, locations: str = "", certificate: Certificate | None = None
) -> Iterator[Nginx]:
    """Run nginx until the block ends.

    Args:
        directory: for its configuration, its log and, in ``files``, its files.
        locations: more of the server's configuration.
        certificate: for HTTPS; None: HTTP.
    """
    port, tls = free_port(), ""
    if certificate is not None:
        tls = f" ssl; ssl_certificate {certificate.chain}; ssl_certificate_key {certificate.key}"
    (directory / "files").mkdir(exist_ok=True)
    configuration = directory / "nginx.conf"
    configuration.write_text(
        _CONFIG.format(directory=directory, port=port, tls=tls, log=_LOG, locations=locations)
    )
    command = [needs_client("nginx"), "-p", str(directory), "-c", str(configuration)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            wait_for_port(port, process)
            yield Nginx(port, directory, "https" if certificate else "http")
        finally:
            process.terminate()
