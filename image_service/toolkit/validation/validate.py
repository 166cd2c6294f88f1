"""Validates a disk image for a platform."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import BaseImageError
from image_service.toolkit.disks.digest import sha256_of
from image_service.toolkit.disks.opening import open_image
from image_service.toolkit.validation.boot import try_boot
from image_service.toolkit.validation.checks import CHECKS
from image_service.toolkit.validation.facts import DiskFacts
from image_service.toolkit.validation.verdicts import CheckResult, Verdict

if TYPE_CHECKING:
    from pathlib import Path

    from image_service.toolkit.validation.boot import BootTrial
    from image_service.toolkit.validation.platforms import Platform
    from image_service.toolkit.workspace.workspace import Workspace

_SAFE = "image-safe"


@attrs.frozen
class Validation:
    """The verdicts about an image.

    Args:
        checks: in the order of the table.
        format: of the image; None: it is not safe.
        size: bytes of the file.
        virtual_size: bytes of the disk; None: the image is not safe.
        sha256: of the file; None: it was not asked for, or the image is not safe.
        console: the last lines of the console, if the disk was booted.
    """

    checks: tuple[CheckResult, ...]
    format: str | None
    size: int
    virtual_size: int | None
    sha256: str | None
    console: tuple[str, ...] = ()

    def count(self, verdict: Verdict) -> int:
        """Return how many checks have a verdict."""
        return sum(check.verdict is verdict for check in self.checks)


def validate(  # noqa: PLR0913 - independent options
    path: Path,
    platform: Platform,
    workspace: Workspace,
    *,
    declared: str | None = None,
    trial: BootTrial | None = None,
    digest: bool = True,
) -> Validation:
    """Return the verdicts about a disk image.

    Args:
        declared: its format; None: as detected.
        trial: boot it like this; None: do not boot it.
        digest: compute the SHA-256 of the file.

    Raises:
        MissingDependency: qemu, which the trial needs, is not installed.
        OSError: the file cannot be read.
    """
    checks = [check for check in CHECKS if platform.name in check.platforms]
    with ExitStack() as stack:
        try:
            image = stack.enter_context(open_image(path, declared, pace=workspace.pace))
            facts = DiskFacts(image, platform, workspace)
        except BaseImageError as error:
            return _refuse(path, [check.name for check in checks], error)
        results = [CheckResult(_SAFE, Verdict.OK, "no structure of the image refers to anything outside it")]
        for check in checks:
            workspace.check()
            results.append(check.run(facts, platform))
        console: tuple[str, ...] = ()
        if trial:
            result, console = try_boot(facts, platform, trial, workspace)
            results.append(result)
        sha256 = sha256_of(image.descriptor, workspace.pace) if digest else None
        size = image.disk.virtual_size
        return Validation(tuple(results), image.content, image.size, size, sha256, console)


def _refuse(path: Path, names: list[str], error: BaseImageError) -> Validation:
    skipped = [
        CheckResult(name, Verdict.SKIP, "the image is not safe: its disk is not read") for name in names
    ]
    refused = CheckResult(_SAFE, Verdict.FAIL, error.detail)
    return Validation((refused, *skipped), None, path.stat().st_size, None, None)
