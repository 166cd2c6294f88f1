"""A cache that evicts its least recently used entries."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, ItemsView, Iterator, ValuesView

_Key = TypeVar("_Key", bound="Hashable")
_Value = TypeVar("_Value")


ENTRY_BYTES = 2048
"""The memory that an entry takes, about: its key, and a value of some objects without large texts."""


class LruCache(Generic[_Key, _Value]):
    """A mapping bounded by the number of its entries, or by their summed size.

    The entry that was set last is never evicted, even if it alone exceeds the limit: its caller uses it.
    A value is not None, and does not change its size while it is in the cache.

    Args:
        limit: the largest sum of sizes; at least 1.
        size_of: the size of a value; without it each counts 1.
        on_evict: is called with each entry that is evicted (not with one that is replaced or removed).
    """

    def __init__(
        self,
        limit: int,
        size_of: Callable[[_Value], int] | None = None,
        on_evict: Callable[[_Key, _Value], object] | None = None,
    ) -> None:
        self.limit = limit
        self._size_of = size_of
        self._on_evict = on_evict
        self._entries: OrderedDict[_Key, _Value] = OrderedDict()
        self._summed = 0

    @property
    def size(self) -> int:
        """The sum of the entries' sizes; without `size_of`, their number."""
        return self._summed if self._size_of else len(self._entries)

    @property
    def held_bytes(self) -> int:
        """The memory that the entries take: the sum of their sizes, or about `ENTRY_BYTES` each."""
        return self._summed if self._size_of else len(self._entries) * ENTRY_BYTES

    def get(self, key: _Key) -> _Value | None:
        """Return a value, now the most recently used; None if the key is absent."""
        entries = self._entries
        if (value := entries.get(key)) is not None:
            entries.move_to_end(key)
        return value

    def peek(self, key: _Key) -> _Value | None:
        """Return a value without counting that as a use; None if the key is absent."""
        return self._entries.get(key)

    def __setitem__(self, key: _Key, value: _Value) -> None:
        """Add or replace a value, now the most recently used, and evict others down to the limit."""
        self.pop(key)
        self._entries[key] = value
        if self._size_of:
            self._summed += self._size_of(value)
        while self.size > self.limit and len(self._entries) > 1:
            oldest = next(iter(self._entries))
            evicted = self.pop(oldest)
            if self._on_evict and evicted is not None:
                self._on_evict(oldest, evicted)

    def pop(self, key: _Key) -> _Value | None:
        """Remove an entry and return its value; None if the key is absent."""
        value = self._entries.pop(key, None)
        if value is not None and self._size_of:
            self._summed -= self._size_of(value)
        return value

    def __iter__(self) -> Iterator[_Key]:
        """Iterate over the keys, the least recently used first."""
        return iter(self._entries)

    def values(self) -> ValuesView[_Value]:
        """Return the values, the least recently used first."""
        return self._entries.values()

    def items(self) -> ItemsView[_Key, _Value]:
        """Return keys and values, the least recently used first."""
        return self._entries.items()
