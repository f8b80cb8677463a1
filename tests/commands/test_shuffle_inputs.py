"""What ``wds shuffle`` reads: headers of every writer, streams, compressed shards, S3. What it writes is canonical."""

from __future__ import annotations

import bz2
import gzip
import io
import os
import random
import subprocess
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from reorders import shuffle
from shard_cases import (
    assert_true_set,
    by_gnu_tar,
    content,
    members_of,
    numbered,
    outputs,
    sample,
    samples_of,
    shuffled_by_the_book,
    tar_of,
    wds,
    write_shards,
)
from storage_servers import s3_server

from wdscli.errors import DataError, InputError, OutputError, UsageError
from wdscli.plan import inputs as opened_inputs
from wdscli.plan.cut import Cuts
from wdscli.plan.inputs import Input
from wdscli.plan.orders import ShuffledOrder
from wdscli.plan.plan import make_plan
from wdscli.plan.request import Request
from wdscli.plan.scratch import Scratch, spool
from wdscli.progress import Progress
from wdscli.samples import iter_samples
from wdscli.storage import open_source
from wdscli.tar import END_OF_ARCHIVE, Form, build_header, padding
from wdscli.tar.header import extended, pax_record


def flat(samples: list[Any]) -> list[Any]:
    return [member for one in samples for member in one]


def check(names: list[str], folder: Path, **more: Any) -> Path:
    """Shuffle ``names`` to one file, and hold it against the book, GNU tar, the manifest and the index."""
    out = folder / "out.tar"
    shuffle(Request(names, str(out), jobs=1, **more), 5)
    expected = shuffled_by_the_book([read(name) for name in names], 5)
    assert samples_of(out) == expected
    assert_true_set(folder)
    return out


def read(name: str) -> list[Any]:
    """The samples of any shard, through our reader (``iter_samples`` has tests of its own)."""
    with open_source(name) as source:
        return [(one.key, tuple(one.fields.items())) for one in iter_samples(source)]


class TestWriters:
    """Whoever wrote the input, the output is the canonical archive of its members."""

    @pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
    def test_tarfile(self, tmp_path: Path, format: int) -> None:
        names = write_shards(
            tmp_path / "in", [numbered(9), numbered(5, "m")], format=format, mtime=1.5, uid=7, uname="me"
        )
        out = check(names, tmp_path)
        assert out.read_bytes() == by_gnu_tar(tmp_path, members_of(out))

    @pytest.mark.parametrize(
        "program", [["tar"], ["tar", "--format=pax"], ["tar", "--format=v7"], ["bsdtar"]]
    )
    def test_other_programs(self, tmp_path: Path, program: list[str]) -> None:
        (tmp_path / "in").mkdir()
        names = []
        for number, samples in enumerate([numbered(9), numbered(5, "m")]):
            files = tmp_path / f"files{number}"
            for name, payload in flat(samples):
                (files / name).parent.mkdir(parents=True, exist_ok=True)
                (files / name).write_bytes(payload)
            names.append(str(tmp_path / "in" / f"{number}.tar"))
            subprocess.run(
                [*program, "-cf", names[-1], *[name for name, _ in flat(samples)]], cwd=files, check=True
            )
        out = check(names, tmp_path)
        assert out.read_bytes() == by_gnu_tar(tmp_path, members_of(out))

    def test_webdataset(self, tmp_path: Path) -> None:
        webdataset = pytest.importorskip("webdataset")
        (tmp_path / "in").mkdir()
        name = str(tmp_path / "in" / "w.tar")
        with webdataset.TarWriter(name) as writer:
            for number in range(9):
                writer.write({"__key__": f"k{number}", "cls": number, "bin": bytes(300 * number)})
        out = check([name], tmp_path)
        assert out.read_bytes() == by_gnu_tar(tmp_path, members_of(out))
        assert out.stat().st_size < Path(name).stat().st_size

    def test_a_mix_of_all(self, tmp_path: Path) -> None:
        names = []
        for number, format in enumerate([tarfile.USTAR_FORMAT, tarfile.PAX_FORMAT, tarfile.GNU_FORMAT]):
            names += write_shards(
                tmp_path / str(number),
                [numbered(20, f"p{number}", [300, 70_000])],
                format=format,
                mtime=number,
            )
        shuffle(
            Request([], str(tmp_path / "wds-%02d.tar"), cuts=Cuts(max_count=1))._replace(inputs=names[:1])
        )
        names[0] = str(tmp_path / "wds-manifest.json")
        plain = [one for path in outputs(tmp_path, "wds-*.tar") for one in [samples_of(path)]]
        shuffle(Request(names, str(tmp_path / "out.tar"), jobs=1), 5)
        assert samples_of(tmp_path / "out.tar") == shuffled_by_the_book(
            [*plain, *map(samples_of, names[1:])], 5
        )


class TestNames:
    @pytest.mark.parametrize("long_names", ["pax", "gnu"])
    def test_long_ones(self, tmp_path: Path, long_names: Any) -> None:
        """Some need a prefix, some a pax or GNU header; some grow past the limit by their new key."""
        prefixes = ["d" * 90 + "/" + "n" * 60, "x" * 150, "y" * 300, "ü" * 70, "s"]
        names = write_shards(
            tmp_path / "in", [flat_one(numbered(4, prefix)) for prefix in prefixes], format=tarfile.GNU_FORMAT
        )
        form = Form(long_names=long_names)
        settings = Request([], "x").settings._replace(form=form)
        out = check(names, tmp_path, settings=settings)
        again = tmp_path / "again"
        again.mkdir()
        assert check([str(out)], again, settings=settings).stat().st_size == out.stat().st_size
        raw = b"".join(
            build_header(name.encode(), len(data), form) + data + padding(len(data))
            for name, data in members_of(out)
        )
        assert out.read_bytes() == raw + END_OF_ARCHIVE

    def test_not_utf_8(self, tmp_path: Path) -> None:
        keys = [b"caf\xe9", b"\xff\xfe/x", b"ok", b"\x80" * 120]
        names = write_shards(
            tmp_path / "in",
            [flat_one([sample(key.decode("utf-8", "surrogateescape"), 1)]) for key in keys],
            format=tarfile.GNU_FORMAT,
        )
        out = check(names, tmp_path)
        assert b"caf\xe9.cls\0" in out.read_bytes()

    def test_unsafe_ones_stop_and_are_counted(self, tmp_path: Path) -> None:
        names = write_shards(
            tmp_path / "in", [numbered(3), [sample("../up", 1), sample("/top", 2)], numbered(2, "m")]
        )
        with pytest.raises(DataError) as caught:
            check(names, tmp_path)
        assert (caught.value.code, caught.value.shard, caught.value.offset) == ("unsafe-name", names[1], 0)
        report = shuffle(Request(names, str(tmp_path / "out.tar"), on_error="skip"))
        assert report.dropped == {"unsafe-name": 2}
        assert (report.samples_in, report.samples) == (7, 5)


def flat_one(samples: list[Any]) -> list[Any]:
    return samples


def g(**records: str) -> bytes:
    return extended(b"g", b"".join(pax_record(k.encode(), v.encode()) for k, v in records.items()))


def raw_member(name: str, payload: bytes, said: int | None = None) -> bytes:
    return (
        build_header(name.encode(), len(payload) if said is None else said) + payload + padding(len(payload))
    )


class TestGlobals:
    """pax global headers: what they say holds for all that follows, wherever that goes."""

    def shard(self, tmp_path: Path, data: bytes, name: str = "g.tar") -> str:
        (tmp_path / "in").mkdir(exist_ok=True)
        path = tmp_path / "in" / name
        path.write_bytes(data + END_OF_ARCHIVE)
        return str(path)

    def test_harmless_ones(self, tmp_path: Path) -> None:
        members = [raw_member(name, data) for name, data in flat(numbered(6))]
        data = g(comment="a" * 40) + b"".join(members[:7]) + g(comment="b") + b"".join(members[7:])
        out = check([self.shard(tmp_path, data)], tmp_path)
        assert out.read_bytes() == by_gnu_tar(tmp_path, members_of(out))

    def test_sizes(self, tmp_path: Path) -> None:
        """Headers say 0, the globals know better, and change their mind between samples and inside one."""
        data = raw_member("a.cls", b"1") + g(size="700")
        data += b"".join(raw_member(f"b{n}.bin", bytes([n]) * 700, 0) for n in range(5))
        data += raw_member("c.x", b"x" * 700, 0) + g(size="3") + raw_member("c.y", b"yyy", 0)
        data += g(size="") + raw_member("d.cls", b"12345")
        out = check([self.shard(tmp_path, data)], tmp_path)
        assert dict(members_of(out))["b4.bin"] == b"\4" * 700
        assert dict(members_of(out))["c.y"] == b"yyy"
        assert dict(members_of(out))["d.cls"] == b"12345"

    def test_names(self, tmp_path: Path) -> None:
        data = raw_member("a.cls", b"1") + g(path="b.cls") + raw_member("zzz", b"2") + g(path="")
        data += raw_member("c.cls", b"3")
        x = extended(b"x", pax_record(b"mtime", b"1.5"))
        data += x + g(path="d/e.txt") + raw_member("zzz", b"4") + g(path="") + x + raw_member("f.cls", b"5")
        out = check([self.shard(tmp_path, data)], tmp_path)
        assert sorted(members_of(out)) == [
            ("a.cls", b"1"), ("b.cls", b"2"), ("c.cls", b"3"), ("d/e.txt", b"4"), ("f.cls", b"5")
        ]  # fmt: skip

    def test_many_samples_take_one_look_at_the_headers(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made = []
        original = opened_inputs.Globals

        def counted(source: Any) -> Any:
            made.append(source.name)
            return original(source)

        monkeypatch.setattr(opened_inputs, "Globals", counted)
        data = g(comment="c") + b"".join(raw_member(name, data) for name, data in flat(numbered(50)))
        name = self.shard(tmp_path, data)
        check([name], tmp_path)
        assert made == [name]


class TestRagged:
    def test_members_of_no_sample_between_those_of_one(self, tmp_path: Path) -> None:
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
            for number, one in enumerate(numbered(8)):
                for name, payload in one:
                    if number % 3 == 1:
                        folder = tarfile.TarInfo(f"d{number}")
                        folder.type = tarfile.DIRTYPE
                        tar.addfile(folder)
                    if number % 3 == 2:
                        readme = tarfile.TarInfo("README")
                        readme.size = 600
                        tar.addfile(readme, io.BytesIO(bytes(600)))
                    info = tarfile.TarInfo(name)
                    info.size = len(payload)
                    tar.addfile(info, io.BytesIO(payload))
        (tmp_path / "in").mkdir()
        name = str(tmp_path / "in" / "r.tar")
        Path(name).write_bytes(out.getvalue())
        made = check([name], tmp_path)
        assert made.read_bytes() == by_gnu_tar(tmp_path, members_of(made))
        report = shuffle(Request([name], str(tmp_path / "two.tar")))
        assert report.ignored == {"directory": 9, "no-field": 6}

    def test_a_large_one(self, tmp_path: Path) -> None:
        data = raw_member("a.x", bytes(600_000)) + raw_member("README", b"r") + raw_member("a.y", b"1")
        (tmp_path / "in").mkdir()
        (tmp_path / "in" / "r.tar").write_bytes(data + raw_member("b.x", b"2") + END_OF_ARCHIVE)
        check([str(tmp_path / "in" / "r.tar")], tmp_path)


@pytest.fixture
def plain(tmp_path: Path) -> list[str]:
    return write_shards(tmp_path / "in", [numbered(12, "a"), numbered(7, "b"), numbered(5, "c", [90_000])])


@pytest.fixture
def wanted(plain: list[str], tmp_path: Path) -> dict[str, bytes]:
    """The shards that the plain files give."""
    return shuffled(plain, tmp_path / "wanted")


def shuffled(names: list[str], folder: Path, **more: Any) -> dict[str, bytes]:
    shuffle(Request(names, f"{folder}/out-%06d.tar", cuts=Cuts(max_count=7), **more), 3)
    found = content(folder)
    found.pop("out-manifest.json")
    return found


class TestStreams:
    """An input that can be read only once is copied first, and gives the same bytes."""

    @pytest.mark.parametrize("compress", [gzip.compress, bz2.compress], ids=["gz", "bz2"])
    def test_compressed(
        self, plain: list[str], wanted: dict[str, bytes], tmp_path: Path, compress: Callable[[bytes], bytes]
    ) -> None:
        for name in plain[1:]:
            Path(name).write_bytes(compress(Path(name).read_bytes()))
        assert shuffled(plain, tmp_path / "out", tmp=str(tmp_path)) == wanted
        assert list(tmp_path.glob("wds-*")) == []

    @pytest.mark.exhaustive
    def test_by_workers(self, plain: list[str], wanted: dict[str, bytes], tmp_path: Path) -> None:
        names = [f"pipe:cat {name}" for name in plain]
        assert shuffled(names, tmp_path / "out", jobs=2, tmp=str(tmp_path)) == wanted
        assert list(tmp_path.glob("wds-*")) == []

    def test_standard_input_and_a_command(
        self, plain: list[str], wanted: dict[str, bytes], tmp_path: Path
    ) -> None:
        ran = wds(
            "shuffle", "-", plain[1], f"pipe:cat {plain[2]}", "-o", tmp_path / "out" / "out-%06d.tar",
            "--seed", 3, "--max-count", 7, "-j", 2, "-v", stdin=Path(plain[0]).read_bytes(),
        )  # fmt: skip
        assert ran.code == 0, ran.err
        assert "2 of 3 inputs copied first" in ran.err
        found = content(tmp_path / "out")
        found.pop("out-manifest.json")
        assert found == wanted

    def test_a_named_pipe(self, plain: list[str], wanted: dict[str, bytes], tmp_path: Path) -> None:
        data = Path(plain[0]).read_bytes()
        fifo = tmp_path / "fifo"
        os.mkfifo(fifo)
        writer = threading.Thread(target=fifo.write_bytes, args=(data,))
        writer.start()
        assert shuffled([str(fifo), *plain[1:]], tmp_path / "out") == wanted
        writer.join()

    def test_repeated_keys_and_broken_ones_are_told_by_the_name_given(
        self, plain: list[str], tmp_path: Path
    ) -> None:
        name = f"pipe:cat {plain[0]}"
        with pytest.raises(DataError) as caught:
            shuffle(Request([plain[0], name], str(tmp_path / "o.tar")))
        assert caught.value.shard == name
        assert f"sample 0 of {plain[0]}" in str(caught.value)
        with pytest.raises(DataError) as caught:
            shuffle(Request([f"pipe:head -c 5000 {plain[0]}"], str(tmp_path / "o.tar")))
        assert (caught.value.code, caught.value.shard) == ("truncated", f"pipe:head -c 5000 {plain[0]}")
        with pytest.raises(InputError, match="exit"):
            shuffle(Request([f"pipe:cat {plain[0]}; exit 3"], str(tmp_path / "o.tar")))

    def test_rekey_uses_the_name_given(self, plain: list[str], tmp_path: Path) -> None:
        packed = tmp_path / "in" / "packed.tar.gz"
        packed.write_bytes(gzip.compress(Path(plain[1]).read_bytes()))
        shuffle(Request([str(packed)], str(tmp_path / "o.tar"), rekey="{shard}-{index}"))
        assert sorted(key for key, _ in samples_of(tmp_path / "o.tar")) == [f"packed-{n}" for n in range(7)]

    def test_a_compressed_shard_that_is_cut(self, plain: list[str], tmp_path: Path) -> None:
        """Skip keeps the whole samples before the cut."""
        data = gzip.compress(Path(plain[2]).read_bytes(), 1)
        packed = tmp_path / "in" / "cut.tar.gz"
        packed.write_bytes(data[: len(data) * 2 // 3])
        with pytest.raises(DataError, match=r"truncated|ends|cut"):
            shuffle(Request([str(packed)], str(tmp_path / "o.tar")))
        heard = Heard()
        report = shuffle(Request([str(packed)], str(tmp_path / "o.tar"), on_error="skip"), progress=heard)
        assert heard.warnings
        found = samples_of(tmp_path / "o.tar")
        assert 0 < len(found) < 5
        assert set(found) < set(samples_of(plain[2]))
        assert report.samples_in == report.samples + sum(report.dropped.values())

    def test_an_index_of_the_compressed_file_is_not_believed(self, plain: list[str], tmp_path: Path) -> None:
        """The copy is another file than the one the index was made for."""
        packed = tmp_path / "in" / "in-0.tar.gz"
        packed.write_bytes(gzip.compress(Path(plain[0]).read_bytes()))
        (tmp_path / "in" / ".wds").mkdir()
        (tmp_path / "in" / ".wds" / "in-0.tar.gz.wdx").write_bytes(b"nonsense")
        heard = Heard()
        shuffle(Request([str(packed)], str(tmp_path / "o.tar")), progress=heard)
        assert heard.warnings == []

    def test_without_scratch_they_are_refused(self, plain: list[str], tmp_path: Path) -> None:
        packed = tmp_path / "in" / "x.tar.gz"
        packed.write_bytes(gzip.compress(Path(plain[0]).read_bytes()))
        for name in ("-", f"pipe:cat {plain[0]}", str(packed)):
            with pytest.raises(UsageError, match="only once"):
                make_plan(Request([name], str(tmp_path / "o.tar")), ShuffledOrder())

    def test_keys_and_a_shard_from_standard_input(self, plain: list[str], tmp_path: Path) -> None:
        ran = wds("shuffle", "-", "--keys-from", "-", "-o", tmp_path / "o.tar", stdin=b"a001\n")
        assert ran.code == 2
        assert "both keys and a shard" in ran.err


class Heard(Progress):
    """Remembers what it is told."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def start(self, *_: Any) -> None: ...

    def advance(self, *_: Any) -> None: ...

    def finish(self) -> None: ...

    def note(self, *_: Any) -> None: ...

    def warn(self, message: str) -> None:
        self.warnings.append(message)


class TestScratch:
    def test_tmp_says_where(self, plain: list[str], tmp_path: Path) -> None:
        """Seen while the copies are there; nothing is left after success, an error, a dry run."""
        (tmp_path / "t").mkdir()
        look = f"ls {tmp_path}/t > {tmp_path}/seen; cat {plain[0]}"
        out = tmp_path / "o.tar"
        ran = wds(
            "shuffle", f"pipe:cat {plain[1]}", f"pipe:{look}", "-o", out, "--tmp", tmp_path / "t", "-j1"
        )
        assert ran.code == 0, ran.err
        assert (tmp_path / "seen").read_text().startswith("wds-")
        assert (
            wds("shuffle", f"pipe:cat {plain[1]}; exit 1", "-o", out, "--tmp", tmp_path / "t", "--force").code
            == 4
        )
        assert (
            wds("shuffle", f"pipe:cat {plain[1]}", "-o", out, "--tmp", tmp_path / "t", "--force", "-n").code
            == 0
        )
        assert list((tmp_path / "t").iterdir()) == []

    def test_tmpdir_is_the_default(self, plain: list[str], tmp_path: Path) -> None:
        (tmp_path / "t").mkdir()
        look = f"pipe:ls {tmp_path}/t > {tmp_path}/seen; cat {plain[0]}"
        environment = {**os.environ, "TMPDIR": str(tmp_path / "t")}
        ran = wds("shuffle", f"pipe:cat {plain[1]}", look, "-o", tmp_path / "o.tar", "-j1", env=environment)
        assert ran.code == 0, ran.err
        assert (tmp_path / "seen").read_text().startswith("wds-")
        assert list((tmp_path / "t").iterdir()) == []

    def test_a_folder_that_is_not_there(self, plain: list[str], tmp_path: Path) -> None:
        ran = wds("shuffle", f"pipe:cat {plain[1]}", "-o", tmp_path / "o.tar", "--tmp", tmp_path / "none")
        assert ran.code == 4
        assert "--tmp" in ran.err

    def test_what_cannot_fit_is_refused_at_once(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        read = []

        class Sized:
            name, size, seekable = "web", 1 << 60, False

            def read_some(self, offset: int, length: int) -> bytes:
                read.append(offset)
                return b""

        with pytest.raises(OutputError, match="do not fit") as caught:
            spool(Sized(), str(tmp_path / "s" / "0.tar"))  # type: ignore[arg-type]
        assert read == []
        assert "--tmp" in str(caught.value.hint)

    def test_a_full_disk(self, plain: list[str], tmp_path: Path) -> None:
        with (
            open_source(f"pipe:cat {plain[0]}") as source,
            pytest.raises(OutputError, match="cannot copy") as caught,
        ):
            os.mkdir(tmp_path / "s")
            os.symlink("/dev/full", tmp_path / "s" / "0.tar")
            spool(source, str(tmp_path / "s" / "0.tar"))
        assert "--tmp" in str(caught.value.hint)

    def test_it_is_for_the_owner_alone(self, plain: list[str], tmp_path: Path) -> None:
        with Scratch(str(tmp_path)) as scratch, open_source(f"pipe:cat {plain[0]}") as source:
            spool(source, scratch.place(0))
            assert os.stat(scratch.folder).st_mode & 0o777 == 0o700
            with Input("name", scratch.place(0)).open() as copy:
                assert (copy.name, copy.seekable) == ("name", True)
                assert copy.read_at(0, 1 << 20) == Path(plain[0]).read_bytes()
        assert not os.path.exists(scratch.folder)

    def test_a_copy_is_not_taken_for_a_compressed_file(self, tmp_path: Path) -> None:
        data = tar_of([("BZh91AY&SY.cls", b"1")])
        (tmp_path / "0.tar").write_bytes(data)
        with Input("x", str(tmp_path / "0.tar")).open() as copy:
            assert copy.seekable


@pytest.mark.exhaustive
def test_s3_to_s3(plain: list[str], wanted: dict[str, bytes], tmp_path: Path) -> None:
    with s3_server() as server:
        server.bucket("bucket")
        for name in plain:
            server.client.put_object(
                Bucket="bucket", Key="in/" + Path(name).name, Body=Path(name).read_bytes()
            )
        server.client.put_object(
            Bucket="bucket", Key="in/in-1.tar.gz", Body=gzip.compress(Path(plain[1]).read_bytes())
        )
        names = ["s3://bucket/in/in-0.tar", "s3://bucket/in/in-1.tar.gz", plain[2]]
        request = Request(names, "s3://bucket/out/out-%06d.tar", cuts=Cuts(max_count=7), jobs=2)
        shuffle(request, 3)
        found = {
            name: server.get("bucket", name) for name in server.names("bucket") if name.startswith("out/")
        }
        assert "out/out-manifest.json" in found
        assert {name[4:]: data for name, data in found.items() if not name.endswith(".json")} == wanted
        assert server.pending("bucket") == []


def test_more_inputs_than_are_open_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wdscli.storage.scatter.MOST_LOCAL", 3)
    opened: list[str] = []
    original = Input.open

    def counted(self: Input) -> Any:
        opened.append(self.address)
        return original(self)

    monkeypatch.setattr(Input, "open", counted)
    names = write_shards(tmp_path / "in", [numbered(3, f"p{n}-") for n in range(10)])
    check(names, tmp_path)
    assert len(opened) > 20


def test_a_set_of_random_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that touch, that do not, that end at the buffer's last byte: against the book."""
    monkeypatch.setattr("wdscli.copy.copier.COPY_BUFFER_BYTES", 1 << 19)
    rng = random.Random(11)
    sizes = [0, 1, 512, 1000, 40_000, 261_120, 262_144, 522_240, 523_264, 524_288, 600_000]
    shards = [
        [sample(f"s{s}n{n}", n, rng.choices(sizes, k=rng.randrange(1, 4))) for n in range(12)]
        for s in range(3)
    ]
    check(write_shards(tmp_path / "in", shards), tmp_path)
