"""An index that is stale, and a payload that is handed out.

Each case changes a shard so that its size stays, and makes it older than its index, as ``rsync -a`` or ``cp -p`` would:
nothing but the headers in front of the payloads tells. No way of reading may give what the index says.
"""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from shard_cases import Members, Ran, members_of, samples_of, tar_of, wds, write_shards
from storage_servers import S3, forget_listings, s3_server
from tiers import EXHAUSTIVE

from wdscli.errors import DataError
from wdscli.loader import IndexedDataset, WebDataset
from wdscli.samples import iter_batches
from wdscli.shards import find_index
from wdscli.shards.index import IndexBuilder, index_address, parse_index
from wdscli.storage import open_source, uploads
from wdscli.storage.kinds import is_other_version
from wdscli.tar import crc

COUNT, PER_SHARD, CHANGED = 40, 20, 27
"""Samples, samples a shard, and the one that is changed: neither first, middle nor last of its shard."""
LONG = "deep/" * 25
"""What makes a name too long for a header's first field."""
FORMATS: dict[str, dict[str, Any]] = {
    "canonical": {},
    "gnu": {"format": tarfile.GNU_FORMAT, "uname": "me"},
    "webdataset": {"format": tarfile.PAX_FORMAT, "mtime": 1700000000.25},
}


def samples(prefix: str = "", image: int = 900) -> list[Members]:
    return [
        [
            (f"{prefix}n{number:03d}.cls", b"%d" % (number % 10)),
            (f"{prefix}n{number:03d}.jpg", bytes([number]) * image),
            (f"{prefix}n{number:03d}.json", b'{"width": %d}' % (number + 100)),
            (f"{prefix}n{number:03d}.txt", b"text %d" % (number + 100)),
        ]
        for number in range(COUNT)
    ]


def label(members: Members) -> Members:
    return [(name, b"12" if name.endswith(".cls") else data) for name, data in members]


def grown(members: Members) -> Members:
    return [(name, data + b" and more" if name.endswith(".txt") else data) for name, data in members]


def shrunk(members: Members) -> Members:
    return [(name, data[:3] if name.endswith(".txt") else data) for name, data in members]


def swapped(members: Members) -> Members:
    """The JSON comes before the picture's place would have been, in blocks of one size."""
    return [*members[:2], members[3], members[2]]


def renamed(members: Members) -> Members:
    return [(name.replace(".txt", ".tex"), data) for name, data in members]


def first_renamed(members: Members) -> Members:
    return [(name.replace(".cls", ".clz"), data) for name, data in members]


CHANGES: dict[str, Callable[[Members], Members]] = {
    "label": label,
    "grown": grown,
    "shrunk": shrunk,
    "swapped": swapped,
    "renamed": renamed,
}


class Set:
    """Two shards with indexes and a manifest, of which one sample is changed later on."""

    def __init__(self, folder: Path, how: dict[str, Any], prefix: str = "", image: int = 900) -> None:
        self.folder, self.how = folder, how
        self.samples = samples(prefix, image)
        self.shards = write_shards(folder, self._cut(), **how)
        assert wds("index", folder).code == 0
        self.manifest = str(folder / "in-manifest.json")

    def _cut(self) -> list[list[Members]]:
        return [self.samples[first : first + PER_SHARD] for first in range(0, COUNT, PER_SHARD)]

    @property
    def changed(self) -> str:
        """The shard that is changed."""
        return self.shards[CHANGED // PER_SHARD]

    @property
    def true(self) -> list[dict[str, bytes]]:
        """The samples as they are now."""
        return [{name.partition(".")[2]: data for name, data in one} for one in self.samples]

    def change(self, change: Callable[[Members], Members], number: int = CHANGED) -> None:
        sizes = [os.path.getsize(shard) for shard in self.shards]
        self.samples[number] = change(self.samples[number])
        write_shards(self.folder, self._cut(), **self.how)
        assert [os.path.getsize(shard) for shard in self.shards] == sizes
        for shard in self.shards:
            os.utime(shard, ns=(0, 0))


@pytest.fixture(params=FORMATS, ids=str)
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Set:
    return Set(tmp_path / "set", FORMATS[request.param])


def batches(data: Any) -> list[Any]:
    from torch.utils.data import DataLoader

    return list(DataLoader(data, batch_size=None, num_workers=2))


READ: dict[str, Callable[[str, list[str] | None], Any]] = {
    "in order": lambda urls, fields: list(WebDataset(urls, shuffle="none", fields=fields)),
    "window": lambda urls, fields: list(WebDataset(urls, shuffle="window", fields=fields)),
    "full": lambda urls, fields: list(WebDataset(urls, shuffle="full", fields=fields)),
    "threads": lambda urls, fields: list(WebDataset(urls, threads=3, fields=fields)),
    "batched": lambda urls, fields: list(WebDataset(urls, fields=fields).batched(7)),
    "slice": lambda urls, fields: list(WebDataset(urls, shuffle="none", fields=fields).slice(25, 30)),
    "one": lambda urls, fields: IndexedDataset(urls, fields=fields)[CHANGED],
    "key": lambda urls, fields: IndexedDataset(urls, fields=fields)[f"n{CHANGED:03d}"],
    "some": lambda urls, fields: IndexedDataset(urls, fields=fields).__getitems__([3, CHANGED, 1, 30]),
    "many": lambda urls, fields: IndexedDataset(urls, fields=fields).__getitems__(list(range(39, 10, -1))),
    "table": lambda urls, fields: list(IndexedDataset(urls, fields=fields)[20:]),
}


class TestLoader:
    @pytest.mark.parametrize("change", CHANGES)
    @pytest.mark.parametrize("fields", [None, ["cls", "json", "txt"]], ids=["all", "fields"])
    def test_every_way_of_reading_notices(self, made: Set, change: str, fields: list[str] | None) -> None:
        made.change(CHANGES[change])
        for way, read in READ.items():
            with pytest.raises(DataError) as caught:
                print(way, read(made.manifest, fields))
            assert (caught.value.code, caught.value.shard) == ("changed", made.changed), way
            assert "wds index" in (caught.value.hint or "")

    @pytest.mark.exhaustive
    @pytest.mark.parametrize("image", [900, 40_000])
    def test_what_was_not_changed_is_read(self, tmp_path: Path, image: int) -> None:
        """Long names, pax headers and large payloads are what they are."""
        for number, how in enumerate(FORMATS.values()):
            for prefix in ("", LONG):
                made = Set(tmp_path / f"{number}{bool(prefix)}", how, prefix, image)
                for way, read in READ.items():
                    if way != "key":
                        assert read(made.manifest, None), way
                        assert read(made.manifest, ["json"]), way
                assert list(map(plain, IndexedDataset(made.manifest))) == made.true

    @pytest.mark.exhaustive
    @pytest.mark.parametrize("change", CHANGES)
    def test_long_names_and_large_payloads(self, tmp_path: Path, change: str) -> None:
        made = Set(tmp_path / "set", FORMATS["canonical"], LONG, image=40_000)
        made.change(CHANGES[change])
        for way, read in READ.items():
            for fields in (None, ["cls", "json", "txt"]):
                if way != "key":
                    with pytest.raises(DataError) as caught:
                        print(way, read(made.manifest, fields))
                    assert caught.value.code == "changed", way

    def test_a_large_payload_that_shrank(self, tmp_path: Path) -> None:
        made = Set(tmp_path / "set", FORMATS["canonical"], image=40_000)
        made.change(
            lambda some: [(name, data[:39_990]) if "jpg" in name else (name, data) for name, data in some]
        )
        for way, read in READ.items():
            for fields in (None, ["jpg"]):
                with pytest.raises(DataError) as caught:
                    print(way, read(made.manifest, fields))
                assert caught.value.code == "changed", way

    @pytest.mark.exhaustive
    def test_batches_of_raw_bytes_that_cross_processes(self, made: Set) -> None:
        pytest.importorskip("torch")
        made.change(label)
        with pytest.raises(DataError, match="differs from the index"):
            batches(WebDataset(made.manifest).to_tuple("jpg", "cls").batched(8))

    def test_an_expression_over_payloads(self, made: Set) -> None:
        """Sample 27 is of class 7 for the index, and of class 12 as it is."""
        made.change(lambda members: label(members))
        for read in (
            lambda: len(WebDataset(made.manifest, where="cls == 1")),
            lambda: IndexedDataset(made.manifest, where="cls == 7"),
            lambda: IndexedDataset(made.manifest).select("cls == 1"),
        ):
            with pytest.raises(DataError) as caught:
                read()
            assert (caught.value.code, caught.value.shard) == ("stale-index", made.changed)

    def test_a_field_that_nobody_asks_for_may_be_another(self, tmp_path: Path) -> None:
        made = Set(tmp_path / "set", {})
        made.change(grown)
        assert IndexedDataset(made.manifest, fields=["cls"])[CHANGED]["cls"] == b"7"

    def test_skip_counts_it(self, tmp_path: Path) -> None:
        made = Set(tmp_path / "set", {})
        made.change(label)
        data = WebDataset(made.manifest, on_error="skip", shuffle="none")
        with pytest.warns(UserWarning, match="skipped"):
            assert len(list(data)) == COUNT - 1
        assert data.stats()["dropped"] == {made.changed: {"read: changed": 1}}


COMMANDS: dict[str, list[str]] = {
    "shuffle": ["shuffle"],
    "spill": ["shuffle", "--strategy", "spill", "--seed", "3"],
    "split": ["split", "--max-count", "7"],
    "drop": ["split", "--drop", "jpg"],
    "keep": ["merge", "--fields", "jpg"],
    "sort": ["sort", "--reverse"],
    "json": ["sort", "--by", "json.width:n"],
    "cls": ["sort", "--by", "cls:n"],
    "where": ["split", "--where", "cls > 6"],
    "sizes": ["split", "--where", "size['jpg'] > 1"],
    "processes": ["shuffle", "-j", "2", "--max-count", "10"],
    "dedup": ["merge", "--dedup", "txt"],
    "rekey": ["merge", "--rekey", "{shard}-{index:05d}"],
}


class TestCommands:
    """A stale index is told as what it is: exit 3, the shard, and ``wds index``. What is written is never mixed."""

    @pytest.mark.parametrize("change", CHANGES)
    @pytest.mark.parametrize("command", COMMANDS)
    def test_it_is_told(self, tmp_path: Path, command: str, change: str) -> None:
        made = Set(tmp_path / "set", {})
        made.change(CHANGES[change])
        ran = wds(COMMANDS[command][0], *made.shards, "-o", tmp_path / "out-%03d.tar", *COMMANDS[command][1:])
        self.assert_told(ran, made)
        assert not list(tmp_path.glob("out*manifest.json"))

    def assert_told(self, ran: Ran, made: Set) -> None:
        assert ran.code == 3, ran.err
        assert made.changed in ran.err
        assert "index is stale" in ran.err
        assert "wds index" in ran.err
        assert "mistake" not in ran.err

    @pytest.mark.parametrize("how", ["gnu", "webdataset"])
    def test_foreign_shards(self, tmp_path: Path, how: str) -> None:
        made = Set(tmp_path / "set", FORMATS[how])
        assert wds("shuffle", *made.shards, "-o", tmp_path / "good-%03d.tar").code == 0
        made.change(label)
        self.assert_told(wds("shuffle", *made.shards, "-o", tmp_path / "out-%03d.tar"), made)
        self.assert_told(wds("sort", "--by", "cls", *made.shards, "-o", tmp_path / "out-%03d.tar"), made)

    def test_join(self, tmp_path: Path) -> None:
        made, other = Set(tmp_path / "set", {}), tmp_path / "other.tar"
        other.write_bytes(tar_of([(f"n{number:03d}.score", b"1") for number in range(COUNT)]))
        for number, change in enumerate((label, swapped)):
            made.change(change)
            ran = wds(
                "merge", "--join", "inner", tmp_path / "set", other, "-o", tmp_path / f"out{number}-%03d.tar"
            )
            self.assert_told(ran, made)

    def test_a_large_sample(self, tmp_path: Path) -> None:
        """One that is copied in pieces."""
        made = Set(tmp_path / "set", {}, image=900)
        big = [
            (name, data * 6000) if name.endswith(".jpg") else (name, data)
            for name, data in made.samples[CHANGED]
        ]
        made.samples[CHANGED] = big
        write_shards(made.folder, made._cut())
        assert wds("index", "--force", made.folder).code == 0
        made.change(label)
        self.assert_told(wds("shuffle", *made.shards, "-o", tmp_path / "out-%03d.tar"), made)

    def test_a_plan_that_was_stored(self, tmp_path: Path) -> None:
        made = Set(tmp_path / "set", {})
        made.change(label)
        plan = tmp_path / "a.plan"
        output = ["-o", tmp_path / "out-%03d.tar"]
        assert wds("shuffle", *made.shards, *output, "--plan", plan).code == 0
        self.assert_told(wds("run", plan), made)

    def test_cat_and_ls_read_what_is_there(self, tmp_path: Path) -> None:
        made = Set(tmp_path / "set", {})
        made.change(label)
        assert wds("cat", *made.shards, "-o", tmp_path / "out.tar").code == 0
        assert members_of(tmp_path / "out.tar") == [member for one in made.samples for member in one]
        assert wds("ls", "--where", "cls == 12", *made.shards).out.count(b"n027") == 1

    def test_verify_finds_it(self, made: Set) -> None:
        made.change(label)
        os.unlink(made.manifest)
        ran = wds("verify", made.folder)
        assert (ran.code, b"stale-index" in ran.out) == (1, True)


class TestIndexCheck:
    """``wds index --check`` compares all headers, and ``wds index`` mends what it finds."""

    @pytest.mark.parametrize("change", CHANGES)
    def test_every_change_is_found_and_mended(self, made: Set, change: str) -> None:
        assert wds("index", "--check", made.folder).code == 0
        made.change(CHANGES[change])
        ran = wds("index", "--check", "--no-manifest", made.folder)
        name = os.path.basename(made.changed)
        assert (ran.code, ran.out.decode()) == (1, f"{made.folder}/.wds/{name}.wdx: stale\n")
        os.unlink(made.manifest)
        assert wds("index", made.folder).code == 0
        assert wds("index", "--check", made.folder).code == 0
        assert [dict(one) for one in map(plain, IndexedDataset(made.manifest))] == made.true

    def test_a_payload_under_an_unchanged_header_is_seen_by_its_checksum(self, tmp_path: Path) -> None:
        made = Set(tmp_path / "set", {})
        made.change(lambda some: [(name, data.replace(b"7", b"8")) for name, data in some])
        assert wds("index", "--check", "--no-manifest", made.folder).code == 0
        assert wds("verify", made.folder).code == 0
        assert wds("verify", "--checksums", made.folder).code == 1


def plain(one: Any) -> dict[str, bytes]:
    """A sample without what is not in the shard."""
    return {name: data for name, data in one.items() if name[0] != "_"}


def leave_out(shard: str, rows: set[int], **more: Any) -> None:
    """Make the index of a shard anew, without some samples; what is known of it stays true otherwise."""
    builder = IndexBuilder()
    with open_source(shard) as source:
        size = source.size or 0
        ignored = Counter[str]()
        for batch in iter_batches(source, ignored=ignored):
            for row in range(len(batch.keys)):
                if batch.index + row not in rows:
                    builder.add_batch(batch.part(row, row + 1))
    more = {"ignored": ignored, **more}
    data = builder.to_bytes(shard=os.path.basename(shard), size=size, **more)
    Path(index_address(shard)).write_bytes(data)


class TestLeftOut:
    """An index that leaves a sample out is not believed."""

    @pytest.mark.parametrize("rows", [{0}, {7}, {19}, {0, 19}, {3, 4, 5}, set(range(20))], ids=str)
    @pytest.mark.parametrize("ignored", [{}, {"no-field": 5}], ids=["none ignored", "some ignored"])
    def test_it_is_noticed(self, made: Set, rows: set[int], ignored: dict[str, int]) -> None:
        os.unlink(made.manifest)
        leave_out(made.shards[0], rows, ignored=ignored)
        assert len(list(WebDataset(made.shards[0], shuffle="none"))) == 20
        assert len(IndexedDataset(made.shards[0])) == 20
        out = made.folder.parent / "out"
        ran = wds("shuffle", made.shards[0], "-o", f"{out}-%d.tar")
        assert ran.code == 0
        assert "is not used" in ran.err
        assert len(samples_of(f"{out}-0.tar")) == 20
        ran = wds("index", "--check", "--no-manifest", made.folder)
        assert (ran.code, b"in-0.tar.wdx: stale" in ran.out) == (1, True)

    def test_what_is_rightly_left_out_is_no_reason(self, tmp_path: Path) -> None:
        """Folders, files without a dot and the zeros of a tape's last record."""
        for number, how in enumerate(FORMATS.values()):
            shard = str(tmp_path / f"a{number}.tar")
            members = [("README", b"x" * 700)]
            for one in samples():
                members += [*one[:2], ("between", b""), *one[2:], (f"{number}/LICENSE", b"y" * 600)]
            Path(shard).write_bytes(tar_of(members, **how) + bytes(10240))
            assert wds("index", shard).code == 0
            warned: list[str] = []
            with open_source(shard) as source:
                assert find_index(shard, source, warned.append) is not None, warned
            for way, read in READ.items():
                if way != "key":
                    assert read(shard, None)
                    assert read(shard, ["txt"])
            assert list(map(plain, IndexedDataset(shard))) == [
                {name.partition(".")[2]: data for name, data in one} for one in samples()
            ]

    def test_a_member_that_became_a_sample(self, tmp_path: Path) -> None:
        shard = tmp_path / "a.tar"
        members = [member for one in samples() for member in one]
        members.insert(40, ("README_md", b"1"))
        shard.write_bytes(tar_of(members))
        assert wds("index", "--no-manifest", shard).code == 0
        members[40] = ("README.md", b"1")
        shard.write_bytes(tar_of(members))
        os.utime(shard, ns=(0, 0))
        assert len(list(WebDataset(str(shard), shuffle="none"))) == COUNT + 1
        assert wds("index", "--check", "--no-manifest", shard).code == 1

    def test_a_pax_global_header_is_no_member(self, tmp_path: Path) -> None:
        """What git archive begins with."""
        shard = tmp_path / "a.tar"
        with tarfile.open(shard, "w", format=tarfile.PAX_FORMAT, pax_headers={"comment": "abc"}) as tar:
            for name, data in samples()[0]:
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
        assert wds("index", "--no-manifest", shard).code == 0
        with open_source(str(shard)) as source:
            assert find_index(str(shard), source) is not None
        assert plain(IndexedDataset(str(shard))[0])["cls"] == b"0"


@pytest.fixture(scope="module")
def server() -> Iterator[S3]:
    pytest.importorskip("moto")
    with s3_server() as server:
        yield server


class TestStore:
    """An object that is uploaded again: the same size, and another ETag. The indexes have no checksums, as indexes of
    before; test_travelling_sets.py has those with checksums."""

    @pytest.fixture(autouse=True)
    def _without_checksums(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(crc, "CRC", None)

    def uploaded(self, server: S3, folder: Path, index: bool = True) -> tuple[str, Set]:
        made = Set(folder / "set", {})
        bucket = server.bucket(f"b{os.urandom(4).hex()}")
        for shard in made.shards:
            server.client.put_object(
                Bucket=bucket, Key=os.path.basename(shard), Body=Path(shard).read_bytes()
            )
            if not index:
                server.client.put_object(
                    Bucket=bucket,
                    Key=f".wds/{os.path.basename(shard)}.wdx",
                    Body=Path(index_address(shard)).read_bytes(),
                )
        if index:
            assert wds("index", "-j", 1, "--no-manifest", f"s3://{bucket}/").code == 0
        return bucket, made

    def put(self, server: S3, bucket: str, made: Set) -> None:
        server.client.put_object(
            Bucket=bucket, Key=os.path.basename(made.changed), Body=Path(made.changed).read_bytes()
        )

    def test_the_index_keeps_the_version(self, server: S3, tmp_path: Path) -> None:
        bucket, made = self.uploaded(server, tmp_path)
        kept = server.get(bucket, ".wds/in-1.tar.wdx")
        etag = server.client.head_object(Bucket=bucket, Key="in-1.tar")["ETag"]
        assert parse_index(kept, "x").version == f"s3 {etag}"
        assert not parse_index(Path(index_address(made.changed)).read_bytes(), "x").version
        address = f"s3://{bucket}/in-1.tar"
        with open_source(address) as source:
            assert find_index(address, source) is not None
        # The header says what it said: only the version tells.
        made.change(lambda some: [(name, data.replace(b"7", b"8")) for name, data in some])
        self.put(server, bucket, made)
        forget_listings()
        warned: list[str] = []
        with open_source(address) as source:
            assert find_index(address, source, warned.append) is None
        assert "another version" in warned[0]
        assert wds("index", "-j", 1, "--check", "--no-manifest", f"s3://{bucket}/").code == 1
        assert wds("verify", address).code == 1
        assert IndexedDataset(f"s3://{bucket}/")[CHANGED]["cls"] == b"8"

    @pytest.mark.exhaustive(sample=False)
    @pytest.mark.parametrize("change", CHANGES)
    def test_an_edit_within_the_padding(self, server: S3, tmp_path: Path, change: str) -> None:
        """With an index that knows no version; it was written with its shard, or copied there with it."""
        bucket, made = self.uploaded(server, tmp_path, index=False)
        data = WebDataset(f"s3://{bucket}/", shuffle="none")
        table = IndexedDataset(f"s3://{bucket}/", fields=["cls", "json", "txt"])
        assert plain(table[CHANGED]) | {"jpg": b""} == made.true[CHANGED] | {"jpg": b""}
        table.close()
        made.change(CHANGES[change])
        self.put(server, bucket, made)
        forget_listings()
        for read in (
            lambda: list(data),
            lambda: list(WebDataset(f"s3://{bucket}/", fields=["cls", "json", "txt"])),
        ):
            with pytest.raises(DataError) as caught:
                read()
            assert (caught.value.code, caught.value.shard) == ("changed", f"s3://{bucket}/in-1.tar")
        ran = wds("index", "-j", 1, "--check", "--no-manifest", f"s3://{bucket}/")
        assert (ran.code, b"in-1.tar.wdx: stale" in ran.out) == (1, True)

    def test_ls_looks_into_payloads_by_an_index(self, server: S3, tmp_path: Path) -> None:
        bucket, made = self.uploaded(server, tmp_path, index=False)
        assert wds("ls", "--where", "cls == 7", f"s3://{bucket}/").out.count(b"n027") == 1
        made.change(label)
        self.put(server, bucket, made)
        ran = wds("ls", "--where", "cls == 12", f"s3://{bucket}/")
        assert (ran.code, "index is stale" in ran.err) == (3, True), ran.err

    @pytest.mark.parametrize("image", [pytest.param(900, marks=EXHAUSTIVE), 300_000])
    def test_a_store_tells_that_a_shard_is_the_one_that_was_written(
        self, server: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, image: int
    ) -> None:
        """The index has the bytes that it has anywhere; what the store says of the shard is noted beside it."""
        monkeypatch.setattr(uploads, "PART_BYTES", 5 << 20)
        made = Set(tmp_path / "set", {}, image=image)
        place = f"s3://{server.bucket(f'b{os.urandom(4).hex()}')}"
        for out in (place, tmp_path / "near"):
            assert wds("split", made.folder, "-o", f"{out}/in-%d.tar", "--shards", 2, "-j", 1).code == 0
        name = "in-1.tar"
        kept = server.client.get_object(Bucket=place[5:], Key=f".wds/{name}.wdx")
        etag = server.client.head_object(Bucket=place[5:], Key=name)["ETag"]
        assert kept["Body"].read() == (tmp_path / "near/.wds/in-1.tar.wdx").read_bytes()
        [checksum] = [
            one["checksum"]
            for one in json.loads((tmp_path / "near/in-manifest.json").read_text())["shardlist"]
            if one["url"] == name
        ]
        assert kept["Metadata"] == {"wdscli-note": etag.strip('"') + " " + checksum}
        assert ("-" in etag) == (image > 900)
        with open_source(f"{place}/{name}") as source:
            server.seen.begin_anew()
            index = find_index(f"{place}/{name}", source)
        assert [one.key for one in server.seen.settled()] == [f".wds/{name}.wdx"]
        assert index is not None
        assert wds("ls", f"{place}/").out == wds("ls", made.folder).out
        # The first header says something else now: whoever looks notices, and no old listing is believed.
        made.change(first_renamed, PER_SHARD)
        server.client.put_object(Bucket=place[5:], Key=name, Body=Path(made.changed).read_bytes())
        assert b"clz" in wds("ls", f"{place}/{name}").out
        forget_listings()
        warned: list[str] = []
        with open_source(f"{place}/{name}") as source:
            assert find_index(f"{place}/{name}", source, warned.append) is None
        assert "sample 0 of the shard" in warned[0]
        assert wds("ls", f"{place}/").out == wds("ls", made.folder).out

    @pytest.mark.exhaustive
    @pytest.mark.parametrize(
        "etag", ["0" * 32 + "-1", "d41d8cd98f00b204e9800998ecf8427e", "5f3e1a2b-9c00", "W/" + "1f" * 16, ""]
    )
    def test_an_etag_that_may_be_that_of_any_bytes_proves_nothing(
        self, server: S3, tmp_path: Path, etag: str
    ) -> None:
        bucket, made = self.uploaded(server, tmp_path, index=False)
        index = Path(index_address(made.changed)).read_bytes()
        key = ".wds/in-1.tar.wdx"
        server.client.put_object(Bucket=bucket, Key=key, Body=index, Metadata={"wdscli-note": etag})
        made.change(first_renamed, PER_SHARD)
        self.put(server, bucket, made)
        with open_source(f"s3://{bucket}/in-1.tar") as source:
            source.version = f'etag:"{etag}"'
            assert find_index(f"s3://{bucket}/in-1.tar", source) is None
        builder = IndexBuilder()
        with open_source(made.shards[0]) as source:
            for batch in iter_batches(source):
                builder.add_batch(batch)
        size = Path(made.changed).stat().st_size
        said = builder.to_bytes(shard="in-1.tar", size=size, version=f's3 "{etag}"')
        server.client.put_object(Bucket=bucket, Key=key, Body=said)
        with open_source(f"s3://{bucket}/in-1.tar") as source:
            source.version = f'etag:"{etag}"'
            assert find_index(f"s3://{bucket}/in-1.tar", source) is None

    @pytest.mark.parametrize("image", [900, 300_000])
    def test_a_store_that_makes_etags_of_something_else(
        self, server: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, image: int
    ) -> None:
        """Of an encrypted bucket they look like digests of the bytes, and are none."""
        made = Set(tmp_path / "set", {}, image=image)
        monkeypatch.setattr(uploads, "PART_BYTES", 5 << 20)
        monkeypatch.setattr(uploads, "_md5_of", lambda body: "1f" * 16)
        bucket = server.bucket(f"b{os.urandom(4).hex()}")
        ran = wds("cat", made.shards[0], "-o", f"s3://{bucket}/in.tar")
        kept = server.client.get_object(Bucket=bucket, Key=".wds/in.tar.wdx")
        assert (ran.code, kept["Metadata"]) == (0, {})

    def test_a_copy_in_another_kind_of_store_is_no_other_version(self) -> None:
        assert is_other_version('s3 "a"', 's3 "b"')
        assert not is_other_version('s3 "a"', 's3 "a"')
        assert not is_other_version('s3 "a"', 'gs "b"')
        assert not is_other_version("", 's3 "b"')
