"""Compares what hosts read with the bytes that their version must have."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from image_service.tools.loadtest.fleet.splice import SplicedBase, make_config

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@attrs.define
class _ExpectedVersion:
    """What one entity tag of an image may still stand for.

    Args:
        bases: that have all bytes that were read so far.
        answers: numbers of those whose configs do; None: no byte of the config was read yet.
    """

    infra_env: str
    bases: list[SplicedBase]
    answers: list[int] | None = None


class ExpectedImages:
    """Expects the bytes of spliced images, by entity tag.

    A tag stands for one base image and one answer of assisted-service, and does not say which. The first
    reads find that out: a base or an answer that has other bytes is none of the tag's any more. If none is
    left, the bytes are wrong.

    Args:
        infra_envs: of the images, by their numbers.
        bases: that are or were configured.
        answers: returns how many answers there were about an infra-env.
    """

    def __init__(
        self, infra_envs: Sequence[str], bases: Sequence[SplicedBase], answers: Callable[[str], int]
    ) -> None:
        self._infra_envs = infra_envs
        self._bases = bases
        self._answers = answers
        self._numbers: dict[tuple[int, str | None], int] = {}
        self._versions: list[_ExpectedVersion] = []
        self.compared = 0
        """Pieces."""

    @property
    def bases_read(self) -> int:
        """The number of base images whose bytes hosts have got."""
        return len({version.bases[0].path for version in self._versions if len(version.bases) == 1})

    def version(self, image: int, etag: str | None) -> int:
        """Return the number of an image's version."""
        key = image, etag
        if key not in self._numbers:
            self._numbers[key] = len(self._versions)
            self._versions.append(_ExpectedVersion(self._infra_envs[image], list(self._bases)))
        return self._numbers[key]

    def check(self, version: int, start: int, data: bytes) -> int | None:
        """Return `start` if a version cannot have these bytes there, or None."""
        self.compared += 1
        expected, stop = self._versions[version], start + len(data)
        if not any(base.touches_config(start, stop) for base in expected.bases):
            left = [base for base in expected.bases if base.read(start, stop) == data]
            if not left:
                return start
            expected.bases = left
            return None
        infra_env = expected.infra_env
        answers = expected.answers or range(1, self._answers(infra_env) + 1)
        pairs = [
            (base, answer)
            for answer in answers
            for base in expected.bases
            if base.read(start, stop, make_config(infra_env, answer)) == data
        ]
        if not pairs:
            return start
        expected.bases = [base for base in expected.bases if any(base is each for each, _ in pairs)]
        expected.answers = sorted({answer for _, answer in pairs})
        return None
