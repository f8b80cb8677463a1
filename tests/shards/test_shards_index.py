"""The index: what it says is what a scan says, and one that is stale, cut or changed is never believed."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shard_cases import content, tar_of
from tiers import examples
from xxhash import xxh3_64

from wdscli.cli.main import main
from wdscli.errors import DataError, OutputError
from wdscli.samples import SampleBatch, iter_batches
from wdscli.shards import ShardFile, ShardSettings, find_index
from wdscli.shards.index import COLUMNS, Index, IndexBuilder, digest_of, index_address, parse_index
from wdscli.shards.proof import scan_index
from wdscli.shards.reading import index_batches
from wdscli.storage import open_source
from wdscli.tar import CANONICAL, Form, TarWriter

Samples = list[tuple[bytes, list[tuple[bytes, bytes]]]]
UNIFORM: Samples = [(b"k%d" % n, [(b"cls", b"%d" % n), (b"jpg", b"x" * n * 300)]) for n in range(9)]
RAGGED: Samples = [
    (b"a/b", [(b"jpg", b"x" * 513), (b"cls", b"")]),
    (b"caf\xe9/\xff", [(b"seg.png", b"12")]),
    (b"long/" * 40 + b"k", [(b"json", b"{}"), (b"\xfe", b"y" * 512), (b"cls", b"1")]),
]


def write(path: Path, samples: Samples, **options: object) -> str:
    with ShardFile(str(path), ShardSettings(**options)) as shard:  # type: ignore[arg-type]
        for key, fields in samples:
            shard.write(key, fields)
        shard.commit()
    return str(path)


def load(address: str) -> Index:
    return parse_index(Path(index_address(address)).read_bytes(), "index")


def found(address: str) -> tuple[bool, list[str]]:
    """Whether the index is believed, and what was warned of."""
    warnings: list[str] = []
    with open_source(address) as source:
        return find_index(address, source, warnings.append) is not None, warnings


def whole(parts: list[SampleBatch]) -> list[tuple[bytes, list[tuple[bytes, int, int, int]], int]]:
    """Batches as plain samples, however they were cut."""
    return [
        (
            key,
            [
                (part.fields[at], part.starts[at], part.offsets[at], part.sizes[at])
                for at in range(part.firsts[row], part.firsts[row + 1])
            ],
            part.marks[row],
        )
        for part in parts
        for row, key in enumerate(part.keys)
    ]


class TestRoundTrip:
    @pytest.mark.parametrize(
        "samples", [UNIFORM, RAGGED, UNIFORM + RAGGED, []], ids=["uniform", "ragged", "both", "none"]
    )
    @pytest.mark.parametrize("form", [CANONICAL, Form(7, "gnu")])
    def test_the_index_says_what_a_scan_says(self, tmp_path: Path, samples: Samples, form: Form) -> None:
        address = write(tmp_path / "a.tar", samples, form=form)
        index = load(address)
        with open_source(address) as source:
            scanned = list(iter_batches(source, form=form))
        assert whole([index.batch()]) == whole(scanned)
        assert [index.key(row) for row in range(index.samples)] == [key for key, _ in samples]
        assert (index.size, index.form, index.shard) == (os.path.getsize(address), form, "a.tar")

    def test_parts_of_it_are_parts_of_the_whole(self, tmp_path: Path) -> None:
        index = load(write(tmp_path / "a.tar", UNIFORM + RAGGED))
        parts = [index.batch(first, first + 5) for first in range(0, index.samples, 5)]
        assert whole(parts) == whole([index.batch()])
        assert [part.index for part in parts] == [0, 5, 10]

    def test_the_digest_is_that_of_a_scan(self, tmp_path: Path) -> None:
        address = write(tmp_path / "a.tar", RAGGED + UNIFORM)
        with open_source(address) as source:
            builder, ignored = scan_index(source)
        assert builder.digest() == load(address).digest
        assert ignored == {}

    def test_totals_count_every_field(self, tmp_path: Path) -> None:
        index = load(write(tmp_path / "a.tar", UNIFORM + RAGGED))
        totals = {name: (t.count, t.size_bytes) for name, t in index.totals().items()}
        assert totals == {
            "cls": (11, 10),
            "jpg": (10, 300 * 36 + 513),
            "seg.png": (1, 2),
            "json": (1, 2),
            "\udcfe": (1, 512),
        }

    def test_a_name_of_a_shard_that_is_not_utf_8_survives(self, tmp_path: Path) -> None:
        path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.tar"))
        assert load(write(path, UNIFORM)).shard == "caf\udce9.tar"

    def test_what_belongs_to_no_sample_is_remembered(self, tmp_path: Path) -> None:
        path = tmp_path / "a.tar"
        with tarfile.open(path, "w") as tar:
            for name in ("README", "a.txt", "._a.txt"):
                info = tarfile.TarInfo(name)
                info.size = 3
                tar.addfile(info, io.BytesIO(b"abc"))
        with open_source(str(path)) as source:
            builder, ignored = scan_index(source)
        data = builder.to_bytes(shard="a.tar", size=path.stat().st_size, ignored=ignored)
        assert parse_index(data, "x").ignored == {"no-field": 1, "appledouble": 1}

    def test_one_by_one_and_by_batch_are_the_same(self, tmp_path: Path) -> None:
        many = [(b"%06d" % n, [(b"a", b"x" * (n % 700)), (b"b", b"")][: 1 + n % 2]) for n in range(2000)]
        address = write(tmp_path / "a.tar", many)
        with open_source(address) as source:
            builder, _ = scan_index(source)
        index = load(address)
        assert (
            builder.to_bytes(shard="a.tar", size=index.size, checksums=index.checksums)
            == Path(index_address(address)).read_bytes()
        )

    def test_a_device_gets_no_index(self) -> None:
        with ShardFile("/dev/null", ShardSettings(force=True)) as shard:
            shard.write(b"a", [(b"b", b"c")])
            assert not shard.commit().index
        assert not os.path.exists("/dev/.wds")


class TestStaleness:
    def test_a_fresh_one_is_believed(self, tmp_path: Path) -> None:
        assert found(write(tmp_path / "a.tar", UNIFORM)) == (True, [])

    def test_none_is_none(self, tmp_path: Path) -> None:
        assert found(write(tmp_path / "a.tar", UNIFORM, with_index=False)) == (False, [])

    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            (lambda data: data + bytes(512), "bytes"),
            (lambda data: data[:-512], "bytes"),
            (lambda data: TestStaleness.renamed(data, b"k0.cls", b"z0.cls"), "sample 0"),
            (lambda data: TestStaleness.renamed(data, b"k8.cls", b"z8.cls"), "sample 8"),
        ],
        ids=["longer", "shorter", "first", "last"],
    )
    def test_another_shard_of_that_name_is_noticed(
        self, tmp_path: Path, change: Callable[[bytes], bytes], reason: str
    ) -> None:
        """Also when the times of both files say nothing."""
        address = write(tmp_path / "a.tar", UNIFORM)
        status = os.stat(index_address(address))
        Path(address).write_bytes(change(Path(address).read_bytes()))
        os.utime(address, ns=(status.st_mtime_ns, status.st_mtime_ns))
        believed, warnings = found(address)
        assert not believed
        assert reason in warnings[0]
        assert "wds index" in warnings[0]

    @staticmethod
    def renamed(data: bytes, old: bytes, new: bytes) -> bytes:
        """The same archive with one name changed, its checksum mended."""
        at = data.index(old.ljust(100, b"\0"))
        block = new.ljust(100, b"\0") + data[at + 100 : at + 512]
        blank = block[:148] + b" " * 8 + block[156:]
        return data[:at] + block[:148] + b"%06o\0 " % sum(blank) + block[156:] + data[at + 512 :]

    def test_a_younger_shard_is_scanned_before_the_index_is_believed(self, tmp_path: Path) -> None:
        address = write(tmp_path / "a.tar", UNIFORM)
        made = os.stat(index_address(address)).st_mtime_ns
        os.utime(address, ns=(made + 10**9, made + 10**9))
        assert found(address) == (True, [])
        # The second sample is none of those that are always looked at.
        Path(address).write_bytes(self.renamed(Path(address).read_bytes(), b"k1.cls", b"z1.cls"))
        os.utime(address, ns=(made + 10**9, made + 10**9))
        believed, warnings = found(address)
        assert not believed
        assert "does not match" in warnings[0]

    def test_a_payload_that_changed_is_no_matter_of_the_index(self, tmp_path: Path) -> None:
        address = write(tmp_path / "a.tar", UNIFORM)
        data = bytearray(Path(address).read_bytes())
        data[512] ^= 1
        Path(address).write_bytes(data)
        assert found(address) == (True, [])

    def test_a_shard_replaced_without_an_index_loses_the_old_one(self, tmp_path: Path) -> None:
        address = write(tmp_path / "a.tar", UNIFORM)
        write(tmp_path / "a.tar", RAGGED, with_index=False, force=True)
        assert not os.path.exists(index_address(address))

    def test_one_that_is_stale_is_not_used(self, tmp_path: Path) -> None:
        address = write(tmp_path / "a.tar", UNIFORM)
        other = write(tmp_path / "b.tar", RAGGED, with_index=False)
        os.replace(other, address)
        warnings: list[str] = []
        with open_source(address) as source:
            assert find_index(address, source, warnings.append, form=CANONICAL) is None
        assert len(warnings) == 1

    def test_an_index_of_another_form_is_not_used_for_its_marks(self, tmp_path: Path) -> None:
        address = write(tmp_path / "a.tar", UNIFORM, form=Form(7))
        with open_source(address) as source:
            assert find_index(address, source, form=CANONICAL) is None
            index = find_index(address, source, form=Form(7))
            assert index is not None
            assert not any(mark for batch in index_batches(index) for mark in batch.marks)

    def test_a_compressed_shard_has_none(self, tmp_path: Path) -> None:
        import gzip

        address = write(tmp_path / "a.tar", UNIFORM)
        packed = tmp_path / "a.tar.gz"
        packed.write_bytes(gzip.compress(Path(address).read_bytes()))
        os.rename(index_address(address), index_address(str(packed)))
        assert found(str(packed)) == (False, [])


def example() -> bytes:
    out = io.BytesIO()
    with TarWriter(out) as tar:
        for key, fields in UNIFORM[:3] + RAGGED:
            for field, data in fields:
                tar.add(key + b"." + field, data)
    builder = IndexBuilder()
    for batch in iter_batches(_Bytes(out.getvalue())):
        builder.add_batch(batch)
    return builder.to_bytes(shard="a.tar", size=len(out.getvalue()))


class _Bytes:
    name, seekable = "a.tar", True

    def __init__(self, data: bytes) -> None:
        self.data, self.size = data, len(data)

    def read_at(self, offset: int, length: int) -> bytes:
        return self.data[offset : offset + length]

    read_some = read_at


EXAMPLE = example()


def sealed(document: dict[str, object]) -> bytes:
    """A file that is whole and says ``document``, digest and all."""
    document = {key: value for key, value in document.items() if key != "seal"}
    document["digest"] = digest_of(document)  # type: ignore[arg-type]
    body = msgpack.packb({**document, "seal": bytes(8)})[:-8]
    return bytes(body) + xxh3_64(body).digest()


class TestDamage:
    @settings(max_examples=examples(300), deadline=None)
    @given(st.data())
    def test_any_mutation_is_refused_cleanly(self, data: st.DataObject) -> None:
        mutated = bytearray(EXAMPLE)
        for _ in range(data.draw(st.integers(1, 3))):
            at = data.draw(st.integers(0, max(len(mutated) - 2, 0)))
            match data.draw(st.sampled_from(["set", "drop", "insert", "cut"])):
                case "set":
                    mutated[at] = data.draw(st.integers(0, 255))
                case "drop" if len(mutated) > 1:
                    del mutated[at]
                case "insert":
                    mutated.insert(at, data.draw(st.integers(0, 255)))
                case "cut":
                    del mutated[at + 1 :]
        if bytes(mutated) == EXAMPLE:
            return
        with pytest.raises(DataError) as caught:
            parse_index(bytes(mutated), "x.wdx")
        assert caught.value.code == "stale-index"

    @given(st.binary(max_size=200))
    def test_any_bytes_are_refused_cleanly(self, data: bytes) -> None:
        with pytest.raises(DataError):
            parse_index(data, "x.wdx")

    @settings(max_examples=examples(300), deadline=None)
    @given(st.data())
    def test_a_file_that_is_whole_and_lies_points_nowhere_else(self, data: st.DataObject) -> None:
        """Whoever writes a valid seal may still write nonsense: it is refused, or all of it lies inside the shard."""
        document = msgpack.unpackb(EXAMPLE)
        name = data.draw(
            st.sampled_from(
                [
                    *COLUMNS,
                    "samples",
                    "members",
                    "size",
                    "mtime",
                    "keys",
                    "fields",
                    "ignored",
                    "long_names",
                    "shard",
                ]
            )
        )
        value = document[name]
        if isinstance(value, bytes) and value:
            changed = bytearray(value)
            at = data.draw(st.integers(0, len(changed) - 1))
            changed[at] = data.draw(st.integers(0, 255))
            document[name] = (
                bytes(changed[: data.draw(st.integers(0, len(changed)))]) if at % 3 == 0 else bytes(changed)
            )
        else:
            document[name] = data.draw(st.one_of(st.integers(-5, 2**63), st.none(), st.text(max_size=2)))
        try:
            index = parse_index(sealed(document), "x.wdx")
        except DataError as error:
            assert error.code == "stale-index"  # it may also be believed
            return
        for key, members, _ in whole([index.batch()]):
            assert isinstance(key, bytes)
            assert all(512 <= offset <= offset + size <= index.size for _, _, offset, size in members)

    def test_the_seal_helper_is_right(self) -> None:
        assert sealed(msgpack.unpackb(EXAMPLE)) == EXAMPLE
        assert parse_index(EXAMPLE, "x").samples == 6

    def test_another_version_is_refused(self) -> None:
        with pytest.raises(DataError, match="version"):
            parse_index(sealed({**msgpack.unpackb(EXAMPLE), "version": 2}), "x")

    def test_a_damaged_file_is_warned_of_and_not_used(self, tmp_path: Path) -> None:
        address = write(tmp_path / "a.tar", UNIFORM)
        place = Path(index_address(address))
        place.write_bytes(place.read_bytes()[:-1])
        believed, warnings = found(address)
        assert not believed
        assert "not a valid index" in warnings[0]

    def test_columns_are_not_copied(self) -> None:
        index = parse_index(EXAMPLE, "x")
        assert not index.starts.flags.owndata
        assert index.starts.dtype == np.dtype("<u8")


class TestColumnsThatWait:
    """A builder whose columns wait in a file gives the same index as one that holds them."""

    @pytest.fixture
    def shard(self, tmp_path: Path) -> str:
        path = tmp_path / "a.tar"
        with ShardFile(str(path), ShardSettings(with_index=False)) as shard:
            for number in range(300):
                fields = [(b"cls", b"%d" % number), (b"txt", b"x" * (number % 700))][number % 3 == 0 :]
                shard.write(b"n%d/s%04d" % (number % 3, number), fields)
            shard.commit()
        return str(path)

    @pytest.mark.parametrize("held", [1, 1000, 5000])
    def test_same_bytes(self, shard: str, monkeypatch: pytest.MonkeyPatch, held: int) -> None:
        with open_source(shard) as source:
            wanted, _ = scan_index(source)
            monkeypatch.setattr("wdscli.shards.index.HELD_BYTES", held)
            found, _ = scan_index(source)
        assert found._columns["keys"]._waiting
        assert (found.samples, found.members, found.totals()) == (300, 500, wanted.totals())
        assert found.digest() == wanted.digest()
        assert found.to_bytes(shard="a.tar", size=7) == wanted.to_bytes(shard="a.tar", size=7)
        assert {n: bytes(c) for n, c in found.columns().items()} == {
            n: bytes(c) for n, c in wanted.columns().items()
        }

    def test_by_a_shuffle_and_by_cat(
        self, shard: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for command in ("shuffle", "cat"):
            for held in (8 << 20, 900):
                monkeypatch.setattr("wdscli.shards.index.HELD_BYTES", held)
                assert main([command, shard, "-o", str(tmp_path / f"{command}{held}" / "out.tar"), "-q"]) == 0
            first, second = (content(tmp_path / f"{command}{held}") for held in (8 << 20, 900))
            assert first == second

    def test_no_room(self, shard: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("wdscli.shards.index.HELD_BYTES", 1)
        monkeypatch.setattr("tempfile.TemporaryFile", lambda **_: Path("/dev/full").open("wb", buffering=0))  # noqa: SIM115
        with open_source(shard) as source, pytest.raises(OutputError, match="temporary file: No space left"):
            scan_index(source)

    def test_repeated_keys_are_still_found(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / "r.tar"
        path.write_bytes(tar_of([("a.cls", b"1"), ("b.cls", b"1"), ("a.cls", b"1")]))
        monkeypatch.setattr("wdscli.shards.index.HELD_BYTES", 1)
        assert main(["index", str(path), "-q", "-j", "1"]) == 3
