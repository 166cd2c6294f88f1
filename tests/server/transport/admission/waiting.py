"""Slots without connections: downloads that ask for one, and what each was told."""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest.mock import Mock

import attrs
from twisted.internet.task import Clock

from image_service.server.transport.admission.counts import Counts
from image_service.server.transport.admission.rate import DownloadRate
from image_service.server.transport.admission.slot_pool import LocalSlotPool
from image_service.server.transport.admission.slot_queue import Slot
from image_service.server.transport.admission.slots import SLOT_TIMEOUT_SECONDS, Slots
from tests.server.transport.null_observer import NULL_OBSERVER

if TYPE_CHECKING:
    from image_service.server.transport.sending.observer import Observer

ADDRESS = "192.0.2.1"


def make_slots(
    limit: int,
    queue_length: int = 400,
    *,
    min_rate: int = 0,
    clock: Clock | None = None,
    observer: Observer = NULL_OBSERVER,
) -> Slots:
    """Make the slots of one process."""
    return Slots(
        LocalSlotPool(limit, Counts()),
        queue_length,
        SLOT_TIMEOUT_SECONDS,
        min_rate=min_rate,
        clock=clock or Clock(),
        observer=observer,
    )


def make_slot(address: str = ADDRESS, *, is_public: bool = False) -> Slot:
    """Make a slot whose download has no connection."""
    return Slot(address, is_public, DownloadRate(Mock()), Mock())


def acquire(slots: Slots, address: str = ADDRESS, *, began: float = 0, is_public: bool = False) -> Slot:
    """Ask for a slot."""
    slot = make_slot(address, is_public=is_public)
    slots.acquire(slot, began)
    return slot


@attrs.define(eq=False)
class Transfer:
    """The TCP connection of a download, as `tcp` reports it.

    Args:
        acknowledged: bytes.
        queued: bytes.
    """

    acknowledged: int = 0
    queued: int = 1
