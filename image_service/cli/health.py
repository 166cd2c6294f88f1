"""``image-service health``: asks the service that has the same environment, as a container's probe does."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING

from image_service.common.http.client import HttpClient
from image_service.common.http.errors import HttpError
from image_service.common.http.origins import UrlOrigin
from image_service.common.http.tls import client_context
from image_service.common.http.watch import RequestLimits
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
    origin = _own_origin()
    path = "/live" if options.live else "/health"
    limits = RequestLimits(connect_seconds=TIMEOUT_SECONDS, stall_seconds=TIMEOUT_SECONDS)
    # The certificate names the host by which clients know the service.
    http = HttpClient(partial(client_context, insecure=True), limits)
    try:
        with http.send("GET", f"{origin}{path}", {}) as response:
            status, body = response.status, response.read(_MAX_BODY_BYTES)
    except HttpError as error:
        raise Unavailable(f"no response to {path} from {origin.host}:{origin.port}: {error}") from None
    if status != HTTPStatus.OK:
        raise Unavailable(f"{path}: status {status}, {_describe(body)}")
    print(_describe(body))  # noqa: T201 - the command's output
    return 0


def _own_origin() -> UrlOrigin:
    """Return the origin of the listener of `LISTEN_PORT`; raise ConfigurationError if it is not known."""
    faults: list[str] = []
    listen = read_group(ListenSettings, os.environ, faults)
    tls = read_group(TlsSettings, os.environ, faults)
    if listen.port == 0:
        faults.append("LISTEN_PORT=0: the service has chosen the port, and it is not known here")
    if faults:
        raise ConfigurationError("\n".join(faults))
    is_any = listen.address is None or listen.address.is_unspecified
    host = "127.0.0.1" if is_any else str(listen.address)  # not a name, which a container may not resolve
    return UrlOrigin("https" if tls.is_enabled else "http", host, listen.port)


def _describe(body: bytes) -> str:
    """Return the detail of a problem, or the text, in one line."""
    text = body.decode(errors="replace")
    with suppress(ValueError, TypeError, KeyError):
        text = str(json.loads(text)["detail"])
    return " ".join(text.split())
