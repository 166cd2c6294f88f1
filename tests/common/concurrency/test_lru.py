"""The cache against a naive one, which sorts its entries by their last use each time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from image_service.common.concurrency.lru import LruCache

KEYS = st.sampled_from("abcdef")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), KEYS, st.integers(min_value=0, max_value=12)),
        st.tuples(st.sampled_from(["get", "peek", "pop"]), KEYS, st.just(0)),
    )
)


class NaiveCache:
    """Keeps (last use, key, value) in a list."""

    def __init__(self, limit: int, *, by_size: bool) -> None:
        self.limit, self.by_size = limit, by_size
        self.entries: list[tuple[int, str, int]] = []
        self.evicted: list[tuple[str, int]] = []
        self.now = 0

    def size(self) -> int:
        return sum(value if self.by_size else 1 for _, _, value in self.entries)

    def step(self, action: str, key: str, value: int) -> int | None:
        self.now += 1
        found = next((entry for entry in self.entries if entry[1] == key), None)
        if found is not None and action != "peek":
            self.entries.remove(found)
        if action == "get" and found is not None:
            self.entries.append((self.now, key, found[2]))
        if action == "set":
            self.entries.append((self.now, key, value))
            while self.size() > self.limit and len(self.entries) > 1:
                oldest = min(self.entries)
                self.entries.remove(oldest)
                self.evicted.append(oldest[1:])
            return None
        return None if found is None else found[2]


@given(limit=st.integers(min_value=1, max_value=20), by_size=st.booleans(), steps=STEPS)
def test_cache_behaves_like_the_naive_one(
    *, limit: int, by_size: bool, steps: list[tuple[str, str, int]]
) -> None:
    naive, evicted = NaiveCache(limit, by_size=by_size), list[tuple[str, int]]()
    cache: LruCache[str, int] = LruCache(
        limit, (lambda value: value) if by_size else None, lambda key, value: evicted.append((key, value))
    )
    for action, key, value in steps:
        expected = naive.step(action, key, value)
        if action == "set":
            cache[key] = value
        else:
            assert getattr(cache, action)(key) == expected
        assert list(cache.items()) == [(key, value) for _, key, value in sorted(naive.entries)]
        assert cache.size == naive.size()
        assert evicted == naive.evicted


def test_entry_above_the_limit_stays_until_the_next_one() -> None:
    cache: LruCache[str, bytes] = LruCache(10, len)
    cache["a"] = bytes(4)
    cache["b"] = bytes(11)
    assert (list(cache), cache.size) == (["b"], 11)
    cache["c"] = bytes(10)
    assert (list(cache), cache.size) == (["c"], 10)
