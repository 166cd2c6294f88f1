"""The administrative listener of the service that runs beside a command."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from image_service.core.errors import ConfigurationError
from image_service.server.admin.client import AdminClient
from image_service.settings.admin import AdminSettings
from image_service.settings.network import TlsSettings
from image_service.settings.variables import read_group

if TYPE_CHECKING:
    import argparse


DEFAULT_ADMIN = "http://127.0.0.1:8081"
"""Where ``make run`` listens."""


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
    url = admin.local_url(has_certificate=tls.is_enabled)
    if url is None:
        raise ConfigurationError("--admin is not given, and ADMIN_LISTEN names no port")
    return AdminClient(url, options.token_file or admin.token_file, options.ca_file)
