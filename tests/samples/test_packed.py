"""Samples in a buffer made canonical at once: whatever the compiled core says of them, the exact path says too."""

from __future__ import annotations

import tarfile
from itertools import pairwise

import numpy
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from index_samples import add_sample
from tar_cases import with_checksum

from wdscli.arrays import SampleArrays
from wdscli.errors import DataError
from wdscli.samples import SampleBatch, group_columns
from wdscli.samples.reading import packed
from wdscli.shards.index import IndexBuilder
from wdscli.tar import CANONICAL, Form, Scanner, build_header, padding


@pytest.fixture(scope="module", autouse=True)
def compiled(running_core: str) -> None:
    if running_core == "plain":
        pytest.skip("the compiled core alone looks at a buffer at once")


Sample = tuple[bytes, list[tuple[bytes, bytes]]]


def buffer_of(samples: list[Sample], form: Form = CANONICAL) -> tuple[bytearray, list[int]]:
    """Samples one behind the other, and where each begins."""
    data, begins = bytearray(), []
    for key, fields in samples:
        begins.append(len(data))
        for field, payload in fields:
            data += build_header(key + b"." + field, len(payload), form) + payload + padding(len(payload))
    return data, begins


def keys_of(arrays: SampleArrays) -> list[bytes]:
    """The keys, apart."""
    return [arrays.keys[first:end] for first, end in pairwise([0, *arrays.key_lengths.cumsum().tolist()])]


def made(data: bytearray, begins: list[int], form: Form = CANONICAL) -> tuple[bytes, SampleArrays] | None:
    """The canonical samples that a buffer becomes, and what is said of them. Neighbours of one key are as good as none:
    the copier leaves them to the exact path."""
    view = memoryview(bytearray(data))
    found = packed(view, numpy.array(begins, dtype=numpy.int64), form)
    if found is None or any(one == other for one, other in pairwise(keys_of(found.arrays))):
        return None
    return bytes(found.settle(view)), found.arrays


def scanned(data: bytearray, form: Form = CANONICAL) -> SampleBatch | None:
    """What the exact path finds; None when it finds anything wrong."""
    scanner = Scanner(form=form)
    try:
        scanner.feed(memoryview(data), 0)
    except DataError:
        return None
    if scanner.position != len(data) or not scanner.is_at_member:
        return None
    return group_columns(scanner.take(), "shard")


def index_of(batch: SampleBatch | None = None, arrays: SampleArrays | None = None, shift: int = 0) -> bytes:
    """The index that a builder makes, behind one sample that lies before."""
    builder = IndexBuilder()
    add_sample(builder, b"first", 0, [b"z", b"f1"], [512, 1536], [7, 8])
    if batch is not None:
        starts, offsets = ([at + shift for at in column] for column in (batch.starts, batch.offsets))
        builder.add_batch(batch._replace(starts=starts, offsets=offsets))
    if arrays is not None:
        builder.add_arrays(arrays, shift)
    totals = repr(builder.totals()).encode()
    return builder.to_bytes(shard="a.tar", size=1 << 30) + totals


letters = st.text(alphabet="ab/._1", min_size=1, max_size=12).map(str.encode)
sizes = st.sampled_from([0, 1, 3, 511, 512, 513, 1024, 1500])
payloads = st.builds(lambda byte, size: bytes([byte]) * size, st.integers(1, 255), sizes)
fields = st.lists(
    st.tuples(st.sampled_from([b"cls", b"jpg", b"seg.png", b"x"]), payloads), min_size=1, max_size=4
)
uniform = st.integers(1, 40).map(lambda count: [b"d/k%04d" % number for number in range(count)])
keys = st.one_of(
    uniform,
    st.integers(1, 30).map(lambda count: [b"k%d" % (number * 7) for number in range(count)]),
    st.lists(letters, min_size=1, max_size=6),
)
sample_lists = keys.flatmap(lambda some: st.tuples(*(st.tuples(st.just(key), fields) for key in some))).map(
    list
)


def check(data: bytearray, begins: list[int], form: Form = CANONICAL) -> bool:
    """Whether the buffer was taken for usual samples; then the exact path says the same of it and of what it became."""
    found = made(data, begins, form)
    if found is None:
        return False
    whole, arrays = found
    batch = scanned(data, form)
    assert batch is not None
    assert [batch.start(row) for row in range(len(batch.keys))] == begins
    names = [
        batch.keys[row] + b"."
        for row, end in enumerate(batch.firsts[1:])
        for _ in range(batch.firsts[row], end)
    ]
    expected = b"".join(
        build_header(name + field, size, form) + data[offset : offset + size] + padding(size)
        for name, field, offset, size in zip(names, batch.fields, batch.offsets, batch.sizes, strict=True)
    )
    assert whole == expected
    again = scanned(bytearray(whole), form)
    assert again is not None
    assert not any(again.marks)
    assert index_of(arrays=arrays, shift=2048) == index_of(again, shift=2048)
    return True


def foreign(name: bytes, payload: bytes, way: int) -> bytes:
    """A member as others write it."""
    info = tarfile.TarInfo(name.decode("utf-8", "surrogateescape"))
    info.size, info.mtime, info.uname = len(payload), 1_600_000_000 + way, "me"
    if way == 2:
        info.mtime = 1_600_000_000.25  # type: ignore[assignment]
    kind = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)[way]
    return info.tobuf(kind, "utf-8", "surrogateescape") + payload + b"\1" * len(padding(len(payload)))


@pytest.mark.exhaustive
@given(sample_lists, st.lists(st.integers(0, 3), min_size=1))
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_it_finds_and_makes_what_the_exact_path_does(samples: list[Sample], ways: list[int]) -> None:
    data, begins, number = bytearray(), [], 0
    for key, of_sample in samples:
        begins.append(len(data))
        for field, payload in of_sample:
            way = ways[number % len(ways)]
            number += 1
            one = [(key, [(field, payload)])]
            data += buffer_of(one)[0] if way == 3 else foreign(key + b"." + field, payload, way)
    check(data, begins)


@given(sample_lists, st.data())
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_what_was_changed_is_never_taken_for_something_else(
    samples: list[Sample], draw: st.DataObject
) -> None:
    data, begins = buffer_of(samples)
    at = draw.draw(st.integers(0, len(data) - 1))
    if draw.draw(st.booleans()):
        at = at // 512 * 512 + at % 160
    data[at] ^= draw.draw(st.integers(1, 255))
    check(data, begins)


@pytest.mark.parametrize("size", [1, 511, 513, 1023])
@pytest.mark.parametrize("place", [0, -1])
def test_a_padding_becomes_zeros(size: int, place: int) -> None:
    """Also in a buffer whose headers are all canonical."""
    data, begins = buffer_of([(b"a", [(b"cls", b"1"), (b"txt", b"x" * size)]), (b"b", [(b"cls", b"1")])])
    data[1024 + 512 + size if place == 0 else begins[1] - 1] = 1
    assert check(data, begins)


@pytest.mark.parametrize("form", [CANONICAL, Form(mtime=1_700_000_000)])
@pytest.mark.parametrize(
    "key",
    [b"k%03d", b"n%d", b"dir/a%03d", b"a.b/c%03d", b"_%d", b"a/b/%d", b"\xc3\xa9%d", b"x" * 90 + b"%03d"],
)
def test_plain_samples_are_walked(key: bytes, form: Form) -> None:
    """All kinds of names that a canonical header holds, with as many members as they like."""
    samples = [(key % n, [(b"cls", b"%d" % n), *([(b"jpg", b"x" * n)] * (n % 3 > 0))]) for n in range(1, 120)]
    data, begins = buffer_of(samples, form)
    assert check(data, begins, form)
    assert check(data, begins, Form(mtime=5))


SAMPLES: list[Sample] = [(b"k%03d" % n, [(b"cls", b"%d" % n), (b"jpg", b"x" * 600)]) for n in range(60)]
SECOND = 1024
"""Where the first sample has its second header."""


@pytest.mark.parametrize(
    ("change", "at"),
    [
        (b"K", 0), (b"K", SECOND), (b"x", 99), (b"1", 103), (b"7", 124), (b"8", 134), (b"1", 140), (b"5", 149),
        (b"5", 156), (b"x", 157), (b"a", 345), (b"1", 511), (b"/", 5), (b".", 1), (b"\x80", 124),
        (b"/", SECOND + 5), (b"\0", SECOND + 5), (bytes(512), SECOND),
    ],
)  # fmt: skip
def test_anything_unusual_is_left_to_the_exact_path(change: bytes, at: int) -> None:
    data, begins = buffer_of(SAMPLES)
    assert check(data, begins)
    data[at : at + len(change)] = change
    assert made(data, begins) is None


@pytest.mark.parametrize("typeflag", [b"1", b"2", b"5", b"S", b"g", b"7"])
def test_other_members_are_left_to_the_exact_path(typeflag: bytes) -> None:
    data, begins = buffer_of(SAMPLES)
    data[:512] = with_checksum(bytes(data[:156]) + typeflag + bytes(data[157:512]))
    assert made(data, begins) is None


def test_samples_that_begin_elsewhere() -> None:
    data, begins = buffer_of(SAMPLES)
    assert made(data, [*begins[:5], begins[5] + 1024, *begins[6:]]) is None
    assert made(data, begins[1:]) is None
    assert made(data, [*begins, len(data) + 512]) is None
    assert made(data, [*begins, len(data)]) is None
    assert made(data, [begins[0], begins[2], begins[1]]) is None


@pytest.mark.exhaustive
@given(sample_lists)
@example([(b"k", [(b"x", b"\1" * 512)])])
def test_padding_becomes_zeros(samples: list[Sample]) -> None:
    data, begins = buffer_of(samples)
    found = made(data, begins)
    if found is None:
        return
    for offset, size in zip(found[1].offsets.tolist(), found[1].sizes.tolist(), strict=True):
        end = offset + size
        for at in {end, (end | 511)} if size % 512 else ():
            data[at] = 1
    assert made(data, begins) is not None
    assert check(data, begins)


def test_a_payload_that_reaches_into_the_next_sample() -> None:
    """A plan that takes a member inside a payload for a sample of its own."""
    inner, _ = buffer_of([(b"inner", [(b"x", b"y")])])
    data, _ = buffer_of([(b"outer", [(b"tar", bytes(inner))])])
    assert made(data, [0]) is not None
    assert made(data, [0, 512]) is None
