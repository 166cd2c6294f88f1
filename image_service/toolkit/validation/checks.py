"""The table of checks."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import attrs

from image_service.core.errors import FormatError
from image_service.toolkit.validation import disk_checks, linux_checks, windows_checks
from image_service.toolkit.validation.platforms import PLATFORMS, Platform
from image_service.toolkit.validation.verdicts import CannotTell, CheckResult, Finding, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable

    from image_service.toolkit.validation.facts import DiskFacts

Judge: TypeAlias = "Callable[[DiskFacts, Platform], Finding]"

_ALL = frozenset(PLATFORMS)


@attrs.frozen
class Check:
    """A check.

    Args:
        name: in reports; stays the same for programs.
        judge: looks at the facts; raises CannotTell to skip, FormatError for damage.
        platforms: names of those for which it is made.
    """

    name: str
    judge: Judge
    platforms: frozenset[str] = _ALL

    def run(self, facts: DiskFacts, platform: Platform) -> CheckResult:
        """Return the finding."""
        try:
            finding = self.judge(facts, platform)
        except CannotTell as reason:
            return CheckResult(self.name, Verdict.SKIP, str(reason))
        except FormatError as error:
            return CheckResult(self.name, Verdict.FAIL, error.detail)
        return CheckResult(self.name, finding.verdict, finding.reason)


CHECKS = (
    Check("image-format", disk_checks.check_format),
    Check("disk-size", disk_checks.check_disk_size),
    Check("partition-table", disk_checks.check_partition_table),
    Check("sector-size", disk_checks.check_sector_size),
    Check("boot-mode", disk_checks.check_boot_mode),
    Check("architecture", disk_checks.check_architecture),
    Check("root-file-system", linux_checks.check_root_file_system),
    Check("fstab", linux_checks.check_fstab),
    Check("initrd-storage-driver", linux_checks.check_storage_driver),
    Check("initrd-network-driver", linux_checks.check_network_driver),
    Check("kernel-console", linux_checks.check_console),
    Check("agent", linux_checks.check_agent, _ALL - {"baremetal"}),
    Check("ignition-platform", linux_checks.check_ignition_platform),
    Check("ignition-first-boot", linux_checks.check_first_boot),
    Check("windows-ntfs", windows_checks.check_ntfs),
    Check("windows-bcd", windows_checks.check_bcd),
    Check("windows-storage-driver", windows_checks.check_windows_storage),
    Check("windows-network-driver", windows_checks.check_windows_network, _ALL - {"baremetal"}),
)
"""All checks of a safe image, in the order of reports."""
