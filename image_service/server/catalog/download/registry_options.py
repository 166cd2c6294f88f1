"""How registries are reached, by the settings; their files are read again when they change."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from image_service.common.files.reloaded import Reloaded
from image_service.common.registry.connections import RegistryOptions
from image_service.common.registry.credentials import CredentialStore, parse_auth_file
from image_service.common.registry.mirrors import RegistryRules, parse_registries_conf
from image_service.core.errors import ConfigurationError
from image_service.settings.parsers import file_content

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import TypeVar

    from image_service.settings.proxies import ProxySettings
    from image_service.settings.registries import RegistrySettings

    T = TypeVar("T")


def registry_options(
    settings: RegistrySettings, ca_file: Path | None, proxies: ProxySettings
) -> RegistryOptions:
    """Return how registries are reached.

    Args:
        ca_file: authorities for all of them.

    Raises:
        ConfigurationError: a file cannot be used any more.
    """
    conf = settings.registries_conf
    read_rules = partial(_read, conf, parse_registries_conf) if conf else RegistryRules
    return RegistryOptions(
        Reloaded(settings.auth_files, partial(_read_credentials, settings.auth_files)),
        Reloaded([conf] if conf else [], read_rules),
        settings.certs_dirs,
        ca_file,
        frozenset(settings.insecure),
        proxies.find,
        make_current=Reloaded,
    )


def _read_credentials(paths: tuple[Path, ...]) -> CredentialStore:
    return CredentialStore.merge(_read(path, parse_auth_file) for path in paths)


def _read(path: Path, parse: Callable[[str], T]) -> T:
    try:
        return parse(file_content(str(path.absolute())))
    except ValueError as error:
        raise ConfigurationError(f"{path}: {'; '.join(map(str, error.args))}") from None
