"""Descriptors that stay open as long as anything refers to their file.

A superseded base image is still read, by responses in progress and by mounts. Nothing counts these readers:
the descriptor is closed with the last reference to the file.
"""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from image_service.core.base_file import BaseFile


class OpenFiles:
    """Files whose descriptors are closed once each."""

    def __init__(self) -> None:
        self._closers: list[weakref.finalize[[int], BaseFile]] = []

    def add_file(self, file: BaseFile) -> None:
        """Take ownership of the descriptor of a file that was just opened."""
        self._closers = [closer for closer in self._closers if closer.alive]
        self._closers.append(weakref.finalize(file, os.close, file.descriptor))

    def __len__(self) -> int:
        """Return how many are open."""
        return sum(closer.alive for closer in self._closers)

    def close(self) -> None:
        """Close those that are still open, even if something refers to them: the service stops."""
        for closer in self._closers:
            closer()
        self._closers.clear()
