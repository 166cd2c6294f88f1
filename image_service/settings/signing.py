"""Settings of signed statements."""

from __future__ import annotations

from functools import partial
from pathlib import Path  # noqa: TC003 - attrs resolves annotations at run time
from typing import TYPE_CHECKING

import attrs

from image_service.common.pkcs11.token_uri import TokenUri, parse_token_uri
from image_service.core.errors import ConfigurationError
from image_service.settings.parsers import readable_file
from image_service.settings.variables import setting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from image_service.core.provenance.dsse import BundleSigner, SigningKeys


def _signing_key(value: str) -> Path:
    # Imported here because a service that signs nothing does not need it.
    from image_service.core.provenance.dsse import load_signing_key  # noqa: PLC0415

    return _file_of(load_signing_key, value)


def _public_keys(value: str) -> Path:
    from image_service.core.provenance.dsse import load_verifying_keys  # noqa: PLC0415 - as above

    return _file_of(load_verifying_keys, value)


def _token_key(value: str) -> TokenUri:
    uri = parse_token_uri(value)
    try:
        _open_token(uri)
    except ConfigurationError as error:
        raise ValueError(f"cannot be used: {error.detail}") from None
    return uri


def _open_token(uri: TokenUri) -> BundleSigner:
    from image_service.core.provenance.dsse import BundleSigner, make_verifier  # noqa: PLC0415 - as above

    try:
        from image_service.common.pkcs11.token_key import TokenKey  # noqa: PLC0415 - an extra
    except ModuleNotFoundError:
        raise ConfigurationError("the wheel's extra pkcs11 is not installed") from None
    key = TokenKey(uri)
    signer = BundleSigner(key.sign, make_verifier(key.public))
    if not signer.public.accepts(signer.sign(b""), b""):
        raise ConfigurationError("the token's public key is not that of its private key")
    return signer


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
    provenance of composes is signed. A changed file is read within a second. A key that every user may read
    is logged as a warning, as for `HTTPS_KEY_FILE`. When not set: nothing is signed, without
    `SIGNING_KEY_URI`. See `docs/provenance.md`."""
    key_uri: TokenUri | None = setting("SIGNING_KEY_URI", parse=_token_key)
    """In place of `SIGNING_KEY_FILE`, a private key of a PKCS#11 token, which never leaves it, as a URI of
    RFC 7512: `pkcs11:token=NAME;object=LABEL?module-path=/PATH/OF/MODULE.so&pin-source=/PATH/OF/PIN`. The
    token must have the public key, too. It is opened at the start; while it does not sign, statements get
    503, and images are served. An ECDSA key of a token signs the same statement with other bytes each time.
    Needs the extra `pkcs11`."""
    retired_keys_file: Path | None = setting("SIGNING_RETIRED_KEYS", parse=_public_keys)
    """PEM file of the public keys that have signed before, so that older statements can still be verified:
    they are listed behind the current one. A changed file is read within a second. When not set: none."""

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that have keys."""
        return tuple(path for path in (self.key_file, self.retired_keys_file) if path is not None)

    def key_reader(self) -> Callable[[], SigningKeys] | None:
        """Return a function that reads the keys, and opens a token once; None: nothing is signed.

        The function raises ConfigurationError if a file cannot be used.

        Raises:
            ConfigurationError: the token cannot be used any more.
        """
        if self.key_uri is not None:
            signer = _open_token(self.key_uri)
            return partial(self._read_keys, lambda: signer)
        path = self.key_file
        if path is None:
            return None
        from image_service.core.provenance.dsse import load_signing_key  # noqa: PLC0415 - as above

        return partial(self._read_keys, lambda: load_signing_key(path.read_bytes()))

    def _read_keys(self, read_signer: Callable[[], BundleSigner]) -> SigningKeys:
        from image_service.core.provenance.dsse import SigningKeys, load_verifying_keys  # noqa: PLC0415

        path = self.retired_keys_file
        try:
            return SigningKeys(read_signer(), () if path is None else load_verifying_keys(path.read_bytes()))
        except OSError as error:
            raise ConfigurationError(f"signing keys cannot be read: {error}") from None

    def contradictions(self, environ: Mapping[str, str]) -> Iterator[str]:
        """Variables that are valid, but not together."""
        file, uri = environ.get("SIGNING_KEY_FILE"), environ.get("SIGNING_KEY_URI")
        if file and uri:
            yield "SIGNING_KEY_FILE and SIGNING_KEY_URI are set; one key signs"
        if environ.get("SIGNING_RETIRED_KEYS") and not (file or uri):
            yield "SIGNING_RETIRED_KEYS is set without SIGNING_KEY_FILE; without that no keys are listed"
