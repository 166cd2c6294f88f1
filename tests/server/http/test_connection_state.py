from __future__ import annotations

from itertools import product

import pytest

from image_service.server.http.connection_state import TRANSITIONS, IllegalTransition, State, check_transition


def test_every_state_has_transitions_and_only_closed_is_final() -> None:
    assert set(TRANSITIONS) == set(State)
    assert [state for state, following in TRANSITIONS.items() if not following] == [State.CLOSED]


def test_every_state_but_closed_may_lose_the_connection() -> None:
    assert all(State.CLOSED in TRANSITIONS[state] for state in State if state is not State.CLOSED)


def test_every_state_is_reachable_from_the_two_first_ones() -> None:
    reached = {State.HANDSHAKE, State.HEAD}
    while added := set().union(*(TRANSITIONS[state] for state in reached)) - reached:
        reached |= added
    assert reached == set(State)


def test_busy_connection_reads_no_other_request() -> None:
    for busy in (State.HANDLING, State.SENDING):
        assert not TRANSITIONS[busy] & {State.HEAD, State.HANDLING}


@pytest.mark.parametrize(("present", "following"), list(product(State, State)))
def test_transition_outside_the_table_raises(present: State, following: State) -> None:
    if following in TRANSITIONS[present]:
        assert check_transition(present, following) is following
    else:
        with pytest.raises(IllegalTransition, match=f"{present.name} -> {following.name}"):
            check_transition(present, following)
