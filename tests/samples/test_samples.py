"""The key rule and the grouping."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tar_cases import FileSource, StreamSource, archive, patched
from tiers import examples

from wdscli.errors import DataError, UsageError
from wdscli.samples import (
    RAGGED,
    SampleBatch,
    check_name,
    grouping,
    is_dunder,
    iter_batches,
    iter_samples,
    split_name,
    why_ignored,
)
from wdscli.tar import DIRECTORY, FOREIGN, GLOBAL, REGULAR, build_header
from wdscli.tar.header import extended, pax_record

NAMES = st.text(alphabet="ab./_", min_size=1, max_size=12)


def webdataset_rule() -> Callable[[str], tuple[str | None, str | None]]:
    tariterators = pytest.importorskip("webdataset.tariterators")
    return tariterators.base_plus_ext  # type: ignore[no-any-return]


def webdataset_skips(name: str) -> bool:
    """What its tar_file_iterator passes over."""
    plain = "/" not in name and name.startswith("__") and name.endswith("__")
    return plain or re.match(r"__[^/]*__($|/)", name) is not None


@given(NAMES)
@settings(max_examples=examples(2000), deadline=None)
def test_the_key_rule_is_webdatasets(name: str) -> None:
    key, field = webdataset_rule()(name)
    ours = split_name(name.encode())
    if key is None or not field or webdataset_skips(name):
        assert ours is None
    elif key.endswith("/"):
        # A hidden file would be a field of its folder; here it is no part of a sample.
        assert ours is None
        assert name.rpartition("/")[2].startswith(".")
    else:
        assert ours == (key.encode(), str(field).encode())


@given(NAMES)
@settings(deadline=None)
def test_skipped_names_are_webdatasets(name: str) -> None:
    # Two or three underscores have no dot, and so belong to no sample anyway.
    assert is_dunder(name.encode()) == (webdataset_skips(name) and name not in ("__", "___"))


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("a.jpg", ("a", "jpg")),
        ("d/a.seg.png", ("d/a", "seg.png")),
        ("d.x/a.jpg", ("d.x/a", "jpg")),
        ("d.x/a", None),
        ("README", None),
        ("a.", None),
        (".hidden", None),
        ("d/._a.jpg", None),
        ("__meta__", None),
        ("__meta__/a.jpg", None),
        ("d/__meta__/a.jpg", ("d/__meta__/a", "jpg")),
        ("__a.jpg", ("__a", "jpg")),
        ("____.jpg", ("____", "jpg")),
        ("\xff.\xfe", ("\xff", "\xfe")),
    ],
)
def test_split_name(name: str, parts: tuple[str, str] | None) -> None:
    expected = None if parts is None else (parts[0].encode("latin-1"), parts[1].encode("latin-1"))
    assert split_name(name.encode("latin-1")) == expected


def test_check_name() -> None:
    check_name(b"d/a", b"seg.png")
    for key, field in (
        (b"a.b", b"c"),
        (b"a", b"b/c"),
        (b"", b"a"),
        (b"a", b""),
        (b"d/", b"x"),
        (b"__a__/b", b"c"),
    ):
        with pytest.raises(UsageError, match="read back"):
            check_name(key, field)
    for key in (b"/a", b"../a", b"d/../a", b"a\0"):
        with pytest.raises(UsageError, match="unsafe"):
            check_name(key, b"jpg")


def test_why_ignored() -> None:
    assert why_ignored(b"d/", DIRECTORY) == "directory"
    assert why_ignored(b"d/._a.jpg", REGULAR) == "appledouble"
    assert why_ignored(b"__meta__", REGULAR) == "dunder"
    assert why_ignored(b"README", REGULAR) == "no-field"


def member(name: bytes, size: int = 3) -> list[bytes]:
    return [build_header(name, size), name[:1] * size]


def folder(name: bytes) -> list[bytes]:
    return [patched(build_header(name, 0), 156, b"5"), b""]


def shard(*names: bytes) -> bytes:
    return archive(
        *[part for name in names for part in (folder(name) if name.endswith(b"/") else member(name))]
    )


def all_batches(data: bytes, **options: object) -> list[SampleBatch]:
    return list(iter_batches(FileSource(data), **options))  # type: ignore[arg-type]


def flat(batches: list[SampleBatch]) -> list[tuple[int, bytes, list[bytes], int, int, int, list[int]]]:
    """Every sample with all that is known of it, whatever batch it came in."""
    found = []
    for batch in batches:
        assert len(batch.firsts) == len(batch.keys) + 1 == len(batch.marks) + 1
        assert (
            batch.firsts[-1] == len(batch.fields) == len(batch.starts) == len(batch.sizes) == len(batch.flags)
        )
        for row, key in enumerate(batch.keys):
            low, high = batch.firsts[row], batch.firsts[row + 1]
            assert low < high
            fields, sizes = batch.fields[low:high], batch.sizes[low:high]
            found.append(
                (batch.index + row, key, fields, batch.start(row), batch.end(row), batch.marks[row], sizes)
            )
    return found


def test_adjacent_members_are_a_sample() -> None:
    data = shard(b"a.jpg", b"a.cls", b"b.jpg", b"d/b.jpg", b"d/b.seg.png", b"b.cls")
    samples = flat(all_batches(data))
    assert [(key, fields) for _, key, fields, *_ in samples] == [
        (b"a", [b"jpg", b"cls"]),
        (b"b", [b"jpg"]),
        (b"d/b", [b"jpg", b"seg.png"]),
        (b"b", [b"cls"]),
    ]
    assert [(start, end, mark) for _, _, _, start, end, mark, _ in samples] == [
        (0, 2048, 0),
        (2048, 3072, 0),
        (3072, 5120, 0),
        (5120, 6144, 0),
    ]


def test_a_key_that_begins_like_another_is_another() -> None:
    data = shard(b"a.jpg", b"a.b/c.jpg", b"ab.jpg", b"a.cls")
    assert [key for _, key, *_ in flat(all_batches(data))] == [b"a", b"a.b/c", b"ab", b"a"]
    assert [sample.key for sample in iter_samples(FileSource(data))] == ["a", "a.b/c", "ab", "a"]


JUNK = [b"README", b"._a.jpg", b"__x__", b"__x__/a.jpg", b"d/", b"d/.hidden", b"a."]


@pytest.mark.parametrize("junk", JUNK)
def test_members_of_no_sample_are_counted_and_make_a_sample_ragged(junk: bytes) -> None:
    for between, after in ((RAGGED, [junk]), (0, [])):
        names = [b"a.jpg", *after, b"a.cls", junk, b"b.jpg"]
        ignored = Counter[str]()
        samples = flat(all_batches(shard(*names), ignored=ignored))
        assert [(key, fields) for _, key, fields, *_ in samples] == [
            (b"a", [b"jpg", b"cls"]),
            (b"b", [b"jpg"]),
        ]
        assert [mark & RAGGED for _, _, _, _, _, mark, _ in samples] == [between, 0]
        assert sum(ignored.values()) == 1 + len(after)
        assert list(ignored) == [why_ignored(junk, DIRECTORY if junk == b"d/" else REGULAR)]


def test_marks_gather_the_flags_of_the_members() -> None:
    foreign = patched(build_header(b"a.cls", 3), 265, b"me")
    data = archive(*member(b"a.jpg"), foreign, b"aaa", *member(b"b.jpg"))
    assert [mark for *_, mark, _ in flat(all_batches(data))] == [FOREIGN, 0]
    glob = extended(b"g", pax_record(b"comment", b"x"))
    data = archive(*member(b"a.jpg"), glob + build_header(b"b.jpg", 0))
    assert [mark for *_, mark, _ in flat(all_batches(data))] == [0, FOREIGN | GLOBAL]


@pytest.mark.parametrize(
    ("typeflag", "code"), [(b"2", "link"), (b"1", "link"), (b"3", "special"), (b"S", "sparse")]
)
def test_links_and_the_like_are_errors(typeflag: bytes, code: str) -> None:
    odd = patched(build_header(b"b.jpg", 0), 156, typeflag)
    data = archive(*member(b"a.jpg"), odd, *member(b"c.jpg"))
    for run in (iter_batches, iter_samples):
        with pytest.raises(DataError) as caught:
            list(run(FileSource(data)))  # type: ignore[operator]
        error = caught.value
        assert (error.code, error.offset, error.member, error.shard) == (code, 1024, "b.jpg", "x.tar")
    ignored = Counter[str]()
    samples = flat(all_batches(data, lenient=True, ignored=ignored))
    assert ([key for _, key, *_ in samples], ignored) == ([b"a", b"c"], {code: 1})


@pytest.mark.parametrize("fields", [[b"jpg", b"jpg"], [b"jpg", b"cls", b"jpg"]])
def test_a_field_that_comes_twice(fields: list[bytes]) -> None:
    data = shard(b"z.jpg", *[b"a." + field for field in fields], b"b.jpg")
    for run in (iter_batches, iter_samples):
        for source in (FileSource(data), StreamSource(data, range(0, len(data), 700))):
            with pytest.raises(DataError) as caught:
                list(run(source))  # type: ignore[operator]
            error = caught.value
            assert (error.code, error.offset, error.member) == (
                "duplicate-field",
                1024 * len(fields),
                "a.jpg",
            )
    samples = flat(all_batches(data, lenient=True))
    assert [sample[2] for sample in samples] == [[b"jpg"], fields, [b"jpg"]]


def test_the_samples_before_a_field_that_comes_twice_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    data = shard(b"a.jpg", b"b.jpg", b"b.cls", b"c.jpg", b"c.jpg", b"d.jpg", b"d.jpg")
    for chunk in (512, 2048, 1 << 20):
        keys = []
        monkeypatch.setattr(grouping, "CHUNK_BYTES", chunk)
        with pytest.raises(DataError) as caught:
            for batch in iter_batches(FileSource(data)):
                keys += batch.keys
        assert (keys, caught.value.offset) == ([b"a", b"b"], 4096)


MEMBERS = st.lists(
    st.sampled_from([b"a.jpg", b"a.cls", b"a.txt", b"b.jpg", b"b.cls", b"d/a.jpg", b"c.x", b"c.y", *JUNK]),
    max_size=25,
)


@given(MEMBERS, st.sampled_from([512, 1024, 1536, 2048, 5000]), st.lists(st.integers(0, 30000), max_size=20))
@settings(max_examples=examples(400), deadline=None)
def test_grouping_does_not_show_where_buffers_end(names: list[bytes], chunk: int, cuts: list[int]) -> None:
    data = shard(*names)

    def groups(source: FileSource | StreamSource, size: int) -> tuple[object, dict[str, int]]:
        ignored = Counter[str]()
        with pytest.MonkeyPatch.context() as patched_size:
            patched_size.setattr(grouping, "CHUNK_BYTES", size)
            samples = flat(list(iter_batches(source, lenient=True, ignored=ignored)))
        return samples, ignored

    expected = groups(FileSource(data), 1 << 20)
    assert groups(FileSource(data), chunk) == expected
    assert groups(StreamSource(data, cuts), chunk) == expected
    assert groups(StreamSource(data), 1 << 20) == expected


@given(MEMBERS)
@settings(max_examples=examples(200), deadline=None)
def test_records_and_columns_say_the_same(names: list[bytes]) -> None:
    data = shard(*names)

    def records() -> list[tuple[int, bytes, list[bytes]]]:
        return [
            (sample.index, sample.key.encode(), [field.encode() for field in sample])
            for sample in iter_samples(FileSource(data))
        ]

    try:
        expected = [sample[:3] for sample in flat(all_batches(data))]
    except DataError as error:
        with pytest.raises(DataError) as caught:
            records()
        assert (caught.value.code, caught.value.offset) == (error.code, error.offset)
    else:
        assert records() == expected


def test_names_that_begin_with_any_byte_begin_a_sample() -> None:
    for first in (b"\0", b"\0x", b"/", b"/x", b".", b"..x", b"__"):
        path = extended(b"x", pax_record(b"path", first + b"y.jpg"))
        data = archive(path + build_header(b"short", 3), b"abc")
        flat(all_batches(data))
        assert len(list(iter_samples(FileSource(data)))) == sum(
            len(batch.keys) for batch in all_batches(data)
        )


def test_samples_with_payloads() -> None:
    data = shard(b"a.jpg", b"a.cls", b"README", b"b.jpg", b"\xff.\xfe")
    for source in (FileSource(data), StreamSource(data, range(0, len(data), 100))):
        first, second, third = iter_samples(source)
        assert dict(first) == {"jpg": b"aaa", "cls": b"aaa"}
        assert (second.key, second.index, second.shard, dict(second)) == ("b", 1, "x.tar", {"jpg": b"bbb"})
        assert (third.key, dict(third)) == ("\udcff", {"\udcfe": b"\xff" * 3})


def test_only_the_fields_asked_for_are_read() -> None:
    data = shard(b"a.jpg", b"a.cls", b"b.jpg", b"c.cls")
    samples = list(iter_samples(FileSource(data), fields=frozenset({"cls"})))
    assert [(sample.key, sample.index, dict(sample)) for sample in samples] == [
        ("a", 0, {"cls": b"aaa"}),
        ("c", 2, {"cls": b"ccc"}),
    ]


def test_whole_samples_come_before_the_error() -> None:
    data = shard(b"a.jpg", b"a.cls", b"b.jpg", b"b.cls")[:3586]
    for source in (FileSource(data), StreamSource(data)):
        keys = []
        with pytest.raises(DataError, match="payload"):
            for batch in iter_batches(source):
                keys += batch.keys
        assert keys == [b"a"]
    seen = []
    with pytest.raises(DataError):
        for sample in iter_samples(FileSource(data)):
            seen.append(sample.key)
    assert seen == ["a"]


def test_sizes_by_field() -> None:
    batch = all_batches(archive(*member(b"a.jpg", 5), *member(b"a.cls", 1)))[0]
    assert batch.sizes_by_field(0) == {"jpg": 5, "cls": 1}


def test_a_part_of_a_batch_is_a_batch() -> None:
    batches = all_batches(shard(b"a.jpg", b"a.cls", b"b.jpg", b"c.jpg", b"c.cls", b"d.jpg"))
    whole = flat(batches)
    parts = flat([batch.part(row, row + 1) for batch in batches for row in range(len(batch.keys))])
    assert parts == whole
