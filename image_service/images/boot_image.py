"""The boot image: the extents that one URL serves, and their validators."""

from __future__ import annotations

from datetime import datetime  # noqa: TC003 - attrs resolves annotations at run time

import attrs

from image_service.images.extents import ExtentMap  # noqa: TC001 - same


@attrs.frozen(eq=False)
class BootImage:
    """One image.

    Args:
        extents: its bytes.
        etag: strong validator, quotes included: a hash of the base and of the overlays, so every process and
            every replica computes the same.
        modified: the later of the base's date and the customization's, UTC; None: the latter is unknown.
        file_name: the name under which a download is saved.
        is_iso: firmware boots it as a medium.
        is_public: it is the same for everyone.
        content_type: its media type.
    """

    extents: ExtentMap
    etag: str
    modified: datetime | None
    file_name: str
    is_iso: bool = True
    is_public: bool = False
    content_type: str = "application/octet-stream"

    @property
    def size(self) -> int:
        """Bytes."""
        return self.extents.size
