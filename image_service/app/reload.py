"""Reload at SIGHUP: the service reads files again, checks all of them, and applies or refuses all.

These are the files that variables name as ``@FILE``, certificates, keys and CAs. The environment of a process
does not change.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import attrs
from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.logger import Logger

from image_service.core.errors import ConfigurationError
from image_service.settings import parsers
from image_service.settings.settings import Settings, read_texts

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from image_service.app.service_manager import ServiceManager

_log = Logger()


@attrs.frozen
class Configuration:
    """Settings, and the contents of the files that variables name, by the names of the variables."""

    settings: Settings
    texts: Mapping[str, str] = attrs.field(repr=False)  # may hold credentials


def read_configuration(environ: Mapping[str, str], *, standalone: bool) -> Configuration:
    """Read everything again, each file once: serving processes get the texts that were checked.

    Raises:
        ConfigurationError: something is not valid; names all faults.
    """
    read_file = cache(parsers.file_content)
    settings = Settings.from_environment(environ, standalone=standalone, read_file=read_file)
    return Configuration(settings, read_texts(environ, read_file))


class Reloader:
    """Reloads one at a time.

    Args:
        read: reads the configuration; raises ConfigurationError.
        apply: replaces the configuration in use, and returns the names of the changed files; raises
            ConfigurationError if it stays, CancelledError if the service stops.
    """

    def __init__(
        self,
        read: Callable[[], Configuration],
        apply: Callable[[Configuration], Awaitable[Iterable[str]]],
        manager: ServiceManager,
    ) -> None:
        self._read = read
        self._apply = apply
        self._manager = manager
        self._is_requested = False
        self._running: Deferred[None] = succeed(None)
        self.texts: Mapping[str, str] = {}
        """The contents of files that are in use, by the names of the variables."""

    def request(self) -> None:
        """Reload; while another reload is running, once more after it."""
        self._is_requested = True
        if self._running.called:
            self._running = Deferred.fromCoroutine(self._run())

    async def _run(self) -> None:
        while self._is_requested:
            self._is_requested = False
            self._manager.reloading()
            try:
                await self._reload()
            except CancelledError:
                _log.info("not reloaded: the service is shutting down")
            except ConfigurationError as error:
                _log.error(
                    "cannot reload, keeping the previous configuration: {faults}",
                    faults="; ".join(error.detail.splitlines()),
                )
            except Exception:  # noqa: BLE001 - a defect must not end the reloads
                _log.failure("unexpected error while reloading")
            self._manager.reloaded()

    async def _reload(self) -> None:
        configuration = self._read()
        files = await self._apply(configuration)
        variables = [name for name, text in configuration.texts.items() if text != self.texts.get(name)]
        self.texts = configuration.texts
        changed = ", ".join((*variables, *files))
        _log.info("reloaded: {changed}", changed=f"{changed} changed" if changed else "nothing changed")
