"""The states of a connection (RFC 9112 section 9) and the transitions between them. Pure."""

from __future__ import annotations

import enum


class State(enum.Enum):
    """The states of a connection: each is an event that it waits for."""

    HANDSHAKE = enum.auto()
    """The TLS handshake."""
    HEAD = enum.auto()
    """A request head: the first one of the connection, or one of which a part has arrived."""
    IDLE = enum.auto()
    """The first byte of the next request."""
    HANDLING = enum.auto()
    """The application, or a download slot."""
    SENDING = enum.auto()
    """The client taking the response."""
    CLOSING = enum.auto()
    """The client closing its side; ours is closed (9.6)."""
    CLOSED = enum.auto()
    """Nothing: the connection is gone."""

    __hash__ = object.__hash__  # the states are keys on the fast path, and Enum's own is a Python function


TRANSITIONS: dict[State, frozenset[State]] = {
    State.HANDSHAKE: frozenset({State.HEAD, State.CLOSING, State.CLOSED}),
    State.HEAD: frozenset({State.IDLE, State.HANDLING, State.SENDING, State.CLOSING, State.CLOSED}),
    State.IDLE: frozenset({State.HEAD, State.HANDLING, State.SENDING, State.CLOSING, State.CLOSED}),
    State.HANDLING: frozenset({State.SENDING, State.CLOSED}),
    State.SENDING: frozenset({State.IDLE, State.CLOSING, State.CLOSED}),
    State.CLOSING: frozenset({State.CLOSED}),
    State.CLOSED: frozenset(),
}
"""The states that may follow each state.

SENDING follows HEAD and IDLE directly if the request handler is not called: for refusals, and for further
ranges, during which the connection stays in IDLE if the kernel accepts all of the response within the call.
"""


class IllegalTransition(Exception):
    """A connection was to enter a state that does not follow its present one: an error of this service."""


def check_transition(present: State, following: State) -> State:
    """Return the following state.

    Raises:
        IllegalTransition: it does not follow the present one.
    """
    if following not in TRANSITIONS[present]:
        raise IllegalTransition(f"{present.name} -> {following.name}")
    return following
