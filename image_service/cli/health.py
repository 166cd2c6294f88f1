"""``image-service health``: asks the service that has the same environment, as a container's probe does."""

from __future__ import annotations

import json
import os
import ssl
from contextlib import closing, suppress
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import TYPE_CHECKING

from image_service.core.errors import ConfigurationError, Unavailable
from image_service.settings.network import ListenSettings, TlsSettings
from image_service.settings.variables import read_group

if TYPE_CHECKING:
    import argparse

    from image_service.common.command_line.parser import AddParser

TIMEOUT_SECONDS = 5
_MAX_BODY_BYTES = 4096


def add(add_parser: AddParser) -> None:
    """Declare the command."""
    parser = add_parser(
        "health",
        help="check the service on this machine",
        description="Ask the service on this machine, or in this container, whether it is ready."
        " LISTEN_ADDRESS, LISTEN_PORT and HTTPS_CERT_FILE determine the URL, as for the service; its"
        " certificate is not verified.",
    )
    parser.add_argument(
        "--live", action="store_true", help="request /live, which only says that the process responds"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the response if it is 200."""
    connection = _connection()
    path = "/live" if options.live else "/health"
    try:
        with closing(connection):
            connection.request("GET", path)
            with connection.getresponse() as response:
                status, body = response.status, response.read(_MAX_BODY_BYTES)
    except (OSError, HTTPException) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise Unavailable(
            f"no response to {path} from {connection.host}:{connection.port}: {reason}"
        ) from None
    if status != HTTPStatus.OK:
        raise Unavailable(f"{path}: status {status}, {_describe(body)}")
    print(_describe(body))  # noqa: T201 - the command's output
    return 0


def _connection() -> HTTPConnection:
    """Return a connection to the listener of `LISTEN_PORT`; raise ConfigurationError if it is not known."""
    faults: list[str] = []
    listen = read_group(ListenSettings, os.environ, faults)
    tls = read_group(TlsSettings, os.environ, faults)
    if listen.port == 0:
        faults.append("LISTEN_PORT=0: the service has chosen the port, and it is not known here")
    if faults:
        raise ConfigurationError("\n".join(faults))
    is_any = listen.address is None or listen.address.is_unspecified
    host = "127.0.0.1" if is_any else str(listen.address)  # not a name, which a container may not resolve
    if not tls.is_enabled:
        return HTTPConnection(host, listen.port, timeout=TIMEOUT_SECONDS)
    context = ssl.create_default_context()
    context.check_hostname = False  # the certificate names the host by which clients know the service
    context.verify_mode = ssl.CERT_NONE
    return HTTPSConnection(host, listen.port, timeout=TIMEOUT_SECONDS, context=context)


def _describe(body: bytes) -> str:
    """Return the detail of a problem, or the text, in one line."""
    text = body.decode(errors="replace")
    with suppress(ValueError, TypeError, KeyError):
        text = str(json.loads(text)["detail"])
    return " ".join(text.split())
