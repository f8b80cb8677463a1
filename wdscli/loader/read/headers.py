"""The headers in front of many payloads, looked at together.

What it is: :func:`all_say`, which tells whether the blocks in front of some payloads are the headers that the index
says, without a look at any of them alone. How: what was read is seen as words, of which a few in each header are
compared with those that the canonical form would have there: the size's digits come from tables, names of one length
from one join. It never has the last word: what it does not take for granted goes to :mod:`wdscli.samples.expected`, one
by one. It must not know how blocks are read, nor what follows when they differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    I64: TypeAlias = NDArray[numpy.int64]
    U8: TypeAlias = NDArray[numpy.uint8]

BLOCK = 512
_NAME = 100
_USED = 352
"""Bytes of a header that are looked at."""
_APART = 1 << 12
"""Bytes read for each header from which on headers are cut out of what was read, rather than seen where they lie."""
_PAX = 1024
"""Bytes of a pax header with one block of records, as most writers put them in front of every member."""
_SPEAKS = (b"path=", b"size=", b"GNU.sparse.")
"""What no record may have in it that says nothing of name and size."""


class Blocks(NamedTuple):
    """Headers in ``rows``, each of which begins in one of those ``at``."""

    rows: U8
    at: I64

    def words(self, byte: int) -> Any:
        """The four bytes of each header from ``byte`` on, as a little-endian number."""
        return self.rows.view("<u4")[self.at, byte // 4]

    def texts(self, length: int, first: int = 0, step: int = 1) -> bytes:
        """The first ``length`` bytes of every ``step``-th header from number ``first`` on, one behind the other."""
        import numpy

        rows = self.rows
        table: Any = numpy.ndarray((len(rows),), f"V{length}", rows, strides=rows.strides[:1])
        return bytes(table[self.at[first::step]].tobytes())


def blocks_of(found: list[bytes], members: list[int], inside: I64, begins: list[int]) -> Blocks:
    """The blocks in front of payloads. ``found`` are reads of whole blocks, with so many ``members`` each, whose
    payloads begin at ``inside`` (and ``begins``, the same)."""
    import numpy

    size = sum(map(len, found))
    if size > _APART * len(begins) and len(found) > 1:
        each = chain.from_iterable(map(repeat, found, members))
        together = b"".join(
            [data[begin - BLOCK : begin - BLOCK + _USED] for data, begin in zip(each, begins)]
        )
        rows: U8 = numpy.frombuffer(together, dtype=numpy.uint8).reshape(-1, _USED)
        return Blocks(rows, numpy.arange(len(begins)))
    rows = numpy.frombuffer(found[0] if len(found) == 1 else b"".join(found), dtype=numpy.uint8).reshape(
        -1, BLOCK
    )
    if len(found) > 1:
        before = numpy.cumsum(list(map(len, found[:-1])))
        inside = inside.copy()
        inside[members[0] :] += before.repeat(members[1:])
    return Blocks(rows, (inside >> 9) - 1)


def all_say(blocks: Blocks, names: Names, sizes: I64) -> bool:
    """Whether these are headers of regular members without a prefix of these names and sizes."""
    largest = int(sizes.max())
    if largest >= 1 << 33:
        return False
    four, three = _digits()
    types = blocks.words(156)
    return bool(
        (blocks.words(132) == three[sizes & 511]).all()
        and (blocks.words(128) == four[sizes >> 9 & 4095]).all()
        and (blocks.words(124) == four[sizes >> 21] if largest >> 21 else blocks.words(124) == four[0]).all()
        and ((types == 48).all() or ((types & 0xFF == 48) | (types & 0xFF == 0)).all())
        and not (blocks.words(344) & 0xFF00).any()
        and names.are_those_of(blocks)
    )


@cache
def _digits() -> tuple[Any, Any]:
    """The words of four octal digits, and of three with a zero behind them."""
    import numpy

    four = b"".join([b"%04o" % number for number in range(1 << 12)])
    three = b"".join([b"%03o\0" % number for number in range(1 << 9)])
    return numpy.frombuffer(four, dtype="<u4"), numpy.frombuffer(three, dtype="<u4")


class Names:
    """The names of the members of some samples: ``keys``, and what each is followed by in its members' names.

    ``suffixes`` has one for each member of a sample where all have the same ones, else one for each member of all, and
    ``counts`` says how many each sample has. ``width`` is the length of the keys, 0 when they differ.
    """

    def __init__(
        self, keys: Sequence[bytes], width: int, suffixes: Sequence[bytes], counts: I64 | None
    ) -> None:
        self._keys, self._width, self._suffixes, self._counts = keys, width, suffixes, counts

    def are_those_of(self, blocks: Blocks) -> bool:
        """Whether headers, those of all members, begin with these names."""
        if self._counts is not None or not self._width:
            return _names_in(blocks) == self._listed()
        for number, suffix in enumerate(self._suffixes):
            length = self._width + len(suffix)
            if length > _NAME or blocks.texts(length, number, len(self._suffixes)) != self._joined(suffix):
                return False
        return True

    def _joined(self, suffix: bytes) -> bytes:
        return suffix.join(self._keys) + suffix

    def _listed(self) -> list[bytes]:
        """All names, without the zero behind each."""
        bare = [suffix[:-1] for suffix in self._suffixes]
        if self._counts is None:
            return [key + suffix for key in self._keys for suffix in bare]
        keys = chain.from_iterable(map(repeat, self._keys, self._counts.tolist()))
        return list(map(bytes.__add__, keys, bare))


def _names_in(blocks: Blocks) -> list[bytes]:
    import numpy

    found: list[bytes] = numpy.frombuffer(blocks.texts(_NAME), f"S{_NAME}").tolist()
    return found


def all_harmless(fronts: list[bytes]) -> bool:
    """Whether what stands in front of each header's block is nothing, or one pax header that says nothing of name and
    size, as far as a quick look tells."""
    import numpy

    fronts = [front for front in fronts if front]
    together = b"".join(fronts)
    if not all(len(front) == _PAX for front in fronts) or any(word in together for word in _SPEAKS):
        return False
    heads: U8 = numpy.frombuffer(together, dtype=numpy.uint8).reshape(-1, _PAX)
    # Fewer bytes of records than a block has: eight digits that are zero in front of the last three.
    return bool((heads[:, 156] == 120).all() and (heads[:, 124:132] == 48).all())
