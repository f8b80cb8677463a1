"""The pinned order: values that another program must get too."""

from __future__ import annotations

import numpy

from wdscli.ordering import mix, rank, rank_places

GOLDEN_SEED_0 = [
    0x238275BC38FCBE91,
    0x2F32A78496C67C60,
    0xB28C4C30D302532E,
]
GOLDEN_LARGE = 0x485CE0651B83CE88


def test_mix_is_splitmix64() -> None:
    """The first outputs of the reference implementation (Vigna) from state 0: state advances by the golden ratio."""
    step = 0x9E3779B97F4A7C15
    outputs = [mix(number * step) for number in range(3)]
    assert outputs == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


def test_rank_is_pinned() -> None:
    assert rank(0, 0, 0) == mix(mix(mix(0)))
    assert [rank(0, 0, i) for i in range(3)] == GOLDEN_SEED_0
    assert rank(2**64 - 1, 41, 123_456) == GOLDEN_LARGE


def test_a_seed_counts_modulo_two_to_the_64() -> None:
    assert rank(-1, 0, 5) == rank(2**64 - 1, 0, 5)


def test_both_faces_agree() -> None:
    for seed, shard, first in [(0, 0, 0), (7, 3, 1000), (2**63, 2**32 - 1, 2**32 - 200)]:
        places = numpy.arange(first, first + 200, dtype=numpy.uint32)
        found = rank_places(seed, numpy.full_like(places, shard), places)
        assert found.tolist() == [rank(seed, shard, place) for place in places.tolist()]
