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
    from collections.abc import Mapping, Sequence
    from contextlib import ExitStack
    from pathlib import Path


_MANY_CLIENTS = {"MAX_CONNECTIONS": str(OPEN_FILES - 1000), "MAX_CONCURRENT_REQUESTS": str(OPEN_FILES)}


@attrs.frozen
class Effort:
    """How much is measured.

    Args:
        rounds: of each comparison.
        seconds: of a round and server.
        megabytes: MiB of the base image.
        infra_envs: whose first requests are timed.
        readers: slow ones, fewer and more.
        reader_seconds: for which these read.
        sparse_gibibytes: of two base images with nothing in them.
    """

    rounds: int = 5
    seconds: int = 4
    megabytes: int = 970
    infra_envs: int = 200
    readers: tuple[int, int] = (1_000, 10_000)
    reader_seconds: int = 16
    sparse_gibibytes: tuple[int, int] = (1, 60)


QUICK = Effort(
    rounds=1,
    seconds=1,
    megabytes=16,
    infra_envs=5,
    readers=(10, 50),
    reader_seconds=2,
    sparse_gibibytes=(1, 2),
)
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
        """Those that are compared, started once for all races."""
        return self.start_servers(self._stack)

    def start_servers(self, stack: ExitStack) -> tuple[Server, ...]:
        """Start this service and nginx, as far as they are wanted, and give them with the peers."""
        started = [self.start_service(stack)] if self.wants(SERVICE) else []
        if self.wants(NGINX):
            started.append(start_nginx(stack, self.directory, self.image, self.certificate))
        return (*started, *(peer for peer in self._peers if self.wants(peer.name)))

    def start_service(
        self,
        stack: ExitStack,
        environment: Mapping[str, str] | None = None,
        directory: Path | None = None,
        images: Sequence[Path] = (),
    ) -> Server:
        """Start this service with its own defaults, but for the number of clients.

        Args:
            stack: ends it.
            environment: more variables.
            directory: of its own; None: the one that all use that do not run at the same time.
            images: base images; empty: the one that all serve.

        Returns:
            the service, which answers.
        """
        return start_service(
            stack,
            directory or self.directory,
            images or [self.image],
            self.certificate,
            {**_MANY_CLIENTS, **(environment or {})},
        )

    def wants(self, name: str) -> bool:
        """Whether a server is to be measured."""
        return not self._names or name in self._names
