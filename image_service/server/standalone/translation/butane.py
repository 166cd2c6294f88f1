"""Butane, which people write, to Ignition, which machines read."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import IgnitionInvalid, InvalidParameter
from image_service.core.families.coreos.ignition import check_ignition
from image_service.server.standalone.translation.translators import Translator

if TYPE_CHECKING:
    from image_service.common.concurrency.interruption import Interruption

BUTANE = "Butane config"
"""Its language, as `LiveFamily.config` names others."""
MAX_BUTANE_BYTES = 4 * 1024 * 1024
_BUTANE = Translator(
    ("butane", "--strict", "--raw"),
    "the config is Butane, and butane is not installed where the service runs; where it is,"
    " `butane --strict <FILE` prints the Ignition config",
)
_PREFIX = "Error translating config: "
_SUMMARIES = ("source config is invalid", "config generated was invalid")


@attrs.frozen
class ButaneConfig:
    """A config of Butane."""

    text: str = attrs.field(repr=False)

    def to_ignition(self, interruption: Interruption) -> str:
        """Translate it, and count warnings as errors. Blocks its thread.

        Raises:
            InvalidParameter: it is invalid, with lines and columns, or butane is not installed.
            Unavailable: butane cannot be run, or takes too long.
            Interrupted: the service stops.
        """
        result = _BUTANE.run(self.text.encode(), interruption)
        if result.status != 0:
            raise InvalidParameter(
                f"the Butane config is invalid: {_BUTANE.fault(result, _join(result.messages))}"
            )
        try:
            check_ignition(result.output)
        except IgnitionInvalid:
            raise InvalidParameter("butane prints no Ignition config for this variant") from None
        return result.output.decode().strip()


def _join(messages: str) -> str:
    """Return the lines of butane's messages as one; a line that ends with a colon goes on in the next one."""
    lines = [line.strip().removeprefix(_PREFIX) for line in messages.splitlines()]
    told = [line for line in lines if line and line not in _SUMMARIES]
    return re.sub(r":; ", ": ", "; ".join(told or lines))
