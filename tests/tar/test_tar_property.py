"""Any bytes, any cut, any flipped bit: the same names and sizes or a DataError, in bounded memory and reads."""

from __future__ import annotations

import io
import tarfile
import tracemalloc

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tar_cases import FileSource, Outcome, StreamSource, archive, outcome, patched, scanned, with_checksum
from tiers import examples
from waits import seconds_of

from wdscli.errors import DataError
from wdscli.samples import iter_batches, iter_samples
from wdscli.tar import TarWriter, build_header
from wdscli.tar.header import extended, pax_record
from wdscli.tar.reader import scan_salvaging


def shards() -> dict[str, bytes]:
    """Good shards of several makes, small members and one of some KiB."""
    payloads = [
        (b"k%d.%s" % (index // 2, (b"jpg", b"cls")[index % 2]), b"p" * (index * 97)) for index in range(12)
    ]
    payloads += [
        (b"d" * 90 + b"/" + b"n" * 30 + b".txt", b"x"),
        (b"u" * 280 + b".txt", b"y" * 20000),
        (b"z.txt", b""),
    ]
    made = {}
    out = io.BytesIO()
    with TarWriter(out) as tar:
        for name, payload in payloads:
            tar.add(name, payload)
    made["canonical"] = out.getvalue()
    for label, form in (
        ("ustar", tarfile.USTAR_FORMAT),
        ("gnu", tarfile.GNU_FORMAT),
        ("pax", tarfile.PAX_FORMAT),
    ):
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w", format=form) as archive_:
            for name, payload in payloads:
                member = tarfile.TarInfo(name.decode())
                member.size, member.mtime = len(payload), 1_700_000_000.25
                if form != tarfile.USTAR_FORMAT or len(name) < 250:
                    archive_.addfile(member, io.BytesIO(payload))
        made[label] = out.getvalue()
    return made


SHARDS = shards()
GOOD = {label: scanned(data) for label, data in SHARDS.items()}
labels = st.sampled_from(sorted(SHARDS))


def test_the_good_shards_are_good() -> None:
    assert all(found.error is None and len(found.rows) >= 14 for found in GOOD.values())


def both_ways(data: bytes) -> Outcome:
    found = outcome(FileSource(data))
    assert outcome(StreamSource(data, range(0, len(data), 1000)), payloads=True) == found
    return found


def members_before_trouble(found: Outcome, good: Outcome) -> bool:
    """Whether the members found are the good ones, as far as they go."""
    return (found.names, found.sizes) == (good.names[: len(found.rows)], good.sizes[: len(found.rows)])


@given(labels, st.integers(0, 10**9))
@settings(max_examples=examples(300), deadline=None)
def test_any_truncation(label: str, keep: int) -> None:
    data = SHARDS[label]
    kept = data[: keep % len(data)]
    found = both_ways(kept)
    assert members_before_trouble(found, GOOD[label])
    # Whole only when all that was cut off is zeros that may follow the end of an archive.
    whole = not data[len(kept) :].strip(b"\0") and len(kept) >= GOOD[label].rows[-1].offset + 1024
    assert (found.error is None) == whole


def test_every_truncation_of_the_last_kib() -> None:
    data = archive(build_header(b"a", 1), b"a")
    for keep in range(len(data)):
        assert both_ways(data[:keep]).error is not None


@given(labels, st.integers(0, 10**9), st.integers(0, 7))
@settings(max_examples=examples(600), deadline=None)
def test_any_flipped_bit(label: str, place: int, bit: int) -> None:
    data = bytearray(SHARDS[label])
    data[place % len(data)] ^= 1 << bit
    found = both_ways(bytes(data))
    good = GOOD[label]
    if found.error is None and (found.names, found.sizes) != (good.names, good.sizes):
        # Only the data of an extended header has no checksum.
        assert in_extended_data(bytes(data), place % len(data), good)


def in_extended_data(data: bytes, place: int, good: Outcome) -> bool:
    return any(row.start + 512 <= place < row.offset - 512 for row in good.rows)


def test_every_flipped_bit_of_a_header_is_noticed() -> None:
    for blocks in (build_header(b"a.txt", 5), patched(build_header(b"a.txt", 5), 265, b"me")):
        before = archive(*[blocks, b"12345"] * 3)
        for bit in range(512 * 8):
            data = bytearray(before)
            data[1024 + bit // 8] ^= 1 << bit % 8
            found = scanned(bytes(data))
            if 148 <= bit // 8 < 156 and found.error is None:
                # Other bytes for the same checksum, such as a blank for a leading zero.
                assert found.names == [b"a.txt"] * 3
            else:
                assert found.error == ("bad-checksum", 1024, None)


@given(st.binary(max_size=3000))
@example(bytes(1024))
@example(b"\0" * 512 + b"x")
@settings(max_examples=examples(300), deadline=None)
def test_any_bytes(data: bytes) -> None:
    both_ways(data)
    errors: list[DataError] = []
    list(scan_salvaging(FileSource(data), errors.append))
    list(scan_salvaging(StreamSource(data), errors.append))


def block_of(fields: list[tuple[int, bytes]]) -> bytes:
    block = bytearray(build_header(b"name.txt", 3))
    for at, value in fields:
        block[at : at + len(value)] = value
    return with_checksum(bytes(block[:512]))


FIELD = st.one_of(
    st.tuples(st.just(124), st.binary(min_size=12, max_size=12)),
    st.tuples(st.just(124), st.integers(0, 4000).map(lambda size: b"%011o\0" % size)),
    st.tuples(st.just(156), st.sampled_from(b"01234567xgXLKSVDMN\0\xff").map(lambda byte: bytes([byte]))),
    st.tuples(st.just(257), st.sampled_from([b"ustar  \0", b"ustar\x0000", bytes(8)])),
    st.tuples(st.integers(0, 511), st.binary(max_size=12)),
).map(lambda patch: (patch[0], patch[1][: 512 - patch[0]]))
PAX_DATA = st.lists(
    st.tuples(
        st.sampled_from([b"path", b"size", b"mtime", b"GNU.sparse.major", b"GNU.sparse.name", b"hdrcharset"]),
        st.binary(max_size=30) | st.integers(-5, 1 << 70).map(lambda number: b"%d" % number),
    ),
    max_size=4,
).map(lambda records: b"".join(pax_record(*record) for record in records))
PART = st.one_of(
    st.lists(FIELD, max_size=3).map(block_of),
    PAX_DATA.map(lambda data: extended(b"x", data)),
    PAX_DATA.map(lambda data: extended(b"g", data)),
    st.binary(max_size=300).map(lambda data: extended(b"x", data)),
    st.binary(max_size=300).map(lambda data: extended(b"L", data)),
    st.binary(max_size=600).map(lambda data: data.ljust((len(data) + 511) // 512 * 512, b"\0")),
    st.just(build_header(b"a.txt", 3) + b"abc".ljust(512, b"\0")),
)


@pytest.mark.exhaustive
@given(st.lists(PART, max_size=12), st.booleans(), st.integers(0, 700))
@settings(max_examples=examples(500), deadline=None)
def test_any_blocks_with_right_checksums(parts: list[bytes], ended: bool, cut: int) -> None:
    data = b"".join(parts) + (bytes(1024) if ended else b"")
    data = data[: max(0, len(data) - cut)] if not ended else data
    found = both_ways(data)
    assert all(0 <= row.start < row.offset <= row.offset + row.size <= len(data) for row in found.rows)
    places = [row.start for row in found.rows]
    assert places == sorted(set(places))
    for source in (FileSource(data), StreamSource(data)):
        errors: list[DataError] = []
        names = [name for window in scan_salvaging(source, errors.append) for name in window.columns.names]
        assert names[: len(found.rows)] == found.names
        assert bool(errors) == (found.error is not None)


@given(labels, st.integers(0, 10**9), st.integers(0, 7), st.integers(1, 64))
@settings(max_examples=examples(200), deadline=None)
def test_samples_of_a_damaged_shard(label: str, place: int, bit: int, blocks: int) -> None:
    data = bytearray(SHARDS[label])
    data[place % len(data)] ^= 1 << bit
    kept = bytes(data[: len(data) - 512 * (blocks % 7)])
    for run in (iter_batches, iter_samples):
        try:
            list(run(FileSource(kept)))  # type: ignore[operator]
        except DataError as error:
            assert error.shard == "x.tar"


HOSTILE = {
    "pax size of thirty digits": extended(b"x", pax_record(b"size", b"9" * 30)),
    "header said to be 4 GiB": patched(extended(b"x", b""), 124, b"40000000000\0"),
    "headers of 1 MiB": extended(b"x", pax_record(b"a", b"1" * 50) * 6400) * 3,
    "chained headers": extended(b"x", pax_record(b"path", b"p")) * 1000,
    "chained long names": extended(b"L", b"n" * 600) * 1000,
    "chained globals": extended(b"g", pax_record(b"comment", b"p")) * 1000,
    "zero-length record": extended(b"x", b"0 =\n" * 1000),
    "record of huge length": extended(b"x", b"9" * 20 + b" path=a\n"),
    "digits without end": extended(b"x", b"9" * 100000),
    "records that overlap": extended(b"x", b"30 path=a\n" * 100),
    "a sparse bomb": extended(
        b"x",
        pax_record(b"GNU.sparse.major", b"1") + pax_record(b"GNU.sparse.minor", b"0")
        + pax_record(b"GNU.sparse.realsize", b"9" * 18),
    ) + build_header(b"s", 512) + b"99999999999999\n".ljust(512, b"\0"),
    "sparse maps": patched(patched(build_header(b"s", 0), 156, b"S"), 482, b"\1")
    + (bytes(504) + b"\1" + bytes(7)) * 9999,
    "negative size": patched(build_header(b"a", 0), 124, b"\xff" * 12),
    "2^63": patched(build_header(b"a", 0), 124, b"\x80\0\0\0\x80" + bytes(7)),
    "2^63-1": patched(build_header(b"a", 0), 124, b"\x80\0\0\0\x7f" + b"\xff" * 7),
}  # fmt: skip


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE.keys())
@pytest.mark.parametrize("stream", [False, True], ids=["file", "stream"])
def test_hostile(data: bytes, stream: bool) -> None:
    data += build_header(b"after", 0) + bytes(1024)
    source = StreamSource(data, range(0, len(data), 65536)) if stream else FileSource(data)
    tracemalloc.start()
    found = outcome(source)
    list(scan_salvaging(StreamSource(data) if stream else FileSource(data), lambda error: None))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.error is not None or found.names == [b"s", b"after"]
    assert peak < 80 << 20
    if isinstance(source, FileSource):  # a stream asserts that nothing is read twice
        assert source.bytes_read <= 2 * len(data)


@pytest.mark.exhaustive
def test_many_small_globals_take_no_time() -> None:
    big = extended(b"g", b"".join(pax_record(b"k%d" % index, b"v" * 20) for index in range(20000)))
    small = (extended(b"g", pax_record(b"k1", b"w")) + build_header(b"a", 0)) * 3000 + bytes(1024)
    assert scanned(big + small).error is None
    apart = seconds_of(lambda: scanned(big + bytes(1024))) + seconds_of(lambda: scanned(small))
    assert seconds_of(lambda: scanned(big + small)) < 10 * apart


def test_a_pax_header_of_many_records_is_linear() -> None:
    few, many = (
        archive(extended(b"x", b"6 a=1\n" * count) + build_header(b"a", 0)) for count in (17_000, 170_000)
    )
    assert scanned(many).names == [b"a"]
    assert seconds_of(lambda: scanned(many)) < 40 * seconds_of(lambda: scanned(few))
