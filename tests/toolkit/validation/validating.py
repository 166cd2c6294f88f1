"""Validates disks for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from image_service.toolkit.validation.platforms import PLATFORMS
from image_service.toolkit.validation.validate import validate
from image_service.toolkit.workspace.limits import Limits
from image_service.toolkit.workspace.progress import Progress
from image_service.toolkit.workspace.workspace import Workspace

if TYPE_CHECKING:
    from pathlib import Path

    from image_service.toolkit.validation.boot import BootTrial
    from image_service.toolkit.validation.validate import Validation


def validation(image: Path, platform: str, trial: BootTrial | None = None) -> Validation:
    """Validate an image with a scratch directory beside it."""
    scratch = image.parent / "scratch"
    scratch.mkdir(exist_ok=True)
    with Workspace(scratch, Limits(), Progress(lambda _phase, _done, _total: None)) as workspace:
        return validate(image, PLATFORMS[platform], workspace, trial=trial, digest=False)


def verdicts(image: Path, platform: str) -> dict[str, tuple[str, str]]:
    """Return verdict and reason by the name of the check."""
    return {check.name: (check.verdict.value, check.reason) for check in validation(image, platform).checks}
