"""Objects made of files, which change in every way in which files do."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import attrs
import pytest
from twisted.internet.task import Clock

from image_service.common.files.reloaded import CHECK_SECONDS, Reloaded
from image_service.core.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@attrs.define
class Pair:
    """Two files that can be used while they have the same content, and what is made of them.

    Args:
        directory: theirs.
        made: the number of attempts to make it.
        readable: whether this process may read them.
        meanwhile: is called when they have been read.
    """

    directory: Path
    clock: Clock = attrs.field(factory=Clock)
    made: int = 0
    readable: bool = True
    meanwhile: Callable[[], None] = lambda: None

    @property
    def files(self) -> list[Path]:
        return [self.directory / "key", self.directory / "certificate"]

    @property
    def names(self) -> str:
        return ", ".join(map(str, self.files))

    def write(self, *contents: str) -> None:
        for file, content in zip(self.files, contents, strict=True):
            file.write_text(content)

    def make(self) -> str:
        self.made += 1
        if not self.readable:
            raise ConfigurationError("not readable")
        try:
            key, certificate = (file.read_text() for file in self.files)
        except OSError as error:
            raise ConfigurationError(f"not read: {error.strerror}") from None
        self.meanwhile()
        if key != certificate:
            raise ConfigurationError("no pair")
        return key

    def reloaded(self) -> Reloaded[str]:
        return Reloaded(self.files, self.make, self.clock.seconds)

    def later(self) -> None:
        self.clock.advance(CHECK_SECONDS)


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    made = Pair(tmp_path)
    made.write("first", "first")
    return made


def test_unchanged_files_are_not_reloaded(pair: Pair, messages: list[str]) -> None:
    reloaded = pair.reloaded()
    for _ in range(10):
        assert reloaded.get() == "first"
        pair.later()
    assert (pair.made, messages) == (1, [])


def test_change_is_reloaded_a_second_later(pair: Pair, messages: list[str]) -> None:
    reloaded = pair.reloaded()
    pair.write("second", "second")
    pair.clock.advance(CHECK_SECONDS - 0.001)
    assert reloaded.get() == "first"
    pair.clock.advance(0.001)
    assert reloaded.get() == "second"
    assert (pair.made, len(messages)) == (2, 1)


def test_files_are_checked_at_most_once_a_second(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    reloaded = pair.reloaded()
    looks: list[object] = []
    stat = os.stat

    def count(file: Path) -> os.stat_result:
        looks.append(file)
        return stat(file)

    monkeypatch.setattr("image_service.common.files.reloaded.os.stat", count)
    for _ in range(4000):
        pair.clock.advance(CHECK_SECONDS / 1000)
        reloaded.get()
    monkeypatch.undo()
    assert 3 <= len(looks) / len(pair.files) <= 4


def replace(pair: Pair) -> None:
    """New files in the place of the old ones."""
    for file in pair.files:
        new = file.with_suffix(".new")
        new.write_text("second")
        new.rename(file)


def rewrite(pair: Pair) -> None:
    pair.write("second", "second")


def rewrite_as_long_as_before(pair: Pair) -> None:
    pair.write("again", "again")


def restore_with_an_old_date(pair: Pair) -> None:
    pair.write("longer", "longer")
    for file in pair.files:
        os.utime(file, (1, 1))


def replace_with_the_same_date_and_size(pair: Pair) -> None:
    for file in pair.files:
        new = file.with_suffix(".new")
        new.write_text("other")
        os.utime(new, (0, 0))
        new.rename(file)


@pytest.mark.parametrize(
    "change",
    [
        replace,
        replace_with_the_same_date_and_size,
        rewrite,
        rewrite_as_long_as_before,
        restore_with_an_old_date,
    ],
)
def test_every_kind_of_change_is_reloaded(pair: Pair, change: Callable[[Pair], None]) -> None:
    for file in pair.files:
        os.utime(file, (0, 0))  # else a change within one tick of the kernel's clock would have the same date
    reloaded = pair.reloaded()
    change(pair)
    pair.later()
    assert reloaded.get() == pair.files[0].read_text() != "first"


def test_kubernetes_secret_is_reloaded_through_its_links(tmp_path: Path) -> None:
    """The files are links through ..data, which is a link to a directory, and replaced as a whole."""
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        Pair(tmp_path / name).write(name, name)
    (tmp_path / "..data").symlink_to("first")
    volume = Pair(tmp_path)
    for file in volume.files:
        file.symlink_to(f"..data/{file.name}")
    reloaded = volume.reloaded()
    assert reloaded.get() == "first"
    (tmp_path / "..data_tmp").symlink_to("second")
    (tmp_path / "..data_tmp").rename(tmp_path / "..data")
    volume.later()
    assert reloaded.get() == "second"


def test_previous_version_is_kept_during_a_change(pair: Pair, messages: list[str]) -> None:
    reloaded = pair.reloaded()
    pair.write("second", "first")
    for _ in range(5):
        pair.later()
        assert reloaded.get() == "first"
    assert messages == [f"cannot reload {pair.names}, keeping the previous content: no pair"]
    pair.write("second", "second")
    pair.later()
    assert reloaded.get() == "second"
    assert len(messages) == 2
    pair.write("third", "second")
    pair.later()
    assert reloaded.get() == "second"
    assert messages[2:] == messages[:1]  # anew, for it was well in between


def test_previous_version_is_kept_when_a_file_is_missing(pair: Pair, messages: list[str]) -> None:
    reloaded = pair.reloaded()
    pair.files[0].unlink()
    for _ in range(3):
        pair.later()
        assert reloaded.get() == "first"
    assert messages == [
        f"cannot reload {pair.names}, keeping the previous content: not read: No such file or directory"
    ]


def test_unreadable_file_is_retried_without_a_visible_change(pair: Pair, messages: list[str]) -> None:
    """A file that may be read again looks as it did before."""
    reloaded = pair.reloaded()
    pair.write("second", "second")
    pair.readable = False
    for _ in range(2):
        pair.later()
        assert reloaded.get() == "first"
    pair.readable = True
    pair.later()
    assert reloaded.get() == "second"
    assert len(messages) == 2


def test_return_to_the_previous_files_is_no_fault(pair: Pair, messages: list[str]) -> None:
    reloaded = pair.reloaded()
    aside = pair.directory / "aside"
    pair.files[0].rename(aside)
    for _ in range(2):
        pair.later()
        assert reloaded.get() == "first"
    aside.rename(pair.files[0])
    pair.later()
    assert reloaded.get() == "first"
    pair.files[0].rename(aside)
    pair.later()
    assert reloaded.get() == "first"
    assert len(messages) == 2  # once for each time


def test_unusable_files_at_the_start_are_refused(pair: Pair) -> None:
    pair.write("one", "other")
    with pytest.raises(ConfigurationError, match="no pair"):
        pair.reloaded()


def test_change_during_a_reload_is_seen_at_the_next_check(pair: Pair) -> None:
    reloaded = pair.reloaded()
    pair.write("second", "second")
    pair.meanwhile = lambda: pair.write("third as well", "third as well")
    pair.later()
    assert reloaded.get() == "second"
    pair.later()
    assert reloaded.get() == "third as well"


def test_prepared_object_replaces_the_cached_one_at_once(pair: Pair, messages: list[str]) -> None:
    reloaded = pair.reloaded()
    pair.write("second", "second")
    replace = reloaded.prepare()
    assert reloaded.get() == "first"
    replace()
    assert reloaded.get() == "second"
    assert len(messages) == 1
    pair.later()
    assert reloaded.get() == "second"
    assert len(messages) == 1


def test_preparing_unusable_files_raises_and_keeps_the_cached_object(pair: Pair) -> None:
    reloaded = pair.reloaded()
    pair.write("one", "other")
    with pytest.raises(ConfigurationError, match="no pair"):
        reloaded.prepare()
    assert reloaded.get() == "first"


def test_preparing_unchanged_files_logs_nothing(pair: Pair, messages: list[str]) -> None:
    reloaded = pair.reloaded()
    reloaded.prepare()()
    assert (reloaded.get(), messages) == ("first", [])
