"""Wrong bytes are found, whatever version they are of."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import pytest

from image_service.server.standalone.sample import sample_iso
from image_service.tools.loadtest.fleet.expected_images import ExpectedImages
from image_service.tools.loadtest.fleet.splice import SplicedBase, make_config

if TYPE_CHECKING:
    from pathlib import Path

BLOCK = 4096


@attrs.frozen
class World:
    """Two bases, an infra-env with three answers, and what is expected of its image."""

    bases: tuple[SplicedBase, SplicedBase]
    expected: ExpectedImages

    def image(self, base: int, answer: int) -> bytes:
        return self.bases[base].read(0, self.bases[base].size, make_config("i", answer))

    def check(self, etag: str, image: bytes, start: int, stop: int) -> int | None:
        return self.expected.check(self.expected.version(0, etag), start, image[start:stop])

    @property
    def config_at(self) -> int:
        """The first block with bytes of the config."""
        blocks = range(0, self.bases[0].size, BLOCK)
        return next(start for start in blocks if self.bases[0].touches_config(start, start + BLOCK))


@pytest.fixture
def world(tmp_path: Path) -> World:
    bases = []
    for name in ("one", "two"):
        path = tmp_path / f"{name}.iso"
        path.write_bytes(sample_iso() + name.encode() * BLOCK)
        bases.append(SplicedBase.open(path))
    return World((bases[0], bases[1]), ExpectedImages(["i"], bases, lambda _: 3))


@pytest.mark.parametrize("base", [0, 1])
@pytest.mark.parametrize("answer", [1, 3])
def test_all_bytes_of_one_version_are_right(world: World, base: int, answer: int) -> None:
    image = world.image(base, answer)
    for start in range(0, len(image), BLOCK):
        assert world.check("a", image, start, min(start + BLOCK, len(image))) is None
    assert world.expected.bases_read == 1
    assert world.expected.compared == -(-len(image) // BLOCK)


def test_bytes_of_both_bases_under_one_tag_are_wrong(world: World) -> None:
    end = world.bases[0].size - BLOCK
    one, two = world.image(0, 1), world.image(1, 1)
    assert world.check("a", one, end, end + BLOCK) is None
    assert world.check("a", two, end, end + BLOCK) == end
    assert world.check("b", two, end, end + BLOCK) is None, "of another tag they are right"
    assert world.expected.bases_read == 2


def test_configs_of_two_answers_under_one_tag_are_wrong(world: World) -> None:
    start = world.config_at
    assert world.check("a", world.image(0, 2), start, start + BLOCK) is None
    assert world.check("a", world.image(0, 3), start, start + BLOCK) == start


def test_config_that_was_never_sent_is_wrong(world: World) -> None:
    start = world.config_at
    assert world.check("a", world.image(0, 4), start, start + BLOCK) == start


@pytest.mark.parametrize("at", ["system area", "config", "end"])
def test_one_wrong_byte_is_found(world: World, at: str) -> None:
    start = {"system area": 0, "config": world.config_at, "end": world.bases[0].size - BLOCK}[at]
    image = bytearray(world.image(0, 1))
    image[start + 100] ^= 1
    assert world.check("a", bytes(image), start, start + BLOCK) == start
