"""The administrative listener of the service that runs beside a command."""

from __future__ import annotations

import os
from ipaddress import ip_address
from typing import TYPE_CHECKING

from image_service.core.errors import ConfigurationError
from image_service.server.admin.client import AdminClient
from image_service.settings.admin import AdminSettings
from image_service.settings.network import TlsSettings
from image_service.settings.parsers import Address
from image_service.settings.variables import read_group

if TYPE_CHECKING:
    import argparse

    from image_service.settings.parsers import ListenAddress

DEFAULT_ADMIN = "http://127.0.0.1:8081"
"""Where ``make run`` listens."""

_LOOPBACK = {4: "127.0.0.1", 6: "::1"}


def admin_client(options: argparse.Namespace) -> AdminClient:
    """Return a client of the listener of ``--admin``, else of the environment, else of `DEFAULT_ADMIN`."""
    if options.admin is not None:
        return AdminClient(options.admin, options.token_file, options.ca_file)
    faults: list[str] = []
    admin = read_group(AdminSettings, os.environ, faults)
    tls = read_group(TlsSettings, os.environ, faults)
    if faults:
        raise ConfigurationError("\n".join(faults))
    if not admin.is_enabled:
        return AdminClient(DEFAULT_ADMIN, options.token_file, options.ca_file)
    known = [address for address in admin.listen if address.port]
    if not known:
        raise ConfigurationError("--admin is not given, and ADMIN_LISTEN names no port")
    listen = max(known, key=lambda address: address.is_loopback)  # if none is, the first
    scheme = "https" if tls.is_enabled and not listen.is_loopback else "http"
    token_file = options.token_file or admin.token_file
    return AdminClient(f"{scheme}://{reached_address(listen).netloc}", token_file, options.ca_file)


def reached_address(listen: ListenAddress) -> Address:
    """Return the address that reaches a listener of this machine: loopback, if it has all addresses."""
    host = ip_address(listen.host)
    return Address(_LOOPBACK[host.version] if host.is_unspecified else str(host), listen.port)
