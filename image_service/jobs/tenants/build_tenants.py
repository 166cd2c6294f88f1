"""Makes the authenticator of the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from image_service.common.concurrency.interruption import Interruption
from image_service.common.files.reloaded import reloaded_file
from image_service.jobs.tenants.access_list import AccessList
from image_service.jobs.tenants.authenticator import JwtAuthenticator, OpenAuthenticator
from image_service.jobs.tenants.key_sources import REFRESH_SECONDS, FetchedKeys, FileKeys
from image_service.jobs.tenants.keys import KeySet
from image_service.server.catalog.download.origin_client import OriginClient, trusted_authorities
from image_service.settings.jobs.tenants import read_access_rules

if TYPE_CHECKING:
    from collections.abc import Callable

    from image_service.common.concurrency.process_parts import PartsStack
    from image_service.jobs.tenants.authenticator import Authenticator
    from image_service.jobs.tenants.key_sources import KeySource
    from image_service.settings.jobs.tenants import TenantSettings
    from image_service.settings.proxies import ProxySettings

_STALL_SECONDS = 10.0
_MAX_KEY_SET_BYTES = 1024**2


def build_authenticator(
    parts: PartsStack, settings: TenantSettings, proxies: ProxySettings, worker_token: str
) -> Authenticator:
    """Return the authenticator of all requests.

    Args:
        proxies: for ``JWT_KEYS_URL``.
        worker_token: of this service's built-in worker.

    Raises:
        ConfigurationError: a file cannot be used.
    """
    if settings.keys_url is not None:
        keys: KeySource = _fetched_keys(parts, settings.keys_url, settings, proxies)
    elif settings.keys_file is not None:
        keys = FileKeys(reloaded_file(settings.keys_file, lambda path: KeySet.parse(path.read_bytes())))
    else:
        return OpenAuthenticator(worker_token)
    return JwtAuthenticator(keys, _access_list(settings), settings.issuer, settings.audience, worker_token)


def build_budgets(settings: TenantSettings) -> Callable[[str], int | None]:
    """Return a function that returns the bytes that the access list gives to a tenant; None: it does not.

    Raises:
        ConfigurationError: the file cannot be used.
    """
    access_list = _access_list(settings)
    return lambda tenant: access_list().max_bytes_of(tenant)


def _fetched_keys(
    parts: PartsStack, url: str, settings: TenantSettings, proxies: ProxySettings
) -> FetchedKeys:
    client = OriginClient(trusted_authorities(settings.ca_file), _STALL_SECONDS, proxies=proxies)
    in_thread = parts.in_thread_pool(1, "keys of tokens")
    interruption = Interruption()
    parts.callback(interruption.interrupt)

    def fetch() -> bytes:
        with client.fetch(url, {"Accept": "application/json"}, interruption) as response:
            return response.read_all(_MAX_KEY_SET_BYTES)

    keys = FetchedKeys(lambda: in_thread(fetch), parts.reactor)
    parts.call_every(REFRESH_SECONDS, keys.refresh, now=True)
    return keys


def _access_list(settings: TenantSettings) -> Callable[[], AccessList]:
    if settings.acl_file is None:
        access_list = AccessList(None, settings.fields)
        return lambda: access_list
    return reloaded_file(
        settings.acl_file, lambda path: AccessList(read_access_rules(path), settings.fields)
    ).get
