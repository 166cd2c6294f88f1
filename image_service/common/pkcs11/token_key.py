"""Signs with a key that never leaves its PKCS#11 token."""

from __future__ import annotations

import hashlib
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, cast

import pkcs11
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_der_public_key
from pkcs11.util.ec import encode_ec_public_key, encode_ecdsa_signature

from image_service.core.errors import ConfigurationError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
    from pkcs11.types import PublicKey, SignMixin

    from image_service.common.pkcs11.token_uri import TokenUri

_ED25519_BYTES = 32
_OCTET_STRING = b"\x04\x20"  # DER, of that length


class TokenKey:
    """A private key of a token, ECDSA P-256 or Ed25519; any thread may sign.

    The session is opened again once when the token refuses a signature: it may have been unplugged, or its
    service restarted.

    Attributes:
        public: the public key, which the token must have beside the private one.

    Raises:
        ConfigurationError: the key cannot be used; says why, never with the PIN.
    """

    def __init__(self, uri: TokenUri) -> None:
        self._uri = uri
        self._lock = Lock()
        with _faults(uri):
            self._open()
            self.public = self._read_public_key()

    def sign(self, message: bytes) -> bytes:
        """Return a signature, of ECDSA as DER.

        Raises:
            Unavailable: the token does not sign now.
        """
        with self._lock:
            try:
                return self._sign(message)
            except pkcs11.PKCS11Error:
                try:
                    with _faults(self._uri):
                        self._library.reinitialize()
                        self._open()
                        return self._sign(message)
                except ConfigurationError as error:
                    raise Unavailable(f"the signing key's token does not sign: {error.detail}") from None

    def _open(self) -> None:
        uri = self._uri
        names = {"token_label": uri.token, "token_serial": uri.serial and uri.serial.encode()}
        self._library = pkcs11.lib(str(uri.module))
        token = self._library.get_token(**{name: value for name, value in names.items() if value is not None})
        try:
            self._session = token.open(user_pin=uri.read_pin())
        except pkcs11.UserAlreadyLoggedIn:  # by another session of this process
            self._session = token.open()
        self._key = self._find(pkcs11.ObjectClass.PRIVATE_KEY)

    def _find(self, kind: pkcs11.ObjectClass) -> pkcs11.Key:
        return self._session.get_key(object_class=kind, label=self._uri.label, id=self._uri.id)

    def _read_public_key(self) -> PublicKeyTypes:
        key = cast("PublicKey", self._find(pkcs11.ObjectClass.PUBLIC_KEY))
        if key.key_type is pkcs11.KeyType.EC:
            return load_der_public_key(encode_ec_public_key(key))
        if key.key_type is pkcs11.KeyType.EC_EDWARDS:
            point = bytes(key[pkcs11.Attribute.EC_POINT]).removeprefix(_OCTET_STRING)
            if len(point) == _ED25519_BYTES:
                return Ed25519PublicKey.from_public_bytes(point)
        raise ConfigurationError("the token's key is not an ECDSA P-256 or an Ed25519 key")

    def _sign(self, message: bytes) -> bytes:
        key = cast("SignMixin", self._key)
        if self._key.key_type is pkcs11.KeyType.EC_EDWARDS:
            return key.sign(message, mechanism=pkcs11.Mechanism.EDDSA)
        digest = hashlib.sha256(message).digest()
        return encode_ecdsa_signature(key.sign(digest, mechanism=pkcs11.Mechanism.ECDSA))


@contextmanager
def _faults(uri: TokenUri) -> Iterator[None]:
    """Say in a ConfigurationError what the library's exceptions mean."""
    try:
        yield
    except pkcs11.PKCS11Error as error:
        reason = _REASONS.get(type(error)) or f"{type(error).__name__} {error}".strip()
        raise ConfigurationError(f"{uri.module}: {reason}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{uri.pin_file} or {uri.module} cannot be read: {error}") from None


_REASONS = {
    pkcs11.NoSuchToken: "there is no token of that name",
    pkcs11.MultipleTokensReturned: "more than one token has that name; give its serial",
    pkcs11.NoSuchKey: "the token has no private key, or no public key, of that object and id",
    pkcs11.MultipleObjectsReturned: "more than one key has that object and id",
    pkcs11.PinIncorrect: "the PIN is wrong",
    pkcs11.PinLenRange: "the PIN is wrong",
    pkcs11.PinLocked: "the PIN is locked",
}
