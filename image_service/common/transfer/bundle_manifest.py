"""The manifest of an image bundle, EC2's and Eucalyptus' older form: encrypted parts beside it, and digests.

    <manifest>
      <version>2007-10-10</version>
      <machine_configuration><architecture/>…</machine_configuration>
      <image>
        <digest algorithm="SHA1">of the tar</digest>
        <size>of the image</size>
        <bundled_size>of all parts</bundled_size>
        <ec2_encrypted_key algorithm="AES-128-CBC"/> <user_encrypted_key algorithm="AES-128-CBC"/>
        <ec2_encrypted_iv/> <user_encrypted_iv/>
        <parts count="N">
          <part index="0"><filename/><digest algorithm="SHA1"/></part>
          …
      </image>
      <signature>RSA-SHA1 of the bytes of machine_configuration and image</signature>
    </manifest>

Digests, keys and signature are hexadecimal. What was signed is cut out as it is, and parsed on its own: all
values come from the bytes whose signature is verified.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import attrs

from image_service.common.transfer.xml_values import (
    MAX_PARTS,
    number_of,
    only_child,
    parse_xml,
    parts_of,
    text_of,
)
from image_service.core.errors import FormatError

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

_VERSION = "2007-10-10"
_SIGNED = tuple(
    re.compile(rb"<%s>.*?</%s>" % (tag, tag), re.DOTALL) for tag in (b"machine_configuration", b"image")
)
_FILE_NAME = re.compile("[A-Za-z0-9_][A-Za-z0-9_.+ -]{0,254}")
_SHA1 = re.compile("[0-9a-fA-F]{40}")
_HEXADECIMAL = re.compile("(?:[0-9a-fA-F]{2}){1,2048}")
_CIPHER = "AES-128-CBC"
_ELEMENTS_OF_PART = 3
_OTHER_ELEMENTS = 256
_MAX_IMAGE_BYTES = 1 << 50


@attrs.frozen
class BundlePart:
    """A part of a bundle.

    Args:
        file_name: a plain one; beside the manifest.
        sha1: of its bytes, hexadecimal.
    """

    file_name: str
    sha1: str


@attrs.frozen
class EncryptedKey:
    """Key and initialization vector, encrypted for one RSA key."""

    key: bytes
    vector: bytes


@attrs.frozen
class BundleManifest:
    """A manifest whose signature is not verified yet.

    Args:
        size: bytes of the image.
        bundled_size: bytes of all parts.
        sha1: of the tar, hexadecimal.
        keys: the user's and the service's.
        parts: in order.
        signed: what the signature is of.
        signature: of the user.
    """

    size: int
    bundled_size: int
    sha1: str
    keys: tuple[EncryptedKey, ...]
    parts: tuple[BundlePart, ...]
    signed: bytes = attrs.field(repr=False)
    signature: bytes


def is_bundle(text: bytes) -> bool:
    """Return True if a manifest is to be read as that of a bundle."""
    return b"<machine_configuration>" in text


def parse_bundle_manifest(text: bytes) -> BundleManifest:
    """Return a manifest; FormatError names what is invalid."""
    limit = MAX_PARTS * _ELEMENTS_OF_PART + _OTHER_ELEMENTS
    root = parse_xml(text, "the manifest", limit)
    if root.tag != "manifest" or text_of(root, "version") != _VERSION:
        raise FormatError(f"the manifest of the bundle is not of version {_VERSION}")
    found = [pattern.search(text) for pattern in _SIGNED]
    signed = b"".join(match[0] for match in found if match)
    if not all(found):
        raise FormatError("the manifest of the bundle has no machine_configuration or no image")
    image = only_child(parse_xml(b"<signed>" + signed + b"</signed>", "what is signed", limit), "image")
    size, bundled_size = number_of(image, "size"), number_of(image, "bundled_size")
    if not 0 < size <= _MAX_IMAGE_BYTES or not 0 < bundled_size <= _MAX_IMAGE_BYTES:
        raise FormatError(f"the bundle's size or bundled_size is not from 1 to {_MAX_IMAGE_BYTES} bytes")
    return BundleManifest(
        size=size,
        bundled_size=bundled_size,
        sha1=_sha1_of(image),
        keys=tuple(_key_of(image, owner) for owner in ("user", "ec2")),
        parts=_parse_parts(image),
        signed=signed,
        signature=_bytes_of(root, "signature"),
    )


def _parse_parts(image: Element) -> tuple[BundlePart, ...]:
    parts = []
    for index, each in enumerate(parts_of(image)):
        name = text_of(each, "filename")
        if not _FILE_NAME.fullmatch(name):
            raise FormatError(f"the file name of the bundle's part {index} is not a plain name")
        parts.append(BundlePart(name, _sha1_of(each)))
    return tuple(parts)


def _sha1_of(parent: Element) -> str:
    digest = text_of(parent, "digest")
    if only_child(parent, "digest").get("algorithm") != "SHA1" or not _SHA1.fullmatch(digest):
        raise FormatError(f"a digest in {parent.tag} of the bundle is not a SHA1")
    return digest.lower()


def _key_of(image: Element, owner: str) -> EncryptedKey:
    tag = f"{owner}_encrypted_key"
    if only_child(image, tag).get("algorithm") != _CIPHER:
        raise FormatError(f"the bundle's {tag} is not of {_CIPHER}")
    return EncryptedKey(_bytes_of(image, tag), _bytes_of(image, f"{owner}_encrypted_iv"))


def _bytes_of(parent: Element, tag: str) -> bytes:
    text = text_of(parent, tag)
    if not _HEXADECIMAL.fullmatch(text):
        raise FormatError(f"the bundle's {tag} is not hexadecimal, or too long")
    return bytes.fromhex(text)
