"""What is verified: files, or URLs, which are fetched into a temporary file."""

from __future__ import annotations

import os
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from image_service.cli.shared.input import STANDARD_INPUT, open_input
from image_service.cli.shared.patience import wait_for
from image_service.common.command_line.progress_bar import ProgressBar
from image_service.common.concurrency.interruption import Interruption
from image_service.common.files.local_file import LocalFile
from image_service.common.http.origins import public_url
from image_service.core.errors import ConfigurationError, Unavailable
from image_service.core.formats.hosts import is_web_url
from image_service.server.catalog.download.origin_client import OriginClient
from image_service.settings.base_images import DownloadSettings
from image_service.settings.proxies import ProxySettings
from image_service.settings.variables import read_group

if TYPE_CHECKING:
    from collections.abc import Iterator

    from image_service.core.base_file import BaseFile

MAX_STATEMENT_BYTES = 16 * 1024 * 1024
_SUFFIX = ".intoto.json"


class Inputs:
    """Opens files and URLs.

    Args:
        ca_file: authorities to trust beside the system's; None: those of the environment.
    """

    def __init__(self, ca_file: Path | None) -> None:
        faults: list[str] = []
        proxies = read_group(ProxySettings, os.environ, faults)
        if faults:
            raise ConfigurationError("\n".join(faults))
        self._client = OriginClient.from_settings(DownloadSettings(ca_file=ca_file), (), proxies)

    @contextmanager
    def open(self, name: str) -> Iterator[BaseFile]:
        """Open a file or a URL for reading at any offset.

        Raises:
            ImageServiceError: it cannot be fetched or read.
            OSError: it cannot be read, or there is no room for it.
        """
        if not is_web_url(name):
            with open_input(name) as file:
                yield file
            return
        with TemporaryFile() as copy:
            with self._client.fetch(name, {}, Interruption()) as response, ProgressBar() as progress:
                for block in response.blocks():
                    copy.write(block)
                    progress.report(copy.tell(), response.length)
            copy.flush()
            yield LocalFile(copy.fileno(), copy.tell(), public_url(name))

    def read_statement(self, name: str, *, is_optional: bool) -> bytes | None:
        """Return the content of a statement, for which a service may need some time.

        Args:
            is_optional: None is returned if a URL has none.
        """
        try:
            return wait_for("the statement", partial(self.read, name))
        except Unavailable:
            if is_optional:
                return None
            raise

    def read(self, name: str) -> bytes:
        """Return the content of a small file or URL; raises as `open`."""
        if is_web_url(name):
            with self._client.fetch(name, {}, Interruption()) as response:
                return response.read_all(MAX_STATEMENT_BYTES)
        with open_input(name) as file:
            return file.read_at(0, MAX_STATEMENT_BYTES)


def find_statement(image: str) -> str | None:
    """Return the name of the statement beside an image; None: there is no such file.

    That of a URL is where image-service serves it.
    """
    if is_web_url(image):
        split = urlsplit(image)
        if split.query:
            return split._replace(query=f"{split.query}&statement=intoto").geturl()
        return f"{image}{_SUFFIX}"
    return f"{image}{_SUFFIX}" if image != STANDARD_INPUT and Path(f"{image}{_SUFFIX}").exists() else None
