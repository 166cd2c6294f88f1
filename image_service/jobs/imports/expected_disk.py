"""A disk as the request of an import describes it, compared with the manifest of its upload. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from image_service.common.transfer.bundle_manifest import is_bundle, parse_bundle_manifest
from image_service.common.transfer.manifest import GIB, MANIFEST_FORMATS, parse_import_manifest
from image_service.common.transfer.uploaded_parts import bundle_part_url
from image_service.core.errors import Unprocessable, UnsafeImage
from image_service.core.formats.disk.model import DiskFormat

if TYPE_CHECKING:
    from collections.abc import Mapping

    from image_service.common.http.origins import AllowedOrigins
    from image_service.common.transfer.bundle_manifest import BundleManifest
    from image_service.common.transfer.manifest import ImportManifest


@attrs.frozen
class ExpectedDisk:
    """A disk as the arguments of ``await-upload`` describe it.

    Args:
        format: of the image, as `MANIFEST_FORMATS` names it.
        size: bytes of the image, as the request has them.
        volume_bytes: of the volume that must hold the disk.
    """

    format: str
    size: int
    volume_bytes: int

    @classmethod
    def from_arguments(cls, arguments: Mapping[str, Any]) -> ExpectedDisk:
        """Return the disk that an entry of the arguments describes."""
        return cls(str(arguments["format"]), int(arguments["bytes"]), int(arguments["volume_bytes"]))

    def parse_manifest(
        self, text: bytes, manifest_url: str, allowed: AllowedOrigins, *, has_bundle_key: bool
    ) -> ImportManifest | BundleManifest:
        """Return the manifest of the disk's upload, all of whose URLs are allowed.

        Args:
            manifest_url: beside which the parts of a bundle are.
            has_bundle_key: image bundles can be decrypted.

        Raises:
            FormatError: it is not a valid manifest.
            UnsafeImage: it describes another disk than the request, or names a URL that is not allowed.
            Unprocessable: it is that of a bundle, and there is no key.
        """
        if is_bundle(text):
            return self._parse_bundle(text, manifest_url, allowed, has_bundle_key=has_bundle_key)
        manifest = parse_import_manifest(text)
        for name, url in manifest.urls():
            allowed.check(url, name)
        self._compare("file-format", manifest.content, MANIFEST_FORMATS[self.format].value)
        self._compare("size", manifest.size, self.size)
        if manifest.volume_size > self.volume_bytes:
            raise UnsafeImage(
                f"the manifest's volume-size is {manifest.volume_gib} GiB, but the volume of the request has"
                f" {self.volume_bytes // GIB}"
            )
        return manifest

    def _parse_bundle(
        self, text: bytes, manifest_url: str, allowed: AllowedOrigins, *, has_bundle_key: bool
    ) -> BundleManifest:
        if not has_bundle_key:
            raise Unprocessable(
                "the manifest is that of an image bundle, which cannot be decrypted here: BUNDLE_KEY_FILE is"
                " not set"
            )
        bundle = parse_bundle_manifest(text)
        for part in bundle.parts:
            allowed.check(bundle_part_url(manifest_url, part), f"the bundle's part {part.file_name}")
        self._compare("format", DiskFormat.RAW.value, MANIFEST_FORMATS[self.format].value)
        if bundle.size > self.volume_bytes:
            raise UnsafeImage(
                f"the bundle's image has {bundle.size} bytes, more than the {self.volume_bytes} of its volume"
            )
        return bundle

    @staticmethod
    def _compare(name: str, found: object, wanted: object) -> None:
        if found != wanted:
            raise UnsafeImage(f"the manifest's {name} is {found}, but that of the request is {wanted}")
