"""Programs and Python packages that others use, and the distributions' packages that contain them."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import MissingDependency

if TYPE_CHECKING:
    from collections.abc import Iterable

_ADMINISTRATION = "/usr/sbin:/sbin"  # Debian's users do not have these in PATH


@attrs.frozen
class Dependency:
    """A program, or a Python module, and the packages that contain it.

    Args:
        is_module: True for a Python module, which comes from PyPI as `debian` and `fedora` say.
        files: of something that is not a program: absolute paths, one of which is there.
    """

    name: str
    debian: str
    fedora: str
    is_module: bool = False
    files: tuple[str, ...] = ()

    def find(self) -> str | None:
        """Return its path, or None if it is missing."""
        if self.files:
            return next((path for path in self.files if Path(path).exists()), None)
        if self.is_module:
            spec = find_spec(self.name)
            return (spec.origin or self.name) if spec else None
        return shutil.which(self.name, path=f"{os.environ.get('PATH', os.defpath)}:{_ADMINISTRATION}")


BWRAP = Dependency("bwrap", "bubblewrap", "bubblewrap")
PRLIMIT = Dependency("prlimit", "util-linux", "util-linux-core")
SETPRIV = Dependency("setpriv", "util-linux", "util-linux")
UNSHARE = Dependency("unshare", "util-linux", "util-linux-core")


def require(dependencies: Iterable[Dependency]) -> None:
    """Raise MissingDependency if some are missing; it names all of them."""
    missing = [dependency for dependency in dependencies if not dependency.find()]
    if missing:
        told = ", ".join(f"{item.name} (Debian: {item.debian}; Fedora: {item.fedora})" for item in missing)
        raise MissingDependency(f"not installed: {told}")
