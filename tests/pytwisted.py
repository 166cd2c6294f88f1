"""Typed versions of pytest-twisted's decorators: strict mypy refuses untyped decorators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

import pytest_twisted

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine

P = ParamSpec("P")
T = TypeVar("T")


def ensure_deferred(
    test: Callable[P, Coroutine[Any, Any, None]],
) -> Callable[P, Coroutine[Any, Any, None]]:
    """Run an ``async def`` test in the reactor; ``@given`` goes outside of it."""
    return cast("Callable[P, Coroutine[Any, Any, None]]", pytest_twisted.ensureDeferred(test))


def async_fixture(function: Callable[P, AsyncIterator[T]]) -> Callable[P, T]:
    """Make a function-scoped fixture of an ``async def`` generator."""
    return cast("Callable[P, T]", pytest_twisted.async_yield_fixture()(function))


def module_fixture(function: Callable[P, AsyncIterator[T]]) -> Callable[P, T]:
    """Make a module-scoped fixture of an ``async def`` generator."""
    return cast("Callable[P, T]", pytest_twisted.async_yield_fixture(scope="module")(function))


def blockon(awaited: Awaitable[T]) -> T:
    """Wait, outside of the reactor, for a Deferred."""
    return cast("T", pytest_twisted.blockon(awaited))
