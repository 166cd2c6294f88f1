"""Settings of signed statements."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - attrs resolves annotations at run time
from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import ConfigurationError
from image_service.settings.parsers import readable_file
from image_service.settings.variables import setting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from image_service.core.provenance.dsse import BundleSigner


def _signing_key(value: str) -> Path:
    # Imported here because a service that signs nothing does not need it.
    from image_service.core.provenance.dsse import load_signing_key  # noqa: PLC0415

    return _file_of(load_signing_key, value)


def _public_keys(value: str) -> Path:
    from image_service.core.provenance.dsse import load_verifying_keys  # noqa: PLC0415 - as above

    return _file_of(load_verifying_keys, value)


def _file_of(load: Callable[[bytes], object], value: str) -> Path:
    path = readable_file(value)
    try:
        load(path.read_bytes())
    except ConfigurationError as error:
        raise ValueError(f"cannot be used: {error.detail}") from None
    return path


@attrs.frozen(kw_only=True)
class SigningSettings:
    """Signed statements."""

    key_file: Path | None = setting("SIGNING_KEY_FILE", parse=_signing_key)
    """PEM file of a private key, ECDSA P-256 or Ed25519, without passphrase. With it, `.intoto.json` behind
    the path of an image, or `statement=intoto` in its query, is a signed statement of which bytes are the
    base image's, and `/.well-known/image-service-signing-keys.pem` has the public key; in the jobs role, the
    provenance of composes is signed. The file is read at the start. A key that every user may read is logged
    as a warning, as for `HTTPS_KEY_FILE`. When not set: nothing is signed. See `docs/provenance.md`."""
    retired_keys_file: Path | None = setting("SIGNING_RETIRED_KEYS", parse=_public_keys)
    """PEM file of the public keys that have signed before, so that older statements can still be verified:
    they are listed behind the current one. When not set: none."""

    def read_key(self) -> BundleSigner | None:
        """Return the key; None: there is none. OSError if the file cannot be read any more."""
        if self.key_file is None:
            return None
        from image_service.core.provenance.dsse import load_signing_key  # noqa: PLC0415 - as above

        return load_signing_key(self.key_file.read_bytes())

    def contradictions(self, environ: Mapping[str, str]) -> Iterator[str]:
        """Variables that are valid, but not together."""
        if environ.get("SIGNING_RETIRED_KEYS") and not environ.get("SIGNING_KEY_FILE"):
            yield "SIGNING_RETIRED_KEYS is set without SIGNING_KEY_FILE; without that no keys are listed"
