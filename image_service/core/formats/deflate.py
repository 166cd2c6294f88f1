"""Deflate (RFC 1951) with Huffman codes alone, written here: its bytes depend on no library.

A stream is one block with dynamic codes:

    bits
       3   last block, dynamic codes
      14   257 literal codes, 2 distance codes, 19 code length codes
      57   the lengths of the code length codes: 4 for those of 0 to 15, none for the repeats 16 to 18
    1036   the lengths of the literal codes, and of the distance codes, which are not used: 4 bits each
      ...  the literals, the end code, zeros up to a whole byte
"""

from __future__ import annotations

import sys
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_END = 256
_MAX_BITS = 15
_CHUNK_BYTES = 64 * 1024  # an even number
_HEAD = "101" + "00000" + "10000" + "1111" + 3 * "000" + 16 * "001"  # the lowest bit of a number first
_DISTANCES = 2 * "0001"


def deflate_by_huffman(data: bytes) -> bytes:
    """Return a deflate stream of the data, without a search for repeats."""
    frequencies = _count_symbols(data)
    frequencies[_END] = 1
    frequencies.setdefault(0, 0)  # a code needs two symbols
    lengths = code_lengths(frequencies)
    head = "".join(f"{lengths.get(symbol, 0):04b}" for symbol in range(_END + 1))
    # The stream's first bit is the number's lowest, so all is written from the end on.
    codes = {symbol: code[::-1] for symbol, code in _codes(lengths).items()}
    bits = "".join((codes[_END], *_code_from_end(data, codes), (_HEAD + head + _DISTANCES)[::-1]))
    return int(bits, 2).to_bytes((len(bits) + 7) // 8, "little")


def _count_symbols(data: bytes) -> dict[int, int]:
    """Return how often each byte occurs; `Counter` takes five times the instructions."""
    counts = {}
    while data:
        others = data.replace(data[:1], b"")
        counts[data[0]] = len(data) - len(others)
        data = others
    return counts


def _code_from_end(data: bytes, codes: Mapping[int, str]) -> Iterator[str]:
    """Yield the reversed codes of the data, the last ones first."""
    end = len(data)
    if end & 1:
        end -= 1
        yield codes[data[end]]
    pair_codes = _pair_codes(codes)
    for stop in range(end, 0, -_CHUNK_BYTES):
        pairs = memoryview(data)[max(0, stop - _CHUNK_BYTES) : stop].cast("H").tolist()
        pairs.reverse()
        yield "".join(map(pair_codes.__getitem__, pairs))


def _pair_codes(codes: Mapping[int, str]) -> list[str]:
    """Return the reversed codes of two bytes, by both as a number in the machine's byte order.

    A lookup for each two bytes takes half the time of one for each.
    """
    found = [""] * (1 << 16)
    literals = [item for item in codes.items() if item[0] != _END]
    for first, code in literals:
        for second, next_code in literals:
            found[int.from_bytes((first, second), sys.byteorder)] = next_code + code
    return found


def code_lengths(frequencies: Mapping[int, int]) -> dict[int, int]:
    """Return the bits of each symbol's code, 1 to 15; the best ones unless those have more bits."""
    lengths = dict.fromkeys(frequencies, 0)
    # No two nodes have the same lowest symbol, so their order depends on nothing else.
    nodes = [(frequency, symbol, [symbol]) for symbol, frequency in frequencies.items()]
    heapify(nodes)
    while len(nodes) > 1:
        (frequency, symbol, symbols), (other_frequency, other, others) = heappop(nodes), heappop(nodes)
        symbols = symbols + others
        for each in symbols:
            lengths[each] += 1
        heappush(nodes, (frequency + other_frequency, min(symbol, other), symbols))
    if max(lengths.values()) > _MAX_BITS:
        return code_lengths({symbol: frequency // 2 + 1 for symbol, frequency in frequencies.items()})
    return lengths


def _codes(lengths: Mapping[int, int]) -> dict[int, str]:
    """Return the canonical codes, the highest bit first (RFC 1951 section 3.2.2)."""
    codes: dict[int, str] = {}
    code = previous = 0
    for length, symbol in sorted((length, symbol) for symbol, length in lengths.items()):
        code <<= length - previous
        codes[symbol] = f"{code:0{length}b}"
        code, previous = code + 1, length
    return codes
