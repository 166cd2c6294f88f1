"""The keys of signed statements, read again when their files change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from image_service.common.files.reloaded import Reloaded

if TYPE_CHECKING:
    from collections.abc import Callable

    from image_service.core.provenance.dsse import SigningKeys
    from image_service.settings.signing import SigningSettings


def start_signing(settings: SigningSettings) -> Callable[[], SigningKeys] | None:
    """Return a function that returns the keys as they are now; None: nothing is signed.

    Raises:
        ConfigurationError: a key cannot be used any more.
    """
    read_keys = settings.key_reader()
    return None if read_keys is None else Reloaded(settings.files, read_keys).get
