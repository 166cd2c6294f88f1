"""Checks of configs by the programs of their families, where these are installed."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from twisted.logger import Logger

from image_service.common.programs.validation import find_fault
from image_service.core.errors import ConfigInvalid, Unavailable

if TYPE_CHECKING:
    from image_service.common.concurrency.interruption import Interruption
    from image_service.core.families.live.family import LiveFamily

_log = Logger()


def has_program(family: LiveFamily) -> bool:
    """Return True if `check_by_program` starts one."""
    return family.validator is not None and shutil.which(family.validator.name) is not None


def check_by_program(config: bytes, family: LiveFamily, interruption: Interruption) -> None:
    """Refuse a config that the program of its family does not accept. Blocks its thread.

    A config that the program cannot check is accepted, as where it is not installed.

    Raises:
        ConfigInvalid: says where and what, without the words of the config.
        Interrupted: the service stops.
    """
    validator = family.validator
    if validator is None:
        return
    try:
        fault = find_fault(validator.command, validator.fault, config, interruption)
    except Unavailable as error:
        _log.warn("a {config} was not checked by its program: {reason}", config=family.config, reason=error)
        return
    if fault:
        raise ConfigInvalid(f"{validator.name} does not accept the {family.config}: {fault}")
