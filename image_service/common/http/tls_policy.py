"""The TLS policy of a cluster for listeners: a least version, and cipher suites by their IANA names."""

from __future__ import annotations

import re
from typing import Final

import attrs

VERSIONS: Final = ("VersionTLS10", "VersionTLS11", "VersionTLS12", "VersionTLS13")
"""As Kubernetes names them."""

_TLS_1_3 = {
    "TLS_AES_128_GCM_SHA256",
    "TLS_AES_256_GCM_SHA384",
    "TLS_CHACHA20_POLY1305_SHA256",
    "TLS_AES_128_CCM_SHA256",
    "TLS_AES_128_CCM_8_SHA256",
}
_EXCHANGES = (
    r"(?:RSA|DH_DSS|DH_RSA|DHE_DSS|DHE_RSA|DH_anon|ECDH_ECDSA|ECDH_RSA|ECDHE_ECDSA|ECDHE_RSA|ECDH_anon|PSK"
    r"|DHE_PSK|PSK_DHE|RSA_PSK|ECDHE_PSK|KRB5|SRP_SHA(?:_RSA|_DSS)?)(?:_EXPORT)?"
)
_CIPHER = (
    r"(?:(?:AES|CAMELLIA|ARIA)_(?:128|256)_(?:CBC|GCM|CCM|CCM_8)|CHACHA20_POLY1305|3DES_EDE_CBC|DES_CBC"
    r"|RC4_128|SEED_CBC|IDEA_CBC|NULL)"
)
_TLS_1_2 = re.compile(
    f"TLS_(?P<exchange>{_EXCHANGES})_WITH_(?P<cipher>{_CIPHER})(?:_(?P<hash>MD5|SHA|SHA256|SHA384))?"
)
_WITHOUT_CERTIFICATE = re.compile("PSK|SRP|KRB5|anon|NULL|EXPORT")
_OF_OPENSSL = {"CHACHA20_POLY1305": "CHACHA20-POLY1305", "3DES_EDE_CBC": "DES-CBC3", "RC4_128": "RC4"}


@attrs.frozen
class TlsPolicy:
    """What listeners accept.

    Args:
        min_version: one of `VERSIONS`.
        suites: IANA names; empty: those of this service.
    """

    min_version: str = "VersionTLS12"
    suites: tuple[str, ...] = ()

    @property
    def allows_1_2(self) -> bool:
        """Whether TLS 1.2 is accepted. Older versions are not, at the security level of OpenSSL."""
        return self.min_version != "VersionTLS13"

    @property
    def suites_1_3(self) -> tuple[str, ...]:
        """Those of TLS 1.3 that OpenSSL offers; empty: all."""
        return tuple(name for name in self.suites if name in _TLS_1_3 and not self.is_missing(name))

    @property
    def ciphers_1_2(self) -> tuple[str, ...]:
        """OpenSSL's names of those before TLS 1.3 that it offers."""
        return tuple(
            openssl_name(name) for name in self.suites if name not in _TLS_1_3 and not self.is_missing(name)
        )

    @property
    def missing(self) -> tuple[str, ...]:
        """The suites that this OpenSSL does not offer."""
        return tuple(filter(self.is_missing, self.suites))

    @staticmethod
    def is_missing(name: str) -> bool:
        """Return True if OpenSSL does not offer a suite to a server with a certificate."""
        if _WITHOUT_CERTIFICATE.search(name):
            return True
        from OpenSSL import SSL  # noqa: PLC0415 - slow to import; a probe by command has no suites

        context = SSL.Context(SSL.TLS_SERVER_METHOD)
        try:
            if name in _TLS_1_3:
                context.set_tls13_ciphersuites(name.encode())
            else:
                context.set_cipher_list(openssl_name(name).encode())
        except SSL.Error:
            return True
        return False


def parse_version(text: str) -> str:
    """Return one of `VERSIONS`, which may be in any case; ValueError for another text."""
    for version in VERSIONS:
        if text.casefold() == version.casefold():
            return version
    raise ValueError(f"must be one of {', '.join(VERSIONS)}")


def parse_suites(text: str) -> tuple[str, ...]:
    """Return IANA names that commas separate.

    Raises:
        ValueError: one is not the name of a suite, or OpenSSL offers none of them.
    """
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    unknown = [name for name in names if name not in _TLS_1_3 and not _TLS_1_2.fullmatch(name)]
    if unknown:
        raise ValueError(
            f"must be IANA's names of suites, such as TLS_AES_128_GCM_SHA256; {unknown[0]!a:.80} is none"
        )
    if names and len(TlsPolicy(suites=names).missing) == len(names):
        raise ValueError("must have a suite that OpenSSL offers here, and has none")
    return names


def openssl_name(name: str) -> str:
    """Return what OpenSSL calls a suite of TLS 1.2 or older."""
    found = _TLS_1_2.fullmatch(name)
    if found is None:
        raise ValueError(f"{name} is not a suite of TLS 1.2")
    exchange, cipher, digest = found["exchange"], found["cipher"], found["hash"]
    cipher = _OF_OPENSSL.get(cipher) or re.sub(r"^(AES|CAMELLIA|ARIA)_(\d+)", r"\1\2", cipher)
    cipher = cipher.removesuffix("_CBC").replace("_8", "8").replace("_", "-")
    parts = [] if exchange == "RSA" else [exchange.replace("_", "-")]
    parts.append(cipher)
    if digest and cipher != "CHACHA20-POLY1305":
        parts.append(digest)
    return "-".join(parts).replace("ECDHE-RSA-ARIA", "ECDHE-ARIA")
