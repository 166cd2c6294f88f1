"""The URI of a key of a PKCS#11 token (RFC 7512)."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, unquote_to_bytes

import attrs

EXAMPLE = "pkcs11:token=NAME;object=LABEL?module-path=/PATH/OF/MODULE.so&pin-source=/PATH/OF/PIN"

_SCHEME = "pkcs11:"
_PATH, _QUERY = {"token", "serial", "object", "id", "type"}, {"module-path", "pin-source"}


@attrs.frozen
class TokenUri:
    """A private key of a token, and the library that reaches it.

    Args:
        module: the library of the token's vendor.
        pin_file: its first line is the PIN of the user.
        token: label of the token; None: there is one that fits the rest.
        serial: number of the token; None: the same.
        label: of the key; None: `id` names it.
        id: of the key; None: `label` names it.
    """

    module: Path
    pin_file: Path
    token: str | None
    serial: str | None
    label: str | None
    id: bytes | None

    def read_pin(self) -> str:
        """Return the PIN; OSError if its file cannot be read, ValueError if it is not text."""
        return next(iter(self.pin_file.read_text().splitlines()), "")


def parse_token_uri(text: str) -> TokenUri:
    """Return the key that a URI names; ValueError says what is wrong, without a PIN."""
    if not text.startswith(_SCHEME):
        raise ValueError(f"must be {EXAMPLE}")
    path, _, query = text.removeprefix(_SCHEME).partition("?")
    names = _read(path, ";", _PATH, "path")
    found = _read(query, "&", _QUERY, "query")
    if missing := sorted(_QUERY - found.keys()):
        raise ValueError(f"has no {' and no '.join(missing)} in its query: {EXAMPLE}")
    if not names.keys() & {"object", "id"}:
        raise ValueError(f"must name the key by object or id: {EXAMPLE}")
    if names.get("type", "private") != "private":
        raise ValueError("must name a private key: type=private")
    module, pin_file = (Path(unquote(found[name]).removeprefix("file:")) for name in sorted(_QUERY))
    for file in (module, pin_file):
        if not file.is_absolute():
            raise ValueError(f"has {file} in its query, which is not an absolute path")
    texts = {name: unquote(value) for name, value in names.items()}
    key_id = unquote_to_bytes(names["id"]) if "id" in names else None
    return TokenUri(module, pin_file, texts.get("token"), texts.get("serial"), texts.get("object"), key_id)


def _read(part: str, separator: str, known: set[str], place: str) -> dict[str, str]:
    """Return the attributes of a part, each of which may be there once."""
    found: dict[str, str] = {}
    for attribute in filter(None, part.split(separator)):
        name, equals, value = attribute.partition("=")
        if name == "pin-value":
            raise ValueError("has pin-value, which other processes could read; use pin-source, a file")
        if name not in known or not equals:
            raise ValueError(
                f"has an unknown attribute in its {place}: there may be {', '.join(sorted(known))}"
            )
        if name in found:
            raise ValueError(f"has {name} twice")
        found[name] = value
    return found
