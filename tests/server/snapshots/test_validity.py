"""The states of a cached version: each sequence of news, compared with a naive model of flags."""

from __future__ import annotations

import ast
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.core.errors import Forbidden, Unavailable, UpstreamError
from image_service.server.snapshots import storage
from image_service.server.snapshots.storage.validity import (
    RETRY_SECONDS,
    TRANSITIONS,
    IllegalValidity,
    Validity,
    ValidityState,
)

if TYPE_CHECKING:
    from image_service.core.errors import ImageServiceError

News: TypeAlias = "tuple[str, float]"

FAILURE, REFUSAL = UpstreamError("502"), Forbidden("403")
NEWS = ("answer", "refused answer", "refusal", "refusal elsewhere", "failure", "no slot", "end")
news = st.lists(st.tuples(st.sampled_from(NEWS), st.floats(0, 1000)), max_size=12)


def tell(validity: Validity, what: str, at: float) -> None:
    """Record one of `NEWS`."""
    match what:
        case "answer":
            validity.record_answer(at)
        case "refused answer":
            validity.record_answer(at, is_refused=True)
        case "refusal":
            validity.record_refusal(REFUSAL, at)
        case "refusal elsewhere":
            validity.record_refusal(None, -inf)
        case "failure":
            validity.record_failure(FAILURE, at, at + RETRY_SECONDS)
        case "no slot":
            validity.record_no_slot(at)
        case "end":
            validity.end()


@attrs.define
class Flags:
    """What is known of a version, as flags that do not depend on each other."""

    validated_at: float = 0.0
    failing_since: float | None = None
    error: type[ImageServiceError] | None = None
    is_refused: bool = False
    has_no_slot: bool = False
    is_ended: bool = False

    def tell(self, what: str, at: float) -> None:
        """Record one of `NEWS`."""
        if self.is_ended:
            return
        match what:
            case "answer" | "refused answer":
                self.validated_at, self.failing_since, self.error = at, None, None
                self.is_refused, self.has_no_slot = what == "refused answer", False
            case "refusal" | "refusal elsewhere":
                self.error = type(REFUSAL) if what == "refusal" else None
                self.is_refused, self.failing_since, self.has_no_slot = True, None, False
            case "failure":
                if not self.is_refused and self.failing_since is None:
                    self.failing_since = at
                self.error, self.has_no_slot = type(FAILURE), False
            case "no slot":
                self.has_no_slot = True
            case "end":
                self.is_ended = True

    @property
    def state(self) -> ValidityState:
        """The state that the flags stand for."""
        if self.is_ended:
            return ValidityState.ENDED
        if self.is_refused:
            return ValidityState.REFUSED
        if self.failing_since is not None:
            return ValidityState.FAILING
        return ValidityState.NO_SLOT if self.has_no_slot else ValidityState.VALIDATED


@given(news)
def test_state_is_that_of_the_flags(told: list[News]) -> None:
    validity, flags = Validity(0.0), Flags()
    for what, at in told:
        tell(validity, what, at)
        flags.tell(what, at)
        assert validity.state is flags.state
        assert validity.is_refused is (flags.is_refused or flags.is_ended)
        assert (validity.validated_at, validity.failing_since) == (flags.validated_at, flags.failing_since)
        assert (validity.error and type(validity.error)) == flags.error


@given(news, st.sampled_from(NEWS))
def test_ended_version_learns_nothing_any_more(told: list[News], late: str) -> None:
    validity = Validity(0.0)
    for what, at in told:
        tell(validity, what, at)
    validity.end()
    before = attrs.asdict(validity)
    tell(validity, late, 2000.0)
    assert attrs.asdict(validity) == before


def test_refused_version_says_why_it_is_not_served() -> None:
    validity = Validity(0.0)
    validity.check_refusal()
    validity.record_refusal(None, -inf)
    with pytest.raises(Unavailable, match="has refused this image"):
        validity.check_refusal()
    validity.record_refusal(REFUSAL, 1.0)
    with pytest.raises(Forbidden):
        validity.check_refusal()
    validity.record_answer(2.0)
    validity.check_refusal()


@pytest.mark.parametrize("state", ValidityState)
def test_state_that_does_not_follow_is_an_error(state: ValidityState) -> None:
    for following in set(ValidityState) - TRANSITIONS[state]:
        validity = Validity(0.0)
        validity.state = state
        with pytest.raises(IllegalValidity, match=f"{state.name} -> {following.name}"):
            validity._enter(following)


def test_every_state_can_be_reached_and_ends() -> None:
    for state in set(ValidityState) - {ValidityState.ENDED}:
        assert ValidityState.ENDED in TRANSITIONS[state]
        assert any(state in following for before, following in TRANSITIONS.items() if before is not state)
    assert not TRANSITIONS[ValidityState.ENDED]


def writers(fields: set[str]) -> set[str]:
    """The modules of the package that assign to attributes of these names."""
    return {
        path.name
        for path in Path(storage.__file__).parents[1].rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and node.attr in fields
    }


def test_one_module_alone_writes_each_part_of_a_cached_version() -> None:
    fields = {field.name for field in attrs.fields(Validity)}
    assert writers(fields) - {"resolver.py"} == {"validity.py"}  # the resolver's is a field of another class
    assert writers({"generation", "taken_at", "is_newest"}) == {"snapshot.py"}
    assert writers({"key_counter", "older"}) == {"cache_entry.py"}
