"""Descriptors that are open for as long as somebody may read by them.

A base image that another has superseded goes on being read, by answers that are under way and by mounts that
may come back. Nobody counts them: the descriptor ends with the last reference to its file.
"""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from image_service.files.base_file import BaseFile


class OpenFiles:
    """Files whose descriptors are closed once each."""

    def __init__(self) -> None:
        self._closers: list[weakref.finalize[[int], BaseFile]] = []

    def own(self, file: BaseFile) -> None:
        """Take charge of a file's descriptor.

        Args:
            file: just opened.
        """
        self._closers = [closer for closer in self._closers if closer.alive]
        self._closers.append(weakref.finalize(file, os.close, file.descriptor))

    def __len__(self) -> int:
        """How many are open."""
        return sum(closer.alive for closer in self._closers)

    def close(self) -> None:
        """Close those that are still open, whoever refers to them: the service ends."""
        for closer in self._closers:
            closer()
        self._closers.clear()
