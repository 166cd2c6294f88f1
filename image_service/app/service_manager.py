"""Notifies the service manager, such as systemd, of the state of the process: see sd_notify(3)."""

from __future__ import annotations

import os
import socket
import time
from typing import TYPE_CHECKING

from twisted.internet.task import LoopingCall
from twisted.logger import Logger

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping

    from twisted.internet.interfaces import IReactorTime

_log = Logger()

_VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


def render_message(fields: Mapping[str, object]) -> bytes:
    """Return the datagram of a notification."""
    return "\n".join(f"{name}={value}" for name, value in fields.items()).encode()


def parse_address(text: str) -> str | None:
    """Return the address of ``NOTIFY_SOCKET``, a path or abstract (``@NAME``); None: there is none."""
    if text.startswith("@"):
        return f"\0{text[1:]}"
    return text if text.startswith("/") else None


def watchdog_seconds(environ: Mapping[str, str], process: int) -> float | None:
    """Return the interval of notifications to the watchdog: half its timeout; None: it does not watch this.

    Args:
        environ: with ``WATCHDOG_USEC`` and, unless it holds for any process, ``WATCHDOG_PID``.
    """
    microseconds, watched = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID") or str(process)
    if not microseconds.isdecimal() or int(microseconds) == 0 or watched != str(process):
        return None
    return int(microseconds) / 1e6 / 2


class ServiceManager:
    """The service manager that started this process; without one, nothing is sent.

    Args:
        environ: the environment of the process. The variables of the protocol are removed from it, because
            child processes must not notify in the place of this one.
    """

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        variables = {name: environ.pop(name, "") for name in _VARIABLES}
        self._address = parse_address(variables["NOTIFY_SOCKET"])
        self._watchdog_seconds = watchdog_seconds(variables, os.getpid()) if self._address else None
        self._status = ""
        self._is_ready = False
        self._is_stopping = False

    def start_watchdog(self, clock: IReactorTime) -> None:
        """Notify the watchdog from now on, until the process exits, as long as its reactor runs."""
        if self._watchdog_seconds is not None:
            loop = LoopingCall(self._notify, WATCHDOG=1)
            loop.clock = clock
            loop.start(self._watchdog_seconds)

    def ready(self) -> None:
        """Notify once that the service serves, unless it stops."""
        if not (self._is_ready or self._is_stopping):
            self._is_ready = True
            self._notify(READY=1)

    def reloading(self) -> None:
        """Notify that a reload begins, if the service is ready; ``reloaded`` is to follow."""
        if self._is_ready:
            self._notify(RELOADING=1, MONOTONIC_USEC=time.monotonic_ns() // 1000)

    def reloaded(self) -> None:
        """Notify that the reload is over, whether it succeeded or failed, unless the service stops."""
        if self._is_ready:
            self._notify(READY=1)

    def stopping(self) -> None:
        """Notify that the service stops; a start or a reload that ends later is not notified."""
        self._is_ready, self._is_stopping = False, True
        self._notify(STOPPING=1, STATUS="shutting down")

    def set_status(self, text: str) -> None:
        """Show a line in the status of the service, unless it is shown already, or the service stops."""
        if text != self._status and not self._is_stopping:
            self._status = text
            self._notify(STATUS=text)

    def _notify(self, **fields: object) -> None:
        if self._address is None:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as notifications:
                notifications.sendto(render_message(fields), self._address)
        except OSError as error:
            _log.warn("cannot notify the service manager: {reason}", reason=error.strerror)
