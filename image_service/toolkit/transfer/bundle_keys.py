"""RSA keys of image bundles: they verify and decrypt manifests. SHA-1 and PKCS#1 v1.5 are the form's."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING

import attrs
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey
from cryptography.hazmat.primitives.hashes import SHA1
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509 import load_pem_x509_certificates

from image_service.core.errors import Unprocessable, UnsafeImage

if TYPE_CHECKING:
    from pathlib import Path

    from image_service.common.transfer.bundle_manifest import BundleManifest

_CERTIFICATE = b"-----BEGIN CERTIFICATE-----"
_AES_KEY = re.compile(b"[0-9a-fA-F]{32}")


@attrs.frozen
class BundleKeys:
    """What decrypts a bundle, and what its signature is verified with.

    Args:
        private: that of the user or of the service that the bundle was made for.
        public: those of the users who may have signed it.
    """

    private: RSAPrivateKey = attrs.field(repr=False)
    public: tuple[RSAPublicKey, ...] = attrs.field(repr=False)

    @classmethod
    def load(cls, key_file: Path, certificate_file: Path | None) -> BundleKeys:
        """Load the keys.

        Args:
            key_file: RSA private key in PEM, without a passphrase.
            certificate_file: of certificates of users, in PEM; None: those that are in `key_file` too, and if
                there is none, the private key is the user's own.

        Raises:
            Unprocessable: a file is not what it must be.
            OSError: it cannot be read.
        """
        key_text = key_file.read_bytes()
        try:
            private = load_pem_private_key(key_text, None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            private = None
        if not isinstance(private, RSAPrivateKey):
            raise Unprocessable(f"{key_file} is not an RSA private key in PEM without a passphrase")
        if certificate_file is None and _CERTIFICATE not in key_text:
            return cls(private, (private.public_key(),))
        text = key_text if certificate_file is None else certificate_file.read_bytes()
        try:
            found = [certificate.public_key() for certificate in load_pem_x509_certificates(text)]
        except (ValueError, UnsupportedAlgorithm):
            found = []
        public = tuple(key for key in found if isinstance(key, RSAPublicKey))
        if not found or len(public) < len(found):
            raise Unprocessable(f"{certificate_file or key_file} has no certificate in PEM of an RSA key")
        return cls(private, public)

    def verify(self, bundle: BundleManifest) -> None:
        """Raise UnsafeImage if the user has not signed the manifest."""
        for key in self.public:
            with suppress(InvalidSignature):
                key.verify(bundle.signature, bundle.signed, PKCS1v15(), SHA1())  # noqa: S303 - the form's own
                return
        raise UnsafeImage(
            "the signature of the bundle's manifest is invalid, or not by the owner of a certificate"
            " (--certificate; without it: of --key)"
        )

    def decrypt(self, bundle: BundleManifest) -> tuple[bytes, bytes]:
        """Return key and initialization vector.

        Raises:
            UnsafeImage: the private key is another; nothing tells more.
        """
        for encrypted in bundle.keys:
            values = [self._decrypt(text) for text in (encrypted.key, encrypted.vector)]
            if all(map(_AES_KEY.fullmatch, values)):
                key, vector = (bytes.fromhex(value.decode()) for value in values)
                return key, vector
        raise UnsafeImage("the bundle cannot be decrypted with this key (--key)")

    def _decrypt(self, text: bytes) -> bytes:
        try:
            return self.private.decrypt(text, PKCS1v15())
        except ValueError:
            return b""
