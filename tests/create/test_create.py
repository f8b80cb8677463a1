"""The library behind wds create: its two halves, files that change between them, rules and globs."""

from __future__ import annotations

import os
import random
import tarfile
import threading
from pathlib import Path

import pytest

from wdscli.create import packing
from wdscli.create.files import Files, KeyRule
from wdscli.create.grouping import group
from wdscli.create.left_out import LeftOut
from wdscli.create.payloads import SourcePayloads, parse_line
from wdscli.create.table import TableOptions
from wdscli.create.walk import Globs
from wdscli.errors import DataError, InputError, UsageError
from wdscli.ops.create import CreateOptions, create, plan_create, run_create
from wdscli.plan.cut import Cuts
from wdscli.plan.request import Request
from wdscli.progress import NullProgress
from wdscli.shards.writing import ShardSettings
from wdscli.tar import core

SMALL, MIDDLING, LARGE = 100, 100_000, 3_000_000


def change(path: Path, size: int) -> None:
    os.truncate(path, size)


@pytest.mark.parametrize(
    "size",
    [1, SMALL, MIDDLING, packing.PIECE_BYTES - 513, packing.PIECE_BYTES - 512, packing.PIECE_BYTES, LARGE],
)
@pytest.mark.parametrize("by", [-1, 1, 2_000_000])
def test_a_file_that_changes_is_an_error_and_leaves_nothing(tmp_path: Path, size: int, by: int) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for name in ("a", "b", "c"):
        (folder / f"{name}.bin").write_bytes(bytes(size))
    with SourcePayloads() as payloads:
        plan = plan_create(Request([str(folder)], str(tmp_path / "o-%06d.tar")), CreateOptions(), payloads)
        change(folder / "b.bin", size + by)
        with pytest.raises(DataError) as error:
            run_create(plan)
    assert error.value.code == "changed-while-read"
    assert f"{folder}/b.bin {'grew' if by > 0 else 'shrank'} while it was read" in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_the_core_sorts_and_groups_like_plain_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more files than a block has, with keys and rows that repeat."""
    seeded, files = random.Random(0), Files()
    for _ in range(40_000):
        row = b"%x\0%x" % (seeded.randrange(20_000), seeded.randrange(1 << seeded.randrange(12)))
        files.add_row(row, seeded.randrange(1 << 40), seeded.choice((-1, -2)))

    def results() -> object:
        twice: list[int] = []
        samples = group(files, twice=twice)
        part = files.part(samples.order[::7]).gather(range(len(samples.order[::7])))
        part_rows = part.row_list(), part.sizes.tolist(), part.places.tolist()
        with pytest.raises(DataError) as error:
            group(files)
        return samples.order, samples.firsts, samples.places, twice, part_rows, str(error.value)

    files.root(b"a"), files.root(b"b")
    compiled = results()
    monkeypatch.setattr(core, "CORE", None)
    assert compiled == results()


def test_a_folder_that_vanishes_is_an_input_error(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.bin").write_bytes(b"x")
    with SourcePayloads() as payloads:
        options = CreateOptions(label_from="parent")
        plan = plan_create(Request([str(folder)], str(tmp_path / "o-%06d.tar")), options, payloads)
        folder.rename(tmp_path / "other")
        with pytest.raises(InputError, match=r"cannot read .*in/a\.bin"):
            run_create(plan)
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


def test_a_file_that_grows_between_two_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "in.bin"
    path.write_bytes(bytes(LARGE))
    preadv = os.preadv

    def growing(descriptor: int, views: list[memoryview], offset: int) -> int:
        if offset:
            change(path, LARGE + 1)
        return preadv(descriptor, views, offset)

    monkeypatch.setattr(os, "preadv", growing)
    with pytest.raises(DataError, match="grew while it was read"):
        create(Request([str(path)], str(tmp_path / "o.tar")))
    assert not (tmp_path / "o.tar").exists()


def test_a_file_that_vanishes_is_an_input_error(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    with SourcePayloads() as payloads:
        plan = plan_create(Request([str(tmp_path)], str(tmp_path / "o.tar")), CreateOptions(), payloads)
        (tmp_path / "a.txt").unlink()
        with pytest.raises(InputError, match=r"a\.txt"):
            run_create(plan)
    assert not list(tmp_path.glob("*.tar"))


def test_slow_reads_are_put_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some file systems give less than they are asked for."""
    (tmp_path / "a.bin").write_bytes(os.urandom(1000))
    (tmp_path / "b.bin").write_bytes(os.urandom(MIDDLING))
    create(Request([str(tmp_path)], str(tmp_path / "one.tar")))
    read, preadv = os.read, os.preadv
    monkeypatch.setattr(os, "read", lambda descriptor, size: read(descriptor, min(size, 300)))
    monkeypatch.setattr(os, "preadv", lambda fd, views, at: preadv(fd, [views[0][:7000]], at))
    create(
        Request([str(tmp_path)], str(tmp_path / "two.tar")),
        CreateOptions(exclude=("*.tar", "*-manifest.json")),
    )
    assert (tmp_path / "two.tar").read_bytes() == (tmp_path / "one.tar").read_bytes()


def test_one_task_never_loads_a_large_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.bin").write_bytes(bytes(LARGE))
    asked: list[int] = []
    preadv = os.preadv

    def watched(descriptor: int, views: list[memoryview], offset: int) -> int:
        asked.append(len(views[0]))
        return preadv(descriptor, views, offset)

    monkeypatch.setattr(os, "preadv", watched)
    create(Request([str(tmp_path)], str(tmp_path / "o.tar")))
    assert max(asked) <= packing.PIECE_BYTES


def test_an_interrupt_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "out").mkdir()

    def interrupt(*_: object) -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "preadv", interrupt)
    with pytest.raises(KeyboardInterrupt):
        create(Request([str(tmp_path / "a.txt")], str(tmp_path / "out" / "o.tar")))
    assert not list((tmp_path / "out").iterdir())


def test_the_report(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt", "README"):
        (tmp_path / name).write_text(name)
    report = create(Request([str(tmp_path)], str(tmp_path / "o-%06d.tar"), cuts=Cuts(max_count=1)))
    assert (report.samples, report.members, report.size_bytes) == (2, 2, 4096)
    assert report.skipped == {"no-field": 1}
    assert report.manifest is not None
    assert [shard.name for shard in report.manifest.shards] == ["o-000000.tar", "o-000001.tar"]
    assert [shard.size_bytes for shard in report.shards] == [s.size_bytes for s in report.manifest.shards]


def test_progress_counts_every_byte(tmp_path: Path) -> None:
    class Counting(NullProgress):
        done = 0
        total: int | None = 0

        def start(self, what: str, total: int | None, unit: str) -> None:
            self.done, self.total = 0, total

        def advance(self, amount: int) -> None:
            self.done += amount

    for number in range(4):
        (tmp_path / f"{number}.txt").write_text("x")
    for jobs in (1, 2):
        seen = Counting()
        options = CreateOptions(include=("*.txt",))
        report = create(
            Request(
                [str(tmp_path)],
                str(tmp_path / "o-%06d.tar"),
                cuts=Cuts(max_count=2),
                jobs=jobs,
                settings=ShardSettings(force=True),
            ),
            options,
            progress=seen,
        )
        assert seen.total == report.size_bytes
        assert seen.total - 1024 * len(report.shards) <= seen.done <= seen.total


def test_many_samples_pass_in_several_batches(tmp_path: Path) -> None:
    """More than one batch of the index, with a field that not every sample has."""
    count = 2500
    recipe = tmp_path / "recipe"
    recipe.write_text(
        "".join(f"{n:05}.txt text:{n}\n" + f"{n:05}.cls text:1\n" * (n % 3 == 0) for n in range(count))
    )
    report = create(Request([], str(tmp_path / "o.tar")), CreateOptions(from_list=str(recipe)))
    assert report.samples == count
    from wdscli.samples import iter_batches
    from wdscli.shards.index import parse_index
    from wdscli.storage import open_source

    index = parse_index((tmp_path / ".wds" / "o.tar.wdx").read_bytes(), "o")
    with open_source(str(tmp_path / "o.tar")) as source:
        keys, offsets, starts = [], [], []
        for batch in iter_batches(source):
            keys += batch.keys
            offsets += batch.offsets
            starts += [batch.starts[first] for first in batch.firsts[:-1]]
    whole = index.batch()
    assert (whole.keys, whole.offsets, index.starts.tolist()) == (keys, offsets, starts)


def test_long_names_and_batches_agree_with_tarfile(tmp_path: Path) -> None:
    names = [f"{'d' * 90}/{'e' * 90}/{n}.txt" for n in range(3)] + [
        f"{'x' * length}.txt" for length in range(90, 120)
    ]
    recipe = tmp_path / "recipe"
    recipe.write_text("".join(f"{name}\ttext:{name}\n" for name in names))
    report = create(Request([], str(tmp_path / "o.tar")), CreateOptions(from_list=str(recipe)))
    assert report.size_bytes == (tmp_path / "o.tar").stat().st_size
    with tarfile.open(tmp_path / "o.tar") as tar:
        assert [(m.name, tar.extractfile(m).read().decode()) for m in tar] == [(n, n) for n in names]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("*.jpg", ["a.jpg", "x/a.jpg", "x/y/.jpg"], ["a.png", "a.jpg/b"]),
        ("x/*.jpg", ["x/a.jpg"], ["a.jpg", "x/y/a.jpg", "y/x/a.jpg"]),
        ("**/a.jpg", ["a.jpg", "x/a.jpg", "x/y/a.jpg"], ["xa.jpg"]),
        ("x/**", ["x/a", "x/y/z"], ["x", "xy/a"]),
        ("x/**.py", ["x/a.py", "x/y/z.py"], ["a.py", "y/x/a.py"]),
        ("**.py", ["a.py", "x/y/a.py"], ["a.pyc"]),
        ("x/a**z", ["x/az", "x/abz", "x/a/b/z"], ["x/y/az"]),
        ("x/", ["x/a.py", "x/y/a.py", "y/x/a", "x/"], ["x", "xy/a"]),
        ("x/y/", ["x/y/a"], ["z/x/y/a", "x/a"]),
        ("x/**/z", ["x/z", "x/y/z", "x/y/y/z"], ["xz", "x/yz"]),
        ("/a.jpg", ["a.jpg"], ["x/a.jpg"]),
        ("img?.[jp]*", ["img1.jpg", "img2.png"], ["img10.jpg", "img1.gif"]),
        ("[!a]b", ["cb", "x/cb"], ["ab", "/b"]),
        ("a[", ["a["], ["a"]),
        ("a+(b).txt", ["a+(b).txt"], ["aab.txt"]),
        ("caf\udce9*", ["caf\udce9.txt"], ["cafe.txt"]),
        ("ü?", ["üx"], ["ux"]),
    ],
)
def test_globs(pattern: str, yes: list[str], no: list[str]) -> None:
    globs = Globs([pattern], "--include")
    assert [path for path in yes if not globs.match(os.fsencode(path))] == []
    assert [path for path in no if globs.match(os.fsencode(path))] == []


def test_key_rules() -> None:
    for rule, path, found in [
        ("first-dot", b"a/b.c.d", (b"a/b", b"c.d")),
        ("first-dot", b"a.b/c", "no-field"),
        ("first-dot", b"a/.b.c", "hidden"),
        ("first-dot", b"a/._b.c", "appledouble"),
        ("first-dot", b"__x__/b.c", "dunder"),
        ("last-dot", b"a.b/c.d.e", (b"a.b/c_d", b"e")),
        ("last-dot", b"a/b.", "no-field"),
        ("(.*)_(.*)", b"a_b.png", (b"a", b"b.png")),
        ("(.*)_(.*)", b"ab.png", "no-match"),
        ("(?P<field>..)(?P<key>.*)", b"\xff1\xfe", (b"\xfe", b"\xff1")),
    ]:
        assert KeyRule(rule).split(path) == found


def test_two_keys_that_become_one() -> None:
    rule = KeyRule("last-dot")
    assert rule.split(b"a.b.jpg") == (b"a_b", b"jpg")
    assert rule.split(b"a.b.cls") == (b"a_b", b"cls")
    with pytest.raises(DataError, match=r'"a\.b" and "a_b"'):
        rule.split(b"a_b.txt")


@pytest.mark.parametrize(
    "options", [CreateOptions(), CreateOptions(label_from="parent"), CreateOptions(exclude=("*.bin",))]
)
def test_the_core_and_plain_python_find_and_write_the_same(
    options: CreateOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = tmp_path / "in"
    for folder in ("n1", "n2/deep", "__x__", ".hidden", "d" * 120):
        (tree / folder).mkdir(parents=True)
        for name, size in (
            ("a.txt", 0),
            ("a.b.c", 511),
            ("b.bin", MIDDLING),
            (".DS_Store", 1),
            ("__y__.t", 3),
        ):
            (tree / folder / name).write_bytes(b"z" * size)
    (tree / "n1" / "large.bin").write_bytes(bytes(LARGE))
    (tree / "n1" / ("l" * 140 + ".txt")).write_text("long")
    (tree / "n1" / "no-field").write_text("x")
    (tree / "n1" / "linked.txt").symlink_to(tree / "n2" / "deep" / "b.bin")
    (tree / "n1" / "loop").symlink_to(tree / "n1")
    (tree / "n1" / "there").symlink_to(tree / "n2" / "deep")
    (tree / "n2" / "shard-manifest.json").write_text("{}")
    one = create(Request([str(tree)], str(tmp_path / "one.tar")), options)
    monkeypatch.setattr(core, "CORE", None)
    two = create(Request([str(tree)], str(tmp_path / "two.tar")), options)
    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "two.tar").read_bytes()
    assert (one.skipped, one.samples, one.members) == (two.skipped, two.samples, two.members)
    assert one.manifest is not None
    assert two.manifest is not None
    assert one.manifest.shards[0].headers == two.manifest.shards[0].headers


@pytest.mark.parametrize("name", ["broken.txt", "pipe.txt"])
def test_the_core_and_plain_python_refuse_the_same(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = tmp_path / "in"
    tree.mkdir()
    (tree / "a.txt").write_text("x")
    if name == "pipe.txt":
        os.mkfifo(tree / name)
    else:
        (tree / name).symlink_to("nowhere")
    messages = []
    for _ in range(2):
        with pytest.raises(InputError) as error:
            create(Request([str(tree)], str(tmp_path / "one.tar")))
        messages.append(str(error.value))
        monkeypatch.setattr(core, "CORE", None)
    assert messages[0] == messages[1]
    assert name in messages[0]


def test_small_payloads_at_addresses_are_read_several_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also into one shard, and with one job; each waits here until another is read too."""
    from wdscli import storage

    memory = pytest.importorskip("fsspec").filesystem("memory")
    names = [f"/wds-several/{number}" for number in range(6)]
    for name in names:
        memory.pipe(name, name.encode())
    (tmp_path / "list").write_text("".join(f"s{at}.txt memory:/{name}\n" for at, name in enumerate(names)))
    options = CreateOptions(from_list=str(tmp_path / "list"))
    both = threading.Barrier(2, timeout=30)
    original = storage.open_source
    with SourcePayloads() as payloads:
        plan = plan_create(Request([], str(tmp_path / "o.tar"), jobs=1), options, payloads)

        def waiting(address: str, **more: bool) -> object:
            both.wait()
            return original(address, **more)

        monkeypatch.setattr(storage, "open_source", waiting)
        run_create(plan)
    with tarfile.open(tmp_path / "o.tar") as tar:
        assert [tar.extractfile(one).read() for one in tar] == [name.encode() for name in names]  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", ["list", "table"])
def test_sizes_at_addresses_are_asked_for_several_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """And what is not there is told as in its own line or row."""
    from wdscli import storage

    memory = pytest.importorskip("fsspec").filesystem("memory")
    names = [f"/wds-sizes/{number}" for number in range(4)]
    for name in names:
        memory.pipe(name, name.encode())
    memory.rm(names[2])
    path = tmp_path / kind
    if kind == "list":
        path.write_text("".join(f"s{at}.txt memory:/{name}\n" for at, name in enumerate(names)))
        options = CreateOptions(from_list=str(path))
        said = "list, line 3: "
    else:
        path.write_text("id,at\n" + "".join(f"s{at},memory:/{name}\n" for at, name in enumerate(names)))
        options = CreateOptions(table=TableOptions(str(path), key="id", fields=("txt=@at",)))
        said = "table, row 3 .line 4.: "
    both = threading.Barrier(2, timeout=30)
    original = storage.open_source

    def waiting(address: str, **more: bool) -> object:
        if address.startswith("memory:"):
            both.wait()
        return original(address, **more)

    monkeypatch.setattr(storage, "open_source", waiting)
    with SourcePayloads() as payloads, pytest.raises(InputError, match=said):
        plan_create(Request([], str(tmp_path / "o.tar"), jobs=1), options, payloads)
    with SourcePayloads(left_out=LeftOut(on_error="skip")) as payloads:
        report = plan_create(Request([], str(tmp_path / "o.tar"), jobs=1), options, payloads).report
    assert (report.samples, report.unread) == (3, 1)


def test_lines_of_a_list() -> None:
    assert parse_line(b"a.txt\ttext:") is not None
    with pytest.raises(DataError):
        parse_line(b"a.txt\t")
    assert parse_line(b" \t ") is None


def test_a_seed_is_any_number(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    create(
        Request([str(tmp_path / "a.txt")], str(tmp_path / "o.tar")), CreateOptions(order="shuffle", seed=-5)
    )


def test_jobs_below_one(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(UsageError, match="--jobs"):
        create(Request([str(tmp_path / "a.txt")], str(tmp_path / "o.tar"), jobs=0))


def test_payloads_at_addresses_and_a_set_at_one(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    large = os.urandom(LARGE)
    memory.pipe("/wds-create/small", b"s" * 600)
    memory.pipe("/wds-create/large", large)
    recipe = tmp_path / "recipe"
    recipe.write_text("a.txt memory://wds-create/small\na.bin memory://wds-create/large\n")
    out = "memory://wds-create/out-%06d.tar"
    try:
        report = create(Request([], out, jobs=1), CreateOptions(from_list=str(recipe)))
        data = memory.cat("/wds-create/out-000000.tar")
        assert data[512 : 512 + LARGE] == large
        assert b"s" * 600 in data
        assert len(data) == report.size_bytes
        assert memory.exists("/wds-create/out-manifest.json")
        with SourcePayloads() as payloads:
            plan = plan_create(
                Request([], out, jobs=1, settings=ShardSettings(force=True)),
                CreateOptions(from_list=str(recipe)),
                payloads,
            )
            memory.pipe("/wds-create/small", b"s" * 601)
            with pytest.raises(DataError, match="memory://wds-create/small grew"):
                run_create(plan)
    finally:
        memory.rm("/wds-create", recursive=True)


def test_few_bytes_beside_the_largest_shard_start_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from wdscli.copy import maker as module

    for number in range(3):
        (tmp_path / f"{number}.txt").write_text("x")

    original = module.make_executor

    def here(jobs: int, engine: str | None) -> object:
        assert jobs == 1
        return original(jobs, engine)

    monkeypatch.setattr(module, "make_executor", here)
    create(Request([str(tmp_path)], str(tmp_path / "o-%06d.tar"), cuts=Cuts(max_count=1)))
