"""The stage of a run: effort, base images and servers, made when first needed."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING

import attrs

from bench import base_images
from bench.servers import CHECKOUT, NGINX, OPEN_FILES, SERVICE, Server, start_nginx, start_service
from image_service.server.standalone.certificates import prepare_certificates

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import ExitStack
    from pathlib import Path


_MANY_CLIENTS = {"MAX_CONNECTIONS": str(OPEN_FILES - 1000), "MAX_CONCURRENT_REQUESTS": str(OPEN_FILES)}


@attrs.frozen
class Effort:
    """The effort of a run.

    Args:
        full: False: small numbers, which only show that everything runs.
        rounds: of each comparison.
        seconds: of a round and server.
        megabytes: MiB of the base image.
    """

    full: bool
    rounds: int
    seconds: int
    megabytes: int


FULL = Effort(full=True, rounds=5, seconds=4, megabytes=970)
SMALL = Effort(full=False, rounds=1, seconds=1, megabytes=16)


@attrs.frozen
class Selection:
    """The servers to measure.

    Args:
        names: empty: all.
        peers: other servers, which run already.
        checkouts: of this service, by name; each is started as a peer.
    """

    names: frozenset[str] = frozenset()
    peers: tuple[Server, ...] = ()
    checkouts: Mapping[str, Path] = attrs.field(factory=dict)

    def includes(self, name: str) -> bool:
        """Return True if a server is to be measured."""
        return not self.names or name in self.names


class Stage:
    """The stage of a run.

    Args:
        effort: how much is measured.
        directory: for images, data, configurations and logs.
        stack: stops the servers.
        selection: the servers to measure.
    """

    def __init__(
        self,
        effort: Effort,
        directory: Path,
        stack: ExitStack,
        selection: Selection | None = None,
    ) -> None:
        self.effort = effort
        self.directory = directory
        self._stack = stack
        self._selection = selection or Selection()

    @cached_property
    def image(self) -> Path:
        """The base image that all serve."""
        return base_images.dense_image(self.directory, self.effort.megabytes)

    @cached_property
    def certificate(self) -> Path:
        """The certificate of all servers, with its key."""
        return prepare_certificates(self.directory, datetime.now(UTC)).server_file

    @cached_property
    def servers(self) -> tuple[Server, ...]:
        """The servers to compare, started once for all comparisons."""
        return self.start_servers(self._stack)

    @property
    def checkouts(self) -> Mapping[str, Path]:
        """Those of this service that are measured, by name."""
        known = {SERVICE: CHECKOUT, **self._selection.checkouts}
        return {name: checkout for name, checkout in known.items() if self._selection.includes(name)}

    def start_servers(self, stack: ExitStack, purpose: str = "compared") -> tuple[Server, ...]:
        """Start nginx and what `start_services` starts; return them and the peers that run already."""
        started = self.start_services(stack, purpose=purpose)
        if self._selection.includes(NGINX):
            started.append(start_nginx(stack, self.directory, self.image, self.certificate))
        return (*started, *(peer for peer in self._selection.peers if self._selection.includes(peer.name)))

    def start_services(
        self, stack: ExitStack, environment: Mapping[str, str] | None = None, purpose: str = "compared"
    ) -> list[Server]:
        """Start the selected ones of this service and its peer checkouts, each with data of its own.

        Args:
            stack: stops them.
            environment: more variables.
            purpose: name of the directory for their data.
        """
        return [
            start_service(
                stack,
                self.directory / purpose / name,
                [self.image],
                self.certificate,
                {**_MANY_CLIENTS, **(environment or {})},
                name=name,
                checkout=checkout,
            )
            for name, checkout in self.checkouts.items()
        ]

    def start_service(
        self,
        stack: ExitStack,
        environment: Mapping[str, str] | None = None,
        directory: Path | None = None,
        images: Sequence[Path] = (),
    ) -> Server:
        """Start this service with its defaults, except for the limits of clients.

        Args:
            stack: stops it.
            environment: more variables.
            directory: of its own; None: that of services which do not run at the same time.
            images: base images; empty: the one that all serve.
        """
        return start_service(
            stack,
            directory or self.directory,
            images or [self.image],
            self.certificate,
            {**_MANY_CLIENTS, **(environment or {})},
        )
