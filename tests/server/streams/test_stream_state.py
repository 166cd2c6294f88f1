from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.core.families.coreos.stream_metadata import select_releases
from image_service.server.streams.stream_state import StreamState, load_state, move_alias, save_state
from image_service.settings.stream_sources import StreamSource
from tests.core.families.coreos.streams import metal, stream

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from image_service.core.families.coreos.stream_metadata import Release

SOURCE = StreamSource("stable", "https://builds.example/stable.json?token=top-secret", ("x86_64",), 2)
BOTH = attrs.evolve(SOURCE, architectures=("x86_64", "aarch64"))
VALIDATORS = ('"tag"', "Tue, 21 Jul 2026 14:07:12 GMT")
NEXT = "2026-07-22T00:00:00Z"


def state_after(source: StreamSource, *documents: dict[str, Any]) -> StreamState:
    """The state after fetching these, the oldest first, when each release became ready."""
    state = StreamState()
    for document in documents:
        state = state.with_document(source, document, VALIDATORS)
        ready = {release.architecture: release.version for release in state.releases(source)[::-1]}
        state = state.with_aliases(source, ready)
    return state


def document(**releases: str) -> dict[str, Any]:
    """A document with a release for each architecture."""
    document = stream()
    document["architectures"] = {
        architecture: {"artifacts": {"metal": metal(release, architecture)}}
        for architecture, release in releases.items()
    }
    return document


def versions(state: StreamState, source: StreamSource, architecture: str = "x86_64") -> list[str]:
    return [release.version for release in state.releases(source) if release.architecture == architecture]


def releases(*names: str) -> list[Release]:
    return [select_releases(stream(name), ["x86_64"])[0] for name in names]


def among(ready: Collection[str]) -> Callable[[Release, str | None], bool]:
    return lambda release, _: release.version in ready


def test_newest_releases_are_kept() -> None:
    state = state_after(SOURCE, stream("1"), stream("2"), stream("3"))
    assert versions(state, SOURCE) == ["3", "2"]
    assert len(state.documents) == 2


def test_what_is_passed_on_is_current_and_the_date_stays() -> None:
    more = stream("1")
    more["metadata"]["last-modified"] = NEXT
    more["architectures"]["x86_64"]["images"] = {"aws": {"regions": {}}}
    state = state_after(SOURCE, stream("1"), more)
    (release,) = state.releases(SOURCE)
    assert release.original == more["architectures"]["x86_64"]
    assert release.published == select_releases(stream("1"), ["x86_64"])[0].published
    assert len(state.documents) == 1


def test_release_that_a_stream_goes_back_to_is_the_newest() -> None:
    assert versions(state_after(SOURCE, stream("1"), stream("2"), stream("1")), SOURCE) == ["1", "2"]


def test_each_architecture_keeps_its_own_releases() -> None:
    state = state_after(
        BOTH,
        document(x86_64="1", aarch64="1"),
        document(x86_64="2", aarch64="1"),
        document(x86_64="3", aarch64="1"),
        document(x86_64="3", aarch64="2"),
    )
    assert versions(state, BOTH) == ["3", "2"]
    assert versions(state, BOTH, "aarch64") == ["2", "1"]


@given(
    st.lists(st.tuples(st.sampled_from("1234"), st.sampled_from("1234"), st.booleans()), max_size=12),
    st.integers(1, 3),
)
def test_kept_releases_equal_those_of_the_whole_history(
    history: list[tuple[str, str, bool]], keep: int
) -> None:
    """The oracle: per architecture the release offered last, and `keep` of those that were ready."""
    source = attrs.evolve(BOTH, keep=keep)
    state = StreamState()
    offered: dict[str, str] = {}
    ready: dict[str, list[str]] = {"x86_64": [], "aarch64": []}
    for x86_64, aarch64, becomes_ready in history:
        offered = {"x86_64": x86_64, "aarch64": aarch64}
        state = state.with_document(source, document(**offered), VALIDATORS)
        if becomes_ready:
            state = state.with_aliases(source, offered)
            for architecture, version in offered.items():
                others = [each for each in ready[architecture] if each != version]
                ready[architecture] = [version, *others][:keep]
        else:  # one that was ready is ready again by becoming the alias, or forgotten with the next
            for architecture, version in offered.items():
                if state.aliases.get(architecture) != version:
                    ready[architecture] = [each for each in ready[architecture] if each != version]
        for architecture, version in offered.items():
            expected = [*dict.fromkeys((version, *ready[architecture]))]
            assert versions(state, source, architecture) == expected
    assert len(state.documents) <= 2 * keep + 2


def test_release_that_never_became_ready_does_not_push_out_others() -> None:
    state = state_after(SOURCE, stream("1"))
    for failed in "234":
        state = state.with_document(SOURCE, stream(failed), VALIDATORS)
        assert versions(state, SOURCE) == [failed, "1"]
    assert versions(state.with_aliases(SOURCE, {"x86_64": "4"}), SOURCE) == ["4", "1"]


def test_releases_that_were_ready_stay_until_their_successor_is() -> None:
    state = state_after(SOURCE, stream("1"), stream("2")).with_document(SOURCE, stream("3"), VALIDATORS)
    assert versions(state, SOURCE) == ["3", "2", "1"]
    assert versions(state.with_aliases(SOURCE, {"x86_64": "3"}), SOURCE) == ["3", "2"]


def test_release_that_failed_for_one_architecture_stays_for_the_other() -> None:
    state = state_after(BOTH, document(x86_64="1", aarch64="1"))
    state = state.with_document(BOTH, document(x86_64="2", aarch64="2"), VALIDATORS)
    state = state.with_aliases(BOTH, {"x86_64": "1", "aarch64": "2"})
    state = state.with_document(BOTH, document(x86_64="3", aarch64="3"), VALIDATORS)
    assert versions(state, BOTH) == ["3", "1"]
    assert versions(state, BOTH, "aarch64") == ["3", "2", "1"]


def test_process_keeps_what_its_alias_stands_for_though_another_has_gone_on() -> None:
    once = attrs.evolve(SOURCE, keep=1)
    own, stored = state_after(once, stream("1")), state_after(once, stream("1"), stream("2"))
    assert versions(stored, once) == ["2"]
    merged = own.with_stored(once, stored)
    assert (versions(merged, once), merged.aliases) == (["2", "1"], {"x86_64": "1"})
    assert versions(merged.with_aliases(once, {"x86_64": "2"}), once) == ["2"]
    assert own.with_stored(once, StreamState()) == own


def test_document_with_the_same_releases_keeps_the_date() -> None:
    later = stream("1")
    later["metadata"] = {"last-modified": NEXT}
    once, twice = state_after(SOURCE, stream("1")), state_after(SOURCE, stream("1"), later)
    assert once == twice


def test_release_added_for_another_architecture_is_seen() -> None:
    state = state_after(SOURCE, document(x86_64="1"), document(x86_64="1", aarch64="1"))
    assert versions(state, BOTH, "aarch64") == ["1"]


def test_preconditions_are_the_validators_of_the_newest_document() -> None:
    state = state_after(SOURCE, stream())
    assert state.preconditions(SOURCE) == {"If-None-Match": VALIDATORS[0], "If-Modified-Since": VALIDATORS[1]}
    assert StreamState().preconditions(SOURCE) == {}
    assert state.preconditions(attrs.evolve(SOURCE, url="https://other.example/stable.json")) == {}
    assert StreamState().with_document(SOURCE, stream(), (None, None)).preconditions(SOURCE) == {}


def test_stored_state_is_loaded_and_holds_no_credential(tmp_path: Path) -> None:
    path = tmp_path / "rhcos-stream-stable.json"
    state = state_after(BOTH, document(x86_64="1", aarch64="1"))
    save_state(path, state)
    assert load_state(path, BOTH) == state
    assert "top-secret" not in path.read_text()
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize(
    "damage",
    [
        lambda members: members.clear(),
        lambda members: members.update(etag=1),
        lambda members: members.update(source=None),
        lambda members: members.update(documents={}),
        lambda members: members.update(documents=1),
        lambda members: members.update(aliases=[]),
        lambda members: members.update(aliases={"x86_64": 1}),
        lambda members: members.update(more=1),
    ],
)
def test_invalid_stored_state_is_empty(tmp_path: Path, damage: Any) -> None:
    path = tmp_path / "rhcos-stream-stable.json"
    save_state(path, state_after(SOURCE, stream()))
    members = json.loads(path.read_text())
    damage(members)
    path.write_text(json.dumps(members))
    assert load_state(path, SOURCE).documents == ()


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b"[" * 100_000])
def test_stored_state_that_is_no_json_is_empty(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "rhcos-stream-stable.json"
    path.write_bytes(content)
    assert load_state(path, SOURCE) == StreamState()
    assert load_state(tmp_path / "absent", SOURCE) == StreamState()


def test_stored_document_that_is_invalid_for_new_architectures_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "rhcos-stream-stable.json"
    newer = document(x86_64="2", s390x="2")
    newer["architectures"]["s390x"]["artifacts"]["metal"]["release"] = 2
    save_state(path, state_after(SOURCE, document(x86_64="1", s390x="1"), newer))
    with_s390x = attrs.evolve(SOURCE, architectures=("x86_64", "s390x"))
    assert versions(load_state(path, SOURCE), SOURCE) == ["2", "1"]
    assert versions(load_state(path, with_s390x), with_s390x) == ["1"]


@pytest.mark.parametrize(
    ("current", "desired", "ready", "expected"),
    [
        (None, "321", "", None),
        (None, "321", "21", "2"),
        ("1", "321", "1", "1"),
        ("1", "321", "21", "2"),
        ("1", "321", "321", "3"),
        ("3", "321", "21", "3"),  # after a restart the newest is not ready first
        ("2", "12", "2", "2"),  # the stream went back to 1, which is not ready
        ("2", "12", "12", "1"),
        ("0", "21", "1", "1"),
        ("0", "21", "", None),
        ("1", "", "", None),
    ],
)
def test_alias_moves_to_the_newest_ready_release(
    current: str | None, desired: str, ready: str, expected: str | None
) -> None:
    assert move_alias(current, releases(*desired), among(ready)) == expected


@given(st.permutations("12345"), st.data())
def test_alias_never_moves_to_an_older_release(desired: list[str], data: st.DataObject) -> None:
    offered, current = releases(*desired), None
    for _ in range(6):
        ready = data.draw(st.sets(st.sampled_from("12345")))
        moved = move_alias(current, offered, among(ready))
        assert moved == current or moved in ready
        if current is not None:
            assert moved is not None
            assert desired.index(moved) <= desired.index(current)
        better = desired if current is None else desired[: desired.index(current)]
        assert not set(better[: better.index(moved)] if moved in better else better) & ready
        current = moved
