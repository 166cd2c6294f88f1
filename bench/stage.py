"""Where scenarios run: the effort, the base images and the servers, made when first asked for."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING

import attrs

from bench import base_images
from bench.servers import NGINX, OPEN_FILES, SERVICE, Server, start_nginx, start_service
from image_service.standalone.certificates import prepare_certificates

if TYPE_CHECKING:
    from contextlib import ExitStack
    from pathlib import Path


@attrs.frozen
class Effort:
    """How much is measured.

    Args:
        rounds: of each comparison.
        seconds: of a round and server.
        megabytes: MiB of the base image.
    """

    rounds: int
    seconds: int
    megabytes: int


QUICK = Effort(rounds=1, seconds=1, megabytes=16)
"""Shows that everything runs, and nothing else."""


class Stage:
    """Where scenarios run.

    Args:
        effort: how much is measured.
        directory: for images, data, configurations and logs.
        stack: ends what is started.
        peers: other servers, which run already.
        names: of the servers to measure; empty: all.
    """

    def __init__(
        self,
        effort: Effort,
        directory: Path,
        stack: ExitStack,
        peers: tuple[Server, ...] = (),
        names: frozenset[str] = frozenset(),
    ) -> None:
        self.effort = effort
        self.directory = directory
        self._stack = stack
        self._peers = peers
        self._names = names

    @cached_property
    def image(self) -> Path:
        """The base image that all serve."""
        return base_images.dense_image(self.directory, self.effort.megabytes)

    @cached_property
    def certificate(self) -> Path:
        """The certificate that all show, with its key."""
        return prepare_certificates(self.directory, datetime.now(UTC)).server_file

    @cached_property
    def servers(self) -> tuple[Server, ...]:
        """Those that are compared: this service, nginx and the peers, as far as they are wanted."""
        started = [self.service] if self.wants(SERVICE) else []
        if self.wants(NGINX):
            started.append(start_nginx(self._stack, self.directory, self.image, self.certificate))
        return (*started, *(peer for peer in self._peers if self.wants(peer.name)))

    @cached_property
    def service(self) -> Server:
        """This service, with its own defaults but for the number of readers."""
        environment = {"MAX_CONNECTIONS": str(OPEN_FILES - 1000), "MAX_CONCURRENT_REQUESTS": str(OPEN_FILES)}
        return start_service(self._stack, self.directory, [self.image], self.certificate, environment)

    def wants(self, name: str) -> bool:
        """Whether a server is to be measured."""
        return not self._names or name in self._names
