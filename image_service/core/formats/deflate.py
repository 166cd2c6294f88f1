"""Deflate (RFC 1951) without a search for repeats, written here: its bytes depend on no library.

A stream is a block with dynamic codes, or stored blocks, or the one and then the others. A block with codes:

    bits
       3   last block or not, dynamic codes
      14   257 literal codes, 2 distance codes, 19 code length codes
      57   the lengths of the code length codes: 4 for those of 0 to 15, none for the repeats 16 to 18
    1036   the lengths of the literal codes, and of the distance codes, which are not used: 4 bits each
      ...  the literals, the end code

A stored block: 3 bits, zeros up to a whole byte, the content's length twice, and the content.
"""

from __future__ import annotations

import struct
import sys
from collections import Counter
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_END = 256
_MAX_BITS = 15
_CHUNK_BYTES = 64 * 1024  # an even number
_LEAST_CODED_BYTES = 4 * 1024
_LEAST_BYTES_OF_PAIRS = 16 * 1024
_MAX_STORED = 65535  # bytes of a block
_STORED_HEAD = struct.Struct("<BHH")
_HEAD = "101" + "00000" + "10000" + "1111" + 3 * "000" + 16 * "001"  # the lowest bit of a number first
_DISTANCES = 2 * "0001"
_LITERAL_LENGTHS = 257 * 4


def store_blocks(data: bytes) -> Iterator[bytes | memoryview]:
    """Yield a deflate stream of stored blocks: head and content of each, in turn."""
    view = memoryview(data)
    for at in range(0, len(data) or 1, _MAX_STORED):
        content = view[at : at + _MAX_STORED]
        is_last = at + _MAX_STORED >= len(data)
        yield _STORED_HEAD.pack(is_last, len(content), len(content) ^ 0xFFFF)
        yield content


def deflate_by_huffman(data: bytes) -> bytes:
    """Return a deflate stream of the data in one block with codes."""
    return deflate_within(data, 0)


def deflate_within(data: bytes, capacity: int) -> bytes:
    """Return a deflate stream of the data: the first 4 KiB, 8 KiB, … are coded, and the rest is stored.

    To code takes the time, so this is the first such stream of at most ``capacity`` bytes; if there is none,
    all of the data is coded.
    """
    frequencies, coded = Counter({_END: 1, 0: 0}), 0  # a code needs two symbols
    while True:
        more = data[coded : max(2 * coded, _LEAST_CODED_BYTES)]
        frequencies.update(_count_symbols(more))
        coded += len(more)
        lengths = code_lengths(frequencies)
        stored = len(data) - coded
        blocks = -(-stored // _MAX_STORED)
        if not stored or _coded_bytes(frequencies, lengths) + blocks * _STORED_HEAD.size + stored <= capacity:
            break
    bits = _code(data[:coded], lengths)
    number = int(bits, 2)
    if not stored:
        return number.to_bytes((len(bits) + 7) // 8, "little")
    head, *others = store_blocks(data[coded:])
    number += (head[0] << len(bits)) - 1  # it is not the last block
    return b"".join([number.to_bytes((len(bits) + 3 + 7) // 8, "little"), head[1:], *others])


def _coded_bytes(frequencies: Mapping[int, int], lengths: Mapping[int, int]) -> int:
    """Return how many bytes a block with these codes takes."""
    codes = sum(frequency * lengths[symbol] for symbol, frequency in frequencies.items())
    return (len(_HEAD) + _LITERAL_LENGTHS + len(_DISTANCES) + codes + 7) // 8


def _code(data: bytes, lengths: Mapping[int, int]) -> str:
    """Return the bits of a block with codes as a binary number, whose lowest bit is the stream's first."""
    head = "".join(f"{lengths.get(symbol, 0):04b}" for symbol in range(_END + 1))
    codes = {symbol: code[::-1] for symbol, code in _codes(lengths).items()}
    return "".join((codes[_END], *_code_from_end(data, codes), (_HEAD + head + _DISTANCES)[::-1]))


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
    if len(data) < _LEAST_BYTES_OF_PAIRS:
        yield from map(codes.__getitem__, reversed(data))
        return
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

    A lookup for each two bytes takes half the time of one for each, but the list has to be made.
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
