"""The content of a customization."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

import attrs

from image_service.core.families.coreos.ignition import check_ignition
from image_service.core.families.coreos.kargs import KernelArgument, Operation, edit_arguments
from image_service.core.families.coreos.network_keyfiles import check_keyfile

if TYPE_CHECKING:
    from collections.abc import Mapping


@attrs.frozen
class DiskCustomization:
    """A config, arguments and files to be written into a CoreOS disk.

    Args:
        ignition: the Ignition config; None: none is added.
        platform: of Ignition; None: that of the image stays.
        append: kernel arguments, after those that the image and its platform have.
        delete: kernel arguments.
        keyfiles: of NetworkManager, by file name.
    """

    ignition: bytes | None = attrs.field(default=None, repr=False)
    platform: str | None = None
    append: tuple[str, ...] = attrs.field(default=(), repr=False)
    delete: tuple[str, ...] = attrs.field(default=(), repr=False)
    keyfiles: Mapping[str, bytes] = attrs.field(factory=dict, repr=False)

    @property
    def edits(self) -> list[KernelArgument]:
        """Return the edits of the kernel arguments."""
        return [
            *(KernelArgument(Operation.DELETE, value) for value in self.delete),
            *(KernelArgument(Operation.APPEND, value) for value in self.append),
        ]

    def check(self) -> None:
        """Raise Unprocessable if a part of it is invalid."""
        if self.ignition is not None:
            check_ignition(self.ignition)
        edit_arguments("", self.edits)
        for name, content in self.keyfiles.items():
            check_keyfile(name, content)

    def digest(self) -> str:
        """Return a SHA-256 of all of it."""
        config = self.ignition and hashlib.sha256(self.ignition).hexdigest()
        parts = [config, self.platform, self.append, self.delete]
        keyfiles = {name: hashlib.sha256(content).hexdigest() for name, content in self.keyfiles.items()}
        return hashlib.sha256(json.dumps([*parts, keyfiles], sort_keys=True).encode()).hexdigest()
