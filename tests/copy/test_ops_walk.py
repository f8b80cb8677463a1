"""Many headers at once: whatever the quick walk says of a buffer, the exact scan says too."""

from __future__ import annotations

import numpy
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from wdscli.copy.buffers import clear_padding
from wdscli.copy.walk import Walker
from wdscli.errors import DataError
from wdscli.samples import SampleBatch, group_columns
from wdscli.shards.index import IndexBuilder, Packed
from wdscli.tar import CANONICAL, Form, Scanner, build_header, padding

Sample = tuple[bytes, list[tuple[bytes, bytes]]]


def buffer_of(samples: list[Sample], form: Form = CANONICAL) -> tuple[bytearray, list[int]]:
    """Samples one behind the other, and where each begins."""
    data, begins = bytearray(), []
    for key, fields in samples:
        begins.append(len(data))
        for field, payload in fields:
            data += build_header(key + b"." + field, len(payload), form) + payload + padding(len(payload))
    return data, begins


def walked(data: bytearray, begins: list[int], keys: list[bytes], form: Form = CANONICAL) -> Packed | None:
    hashes = numpy.array([xxh3_64_intdigest(key) for key in keys], dtype=numpy.uint64)
    return Walker(form, xxh3_64_intdigest).walk(
        memoryview(data), numpy.array(begins, dtype=numpy.int64), hashes
    )


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


def index_of(batch: SampleBatch | None = None, packed: Packed | None = None, shift: int = 0) -> bytes:
    """The index that a builder makes, behind one sample that lies before."""
    builder = IndexBuilder()
    builder.add_sample(b"first", 0, [b"z", b"f1"], [512, 1536], [7, 8])
    if batch is not None:
        starts, offsets = ([at + shift for at in column] for column in (batch.starts, batch.offsets))
        builder.add_batch(batch._replace(starts=starts, offsets=offsets))
    if packed is not None:
        builder.add_packed(packed, shift)
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


@given(sample_lists)
def test_it_finds_what_the_exact_scan_finds(samples: list[Sample]) -> None:
    data, begins = buffer_of(samples)
    packed = walked(data, begins, [key for key, _ in samples])
    if packed is not None:
        batch = scanned(data)
        assert batch is not None
        assert batch.keys == [key for key, _ in samples]
        assert not any(batch.flags)
        assert index_of(packed=packed, shift=2048) == index_of(batch, shift=2048)


@given(sample_lists, st.data())
def test_what_was_changed_is_never_taken_for_what_was_planned(
    samples: list[Sample], draw: st.DataObject
) -> None:
    data, begins = buffer_of(samples)
    at = draw.draw(st.integers(0, len(data) - 1))
    if draw.draw(st.booleans()):
        at = at // 512 * 512 + at % 160
    data[at] ^= draw.draw(st.integers(1, 255))
    packed = walked(data, begins, [key for key, _ in samples])
    if packed is not None:
        batch = scanned(data)
        assert batch is not None
        assert batch.keys == [key for key, _ in samples]
        assert not any(batch.flags)
        assert index_of(packed=packed, shift=2048) == index_of(batch, shift=2048)


@pytest.mark.parametrize("form", [CANONICAL, Form(mtime=1_700_000_000)])
@pytest.mark.parametrize(
    "key",
    [b"k%03d", b"n%d", b"dir/a%03d", b"a.b/c%03d", b"_%d", b"a/b/%d", b"\xc3\xa9%d", b"x" * 90 + b"%03d"],
)
def test_plain_samples_are_walked(key: bytes, form: Form) -> None:
    """All kinds of names that a canonical header holds, with as many members as they like."""
    samples = [(key % n, [(b"cls", b"%d" % n), *([(b"jpg", b"x" * n)] * (n % 3 > 0))]) for n in range(1, 120)]
    data, begins = buffer_of(samples, form)
    packed = walked(data, begins, [key for key, _ in samples], form)
    assert packed is not None
    assert index_of(packed=packed) == index_of(scanned(data, form))
    assert walked(data, begins, [key for key, _ in samples], Form(mtime=5)) is None


def spoiled(change: bytes, at: int) -> bytearray:
    data, _ = buffer_of(SAMPLES)
    data[at : at + len(change)] = change
    return data


SAMPLES: list[Sample] = [(b"k%03d" % n, [(b"cls", b"%d" % n), (b"jpg", b"x" * 600)]) for n in range(60)]
SECOND = 1024
"""Where the first sample has its second header."""


@pytest.mark.parametrize(
    ("change", "at"),
    [
        (b"K", 0), (b"K", SECOND), (b"\0", 2), (b"x", 99), (b"1", 103), (b"7", 124), (b"8", 134), (b" ", 135),
        (b"1", 140), (b"5", 149), (b" ", 154), (b"\0", 155), (b"5", 156), (b"x", 157), (b"a", 345), (b"1", 511),
        (b"/", 5), (b".", 1), (b"\x80", 124), (b"/", SECOND + 5), (b"\0", SECOND + 5), (bytes(512), SECOND),
    ],
)  # fmt: skip
def test_anything_unusual_is_left_to_the_exact_path(change: bytes, at: int) -> None:
    data, begins = buffer_of(SAMPLES)
    names = [key for key, _ in SAMPLES]
    assert walked(data, begins, names) is not None
    assert walked(spoiled(change, at), begins, names) is None


def test_another_key_than_planned() -> None:
    data, begins = buffer_of(SAMPLES)
    names = [key for key, _ in SAMPLES]
    assert walked(data, begins, [*names[:-1], b"k000"]) is None
    assert walked(data, [*begins[:5], begins[5] + 1024, *begins[6:]], names) is None


def test_neighbours_of_one_key_are_left_to_the_exact_path() -> None:
    samples = [(b"same", [(b"a", b"1")]), (b"same", [(b"b", b"2")])]
    data, begins = buffer_of(samples)
    assert walked(data, begins, [b"same", b"same"]) is None


@given(sample_lists)
@example([(b"k", [(b"x", b"\1" * 512)])])
def test_dirty_padding_is_seen(samples: list[Sample]) -> None:
    data, begins = buffer_of(samples)
    packed = walked(data, begins, [key for key, _ in samples])
    if packed is None:
        return
    walker, view = Walker(CANONICAL, xxh3_64_intdigest), memoryview(data)
    assert not walker.has_dirty_padding(view, packed)
    for offset, size in zip(packed.offsets.tolist(), packed.sizes.tolist(), strict=True):
        end = offset + size
        for at in {end, (end | 511)} if size % 512 else ():
            data[at] = 1
            assert walker.has_dirty_padding(view, packed)
            clear_padding(view, 0, packed.offsets.tolist(), packed.sizes.tolist())
            assert not walker.has_dirty_padding(view, packed)


def test_a_payload_that_reaches_into_the_next_sample() -> None:
    """A plan that takes a member inside a payload for a sample of its own."""
    inner, _ = buffer_of([(b"inner", [(b"x", b"y")])])
    data, _ = buffer_of([(b"outer", [(b"tar", bytes(inner))])])
    assert walked(data, [0], [b"outer"]) is not None
    assert walked(data, [0, 512], [b"outer", b"inner"]) is None
