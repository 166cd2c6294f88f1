"""Customized boot images, streamed and never stored; as a library, of single ISO files."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from image_service.tools.iso.customization import IsoCustomization
    from image_service.tools.iso.iso_file import CustomizedIso, IsoFile, open_iso

__all__ = ["CustomizedIso", "IsoCustomization", "IsoFile", "__version__", "open_iso"]
__version__ = "0.1.0"

_MODULES = {
    "CustomizedIso": "image_service.tools.iso.iso_file",
    "IsoCustomization": "image_service.tools.iso.customization",
    "IsoFile": "image_service.tools.iso.iso_file",
    "open_iso": "image_service.tools.iso.iso_file",
}


def __getattr__(name: str) -> object:
    """Import a name of the library when it is asked for: most programs that import the package use others."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
