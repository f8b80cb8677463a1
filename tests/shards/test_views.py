"""Views, against the set that the same plan writes: same bytes, same index, whatever the inputs and the options."""

from __future__ import annotations

import json
import pickle
import random
import re
import shutil
import subprocess
import sys
import tarfile
import threading
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from storage_servers import S3
from tiers import EXHAUSTIVE
from xxhash import xxh3_64_hexdigest

from wdscli.cli.main import main
from wdscli.errors import DataError, InputError, WdsError
from wdscli.loader import WebDataset
from wdscli.plan.cut import Cuts
from wdscli.plan.join import Join
from wdscli.plan.orders import InputOrder, Order, ShuffledOrder
from wdscli.plan.plan import make_plan
from wdscli.plan.request import Request
from wdscli.run.execute import reorder
from wdscli.selection import Selection
from wdscli.shards import ShardReader, ShardWriter, read_manifest
from wdscli.shards import view_shards as views
from wdscli.shards.layout import ViewSource
from wdscli.shards.proof import find_index, scan_index
from wdscli.storage import open_sink, open_source
from wdscli.storage.addresses import TRUSTED
from wdscli.views import writing

CHECK_PROOF = Path(__file__).parents[2] / "scripts" / "examples" / "check_proof.py"
FIELDS = ["jpg", "cls", "txt", "seg.png", "json"]


def base_set(folder: Path, rng: random.Random, keys: list[str], fields: list[str]) -> list[str]:
    """A set of one to three shards: as wdscli writes them, or as Python's tarfile does, with members of no sample."""
    count = rng.randrange(1, 4)
    bounds = sorted(rng.randrange(len(keys) + 1) for _ in range(count - 1))
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for number, (low, high) in enumerate(zip([0, *bounds], [*bounds, len(keys)])):
        samples = [
            (key, {field: rng.randbytes(rng.choice([0, 1, 511, 512, 700])) for field in some})
            for key in keys[low:high]
            if (some := [field for field in fields if rng.random() < 0.8] or [fields[0]])
        ]
        path = folder / f"s-{number:06d}.tar"
        written.append(str(path))
        form = rng.choice(["wds", "indexless", "ustar", "gnu", "pax"])
        if form in ("wds", "indexless"):
            with ShardWriter(str(path), with_index=form == "wds") as writer:
                for key, members in samples:
                    writer.write(key, members)
            continue
        formats = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
        with tarfile.open(path, "w", format=formats[form]) as tar:
            for key, members in samples:
                if rng.random() < 0.2:
                    tar.addfile(_folder(rng))
                for field, payload in members.items():
                    info = tarfile.TarInfo(f"{key}.{field}")
                    info.size, info.uid, info.mode = len(payload), 1000, 0o600
                    tar.addfile(info, BytesIO(payload))
    return written


def _folder(rng: random.Random) -> tarfile.TarInfo:
    info = tarfile.TarInfo(f"folder{rng.randrange(99)}")
    info.type = tarfile.DIRTYPE
    return info


def request_of(rng: random.Random, inputs: list[str], names: str, is_join: bool) -> Request:
    """A request with random selection, fields, keys and cuts."""
    options: dict[str, object] = {}
    if rng.random() < 0.3:
        options["keys"] = [f"*{rng.randrange(10)}"]
    if rng.random() < 0.3:
        options["drop"] = rng.choice(["txt", "cls", "seg.png"])
    if rng.random() < 0.3:
        options["rename"] = [rng.choice(["image=jpg;seg.png", "label=cls", "a.b=txt"])]
    if rng.random() < 0.2:
        options["slice"] = "::2"
    rekey = (
        None
        if is_join or rng.random() < 0.7
        else rng.choice(["{n:06d}", "x-{key}", "{shard}-{index}" + "y" * 90])
    )
    return Request(
        inputs,
        names,
        cuts=Cuts(max_count=rng.choice([None, 3, 7])),
        selection=Selection.parse(**options),  # type: ignore[arg-type]
        rekey=rekey,
        on_duplicate=rng.choice(["error", "rekey"]) if not is_join else "error",
        allow_empty=True,
        jobs=1,
    )


def order_of(rng: random.Random, sets: int) -> Order:
    """Input order, a shuffle, or a join of several sets."""
    if sets > 1 and rng.random() < 0.7:
        kind = rng.choice(["inner", "left", "outer"])
        return Join(kind, rng.choice(["left", "right", "suffix"]))  # type: ignore[arg-type]
    return rng.choice([InputOrder("split"), ShuffledOrder(rng.randrange(9))])


@pytest.mark.parametrize("seed", range(60))
def test_a_view_has_the_bytes_that_its_command_writes(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    monkeypatch.chdir(tmp_path)
    keys = [
        f"k{number}" + "/long" * (rng.randrange(40) if rng.random() < 0.05 else 0) for number in range(30)
    ]
    # Each set as shards, and later also as a view.
    sets: list[list[str]] = []
    for name in ("a", "b", "c"):
        some = rng.sample(keys, rng.randrange(5, 30))
        sets.append([f"{name}/"])
        base_set(tmp_path / name, rng, some, rng.sample(FIELDS, rng.randrange(1, 4)))
    made = 0
    for step in range(6):
        count = rng.choice([1, 1, 2, 2, 3])
        inputs = [one[-1] for one in rng.sample(sets, count)]
        order = order_of(rng, count)
        request = request_of(rng, inputs, "", isinstance(order, Join))
        keeps_names = order.may_keep_names and request.cuts == Cuts()
        request = request._replace(
            output=f"flat{step}/" + ("{name}.tar" if keeps_names else f"v{step}-%06d.tar")
        )
        try:
            reorder(request, order)
        except WdsError:
            # Such as a key that two sets have: the plan of the view refuses it too.
            with pytest.raises(WdsError):
                make_plan(request._replace(output=f"v{step}.json"), order)
            continue
        reorder(request._replace(output=f"v{step}.json"), order)
        shards = sorted(Path(f"flat{step}").glob("*.tar"))
        assert list(views.opened(f"v{step}.json").places) == [one.name for one in shards]
        for shard in shards:
            _assert_same(f"v{step}.json/{shard.name}", shard, rng)
        sets.append([f"v{step}.json"])
        made += 1
    assert made


def _assert_same(address: str, shard: Path, rng: random.Random) -> None:
    data = shard.read_bytes()
    with open_source(address) as source, open_source(str(shard)) as flat:
        assert b"".join(source.pieces()) == data
        for _ in range(20):
            low, length = rng.randrange(len(data)), rng.choice([1, 100, 5000])
            assert source.read_at(low, length) == data[low : low + length]
        index, of_flat = find_index(address, source), find_index(str(shard), flat)
        assert index is not None
        assert of_flat is not None
        assert index.digest == of_flat.digest == scan_index(source)[0].digest()
    with ShardReader(address) as one, ShardReader(str(shard)) as other:
        assert [dict(sample) for sample in one] == [dict(sample) for sample in other]


ALIGNED = [f"k{number:02d}" for number in range(24)]


@pytest.fixture
def aligned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two sets of canonical shards with the same keys in the same shards, and views of them that take shortcuts."""
    monkeypatch.chdir(tmp_path)
    rng = random.Random(1)
    for name, fields in (("a", ["jpg", "cls"]), ("b", ["txt", "JPG"])):
        with ShardWriter(f"{name}/x-%06d.tar", max_count=8) as writer:
            for key in ALIGNED:
                writer.write(key, {field: rng.randbytes(rng.choice([0, 9, 512, 9000])) for field in fields})
    views_of: dict[str, tuple[list[str], Order, dict[str, Any]]] = {
        "whole": (["a/"], InputOrder("split"), {}),
        "less": (["a/"], InputOrder("split"), {"keys": ["*[1-9]"]}),
        "mixed": (["a/"], ShuffledOrder(3), {}),
        "joined": (["a/", "b/"], Join("left", "error"), {}),
        "outer": (["a/", "less.json", "b/"], Join("outer", "left"), {}),
        "partial": (["less.json", "b/"], Join("outer", "error"), {}),
    }
    for name, (inputs, order, options) in views_of.items():
        for output in (f"{name}.json", f"{name}/{name}-%06d.tar"):
            cuts = Cuts(max_count=5) if name == "mixed" else Cuts(max_count=8)
            request = Request(inputs, output, cuts=cuts, selection=Selection.parse(**options), jobs=1)
            reorder(request, order)
    views.forget()
    return tmp_path


SHORTCUTS = ["whole", "less", "mixed", "joined", "outer", "partial"]


@pytest.mark.parametrize("name", SHORTCUTS)
def test_shortcuts_of_commands_find_what_a_scan_finds(
    name: str, aligned: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shards = sorted(path.name for path in Path(name).glob("*.tar"))
    assert list(views.opened(f"{name}.json").places) == shards
    for shard in shards:
        _assert_same(f"{name}.json/{shard}", Path(name, shard), random.Random(1))
        with open_source(f"{name}.json/{shard}") as source:
            assert isinstance(source, ViewSource)
            assert (source.fd is not None) == source.layout.is_base == (name == "whole")
    for words in (["ls", "--summary"], ["ls", "--json"], ["verify", "--json"]):
        said = []
        for given in (f"{name}.json", f"{name}/"):
            assert main([*words, given]) == 0
            said.append(
                capsys.readouterr().out.replace(f"{name}.json/", f"{name}/").replace(f"{name}.json", name)
            )
        # Only a view has a line of descent.
        said[0] = re.sub(r"descent\t.*\n", "", said[0])
        assert said[0] == said[1].replace(f"{name}/\n", f"{name}\n")


@pytest.mark.parametrize("name", SHORTCUTS)
@pytest.mark.parametrize("fields", [None, ["cls"], ["txt"], ["jpg", "txt"], ["none"]])
@pytest.mark.parametrize("core", ["core", "plain"])
def test_the_loader_reads_the_samples_of_the_shards(
    name: str, fields: list[str] | None, core: str, aligned: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if core == "plain":
        monkeypatch.setattr("wdscli.tar.core.CORE", None)
    for shuffle in ("none", "window"):
        flat, view = (
            list(WebDataset(given, shuffle=shuffle, fields=fields)) for given in (f"{name}/", f"{name}.json")
        )
        assert [list(_plain(one).items()) for one in view] == [list(_plain(one).items()) for one in flat]
        assert {one["__url__"].rpartition("/")[0] for one in view} == {f"{name}.json"}


@pytest.mark.parametrize("name", SHORTCUTS)
@pytest.mark.parametrize("base", ["a", "b"])
def test_a_changed_base_is_an_error_in_every_shortcut(name: str, base: str, aligned: Path) -> None:
    if base == "b" and name in ("whole", "less", "mixed"):
        return
    opened = WebDataset(f"{name}.json")
    source = open_source(f"{name}.json/{name}-000000.tar")
    path = Path(base, "x-000000.tar")
    data = bytearray(path.read_bytes())
    # Another key in the headers of a sample, and the same size.
    for at in [at for at in range(0, len(data), 512) if data[at : at + 4] == b"k01."]:
        data[at : at + 4] = b"k77."
        header = data[at : at + 148] + b" " * 8 + data[at + 156 : at + 512]
        data[at + 148 : at + 156] = b"%06o\0 " % sum(header)
    path.write_bytes(data)
    with source, pytest.raises(DataError):
        list(opened)
    views.forget()
    if name == "mixed":
        assert main(["verify", f"{name}.json"]) == 1
        return
    for command in (
        ["ls", "--summary"],
        ["cat", "-o", "out.tar", "--force"],
        ["shuffle", "-o", "o/%06d.tar"],
    ):
        assert main([*command, f"{name}.json"]) == 3
    assert main(["verify", f"{name}.json"]) == 1


def test_views_do_not_need_the_views_between(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    base_set(tmp_path / "a", random.Random(1), [f"k{number}" for number in range(20)], ["jpg", "cls"])
    first = Request(["a/"], "v1.json", selection=Selection.parse(drop="cls"), rekey="n{n}", jobs=1)
    reorder(first, InputOrder("split"))
    reorder(Request(["v1.json"], "v2.json", jobs=1), ShuffledOrder(1))
    with ShardReader("v2.json/v2-000000.tar") as shard:
        before = [(sample.key, dict(sample)) for sample in shard]
    assert {tuple(fields) for _, fields in before} == {("jpg",)}
    Path("v1.json").unlink()
    shutil.rmtree("a/.wds", ignore_errors=True)
    views.forget()
    with ShardReader("v2.json/v2-000000.tar") as shard:
        assert [(sample.key, dict(sample)) for sample in shard] == before


@pytest.mark.exhaustive(sample=False)
@pytest.mark.parametrize("with_indexes", [True, pytest.param(False, marks=EXHAUSTIVE)])
def test_views_on_a_store(
    with_indexes: bool, s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rng, keys = random.Random(5), [f"k{number}" for number in range(40)]
    for name, fields in (("a", ["jpg", "cls"]), ("b", ["txt"])):
        base_set(tmp_path / name, rng, keys, fields)
    store = f"s3://{s3.bucket(f'views-{int(with_indexes)}')}"
    for path in sorted(tmp_path.rglob("*")):
        if path.is_file() and (with_indexes or path.suffix != ".wdx"):
            with open_sink(f"{store}/{path.relative_to(tmp_path)}") as sink:
                sink.write(path.read_bytes())
    for kind in ("left", "inner"):
        reorder(Request(["a/", "b/"], f"{kind}/{{name}}.tar", jobs=1), Join(kind))  # type: ignore[arg-type]
        view = f"{store}/{kind}.json"
        reorder(Request([f"{store}/a/", f"{store}/b/"], view, jobs=1), Join(kind))  # type: ignore[arg-type]
        for path in Path(kind).glob("*.tar"):
            _assert_same(f"{view}/{path.name}", path, rng)
        flat = WebDataset(f"{kind}/", shuffle="window", seed=1)
        data = WebDataset(view, shuffle="window", seed=1)
        assert [_plain(one) for one in data] == [_plain(one) for one in flat]


@pytest.mark.exhaustive(sample=False)
def test_a_view_on_a_store_is_made_from_indexes_alone(s3: S3) -> None:
    """And a list of its samples asks for the version of each base once, and reads no base."""
    store = f"s3://{s3.bucket('from-indexes')}"
    with ShardWriter(f"{store}/a/x-%06d.tar", max_count=2) as writer:
        for number in range(6):
            writer.write(f"k{number}", {"jpg": bytes(100_000)})

    def read(*words: str) -> list[str]:
        views.forget()
        s3.seen.begin_anew()
        assert main([*words]) == 0
        return sorted(one.key for one in s3.seen.settled() if one.verb == "GET" and one.key.endswith(".tar"))

    assert read("split", f"{store}/a/", "-o", f"{store}/v.json") == []
    assert read("shuffle", f"{store}/a/", "-o", f"{store}/s.json") == []
    assert (
        read(
            "merge",
            "--join",
            "left",
            f"{store}/a/",
            f"{store}/a/",
            "--on-conflict",
            "left",
            "-o",
            f"{store}/j.json",
        )
        == []
    )
    assert read("ls", f"{store}/v.json") == []
    heads = sorted(request.key for request in s3.seen if request.verb == "HEAD")
    assert heads == [f"a/x-{number:06d}.tar" for number in range(3)]


@pytest.mark.exhaustive
def test_a_view_on_a_store_reads_the_indexes_at_the_same_time(
    s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of shards and of a view of them. Each index is read once for all parts."""
    store = f"s3://{s3.bucket('at-once')}"
    with ShardWriter(f"{store}/a/x-%06d.tar", max_count=20) as writer:
        for number in range(80):
            writer.write(f"k{number}", {"jpg": b"0"})
    together, read, index_of = threading.Barrier(4, timeout=30), list[str](), writing.find_index

    def waiting(address: str, *rest: Any, **options: Any) -> Any:
        read.append(address)
        together.wait()
        return index_of(address, *rest, **options)

    monkeypatch.setattr(writing, "find_index", waiting)
    for given, output in (("a/", "v.json"), ("v.json", "w.json"), ("w.json", "{part}.json")):
        read.clear()
        parts = ["--ratio", "one=0.5,two=0.5"] if "part" in output else []
        assert main(["split", f"{store}/{given}", *parts, "-o", f"{store}/{output}"]) == 0
        assert sorted(read) == [f"{store}/a/x-{number:06d}.tar" for number in range(4)]


@pytest.mark.exhaustive
def test_workers_trust_the_bases_that_the_command_trusts(
    s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    store, other = (f"s3://{s3.bucket(name)}" for name in ("view", "bases"))
    for number in range(2):
        with ShardWriter(f"{other}/x-{number:06d}.tar") as writer:
            writer.write(f"k{number}", {"txt": b"x"})
    reorder(Request([f"{other}/x-{{000000..000001}}.tar"], f"{store}/v.json", jobs=1), InputOrder("split"))
    command = ["shuffle", f"{store}/v.json", "-o", "o/%06d.tar", "-j2", "--shards", "2"]
    assert main(command) == 4
    assert "--trust-addresses" in capsys.readouterr().err
    assert main([*command, "--trust-addresses"]) == 0
    data = WebDataset(f"{store}/v.json", trust_addresses=True)
    sent = pickle.dumps(data)
    views.forget()
    TRUSTED.clear()
    assert [one["txt"] for one in pickle.loads(sent)] == [b"x", b"x"]
    TRUSTED.clear()


def _plain(sample: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in sample.items() if name != "__url__"}


def test_a_view_may_be_copied_with_its_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    base_set(
        tmp_path / "here" / "a", random.Random(2), [f"k{number}" for number in range(20)], ["jpg", "cls"]
    )
    request = Request(["here/a/"], "here/v.json", jobs=1)
    reorder(request, ShuffledOrder(2))
    with open_source("here/v.json/v-000000.tar") as source:
        before = b"".join(source.pieces())
    Path("here").rename("there")
    with open_source("there/v.json/v-000000.tar") as source:
        assert b"".join(source.pieces()) == before
    assert str(tmp_path) not in Path("there/v.json").read_text()


def test_a_base_that_has_changed_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def write(*keys: str) -> None:
        Path("a").mkdir(exist_ok=True)
        with ShardWriter("a/x-%06d.tar", force=True) as writer:
            for key in keys:
                writer.write(key, {"txt": b"x"})

    def look() -> list[str]:
        views.forget()
        with ShardReader("v.json/x-000000.tar") as shard:
            return list(shard.keys())

    write("a", "b")
    reorder(Request(["a/"], "v.json", jobs=1), InputOrder("split"))
    assert look() == ["a", "b"]
    Path("a/x-000000.tar").touch()
    assert look() == ["a", "b"]
    for keys in (("a", "b", "c"), ("a", "c")):
        write(*keys)
        with pytest.raises(DataError, match=r"was changed after v\.json was made") as error:
            look()
        assert error.value.shard == "a/x-000000.tar"
        assert "make the view again" in str(error.value.hint)
    shutil.rmtree("a")
    with pytest.raises(InputError, match=r"a/x-000000\.tar"):
        look()


@pytest.mark.parametrize("shuffled", [False, True])
def test_proofs_of_absence(shuffled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    base_set(tmp_path / "a", random.Random(3), [f"k{number}" for number in range(40)], ["jpg", "cls"])
    Path("out.txt").write_text("k3\nk17\nk25\n")
    order = ShuffledOrder(1) if shuffled else InputOrder("split")
    selection = Selection.parse(not_keys_from="out.txt")
    request = Request(["a/"], "v.json", selection=selection, rekey="z-{key}" if shuffled else None, jobs=1)
    reorder(request, order)
    listed = [str(path) for path in sorted(Path("a").glob("*.tar"))]
    for given, code, says in (
        (["v.json"], 0, "no key of the list"),
        (listed, 1, "3 keys of the list are there"),
    ):
        assert main(["verify", *given, "--absent", "out.txt", "--report", "proof.json"]) == code
        words = [sys.executable, str(CHECK_PROOF), "proof.json", "out.txt", *given]
        ran = subprocess.run(words, capture_output=True, text=True, check=False)
        assert (ran.returncode, says in ran.stdout + ran.stderr) == (code, True), ran
    Path("out.txt").write_text("k4\n")
    ran = subprocess.run(words, capture_output=True, text=True, check=False)
    assert "another list" in ran.stderr
    assert len(CHECK_PROOF.read_text().splitlines()) <= 90


def test_another_payload_is_found_by_checksums(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with ShardWriter("a/x-%06d.tar") as writer:
        for number in range(9):
            writer.write(f"k{number}", {"txt": b"%d" % number})
    reorder(Request(["a/"], "v.json", jobs=1), ShuffledOrder(1))
    assert main(["verify", "v.json", "--checksums"]) == 0
    assert main(["index", "v.json"]) == 2
    data = bytearray(Path("a/x-000000.tar").read_bytes())
    data[512] = ord("x")
    Path("a/x-000000.tar").write_bytes(data)
    assert main(["verify", "v.json"]) == 0
    capsys.readouterr()
    assert main(["verify", "v.json", "--checksums"]) == 1
    assert "a/x-000000.tar: x-000000.tar was changed" in capsys.readouterr().out


def test_equal_views_have_equal_fingerprints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with ShardWriter("a/x-%06d.tar", max_count=5) as writer:
        for number in range(12):
            writer.write(f"k{number}", {"txt": b"%d" % number, "cls": b"%d" % (number % 2)})

    def fingerprint(inputs: list[str], output: str, order: Order, **options: Any) -> str:
        reorder(Request(inputs, output, selection=Selection.parse(**options), jobs=1), order)
        assert main(["verify", output]) == 0
        return views.opened(output).manifest.fingerprint

    plain = InputOrder("split")
    assert fingerprint(["a/"], "all.json", plain) == read_manifest("a/x-manifest.json").fingerprint
    without = fingerprint(["a/"], "one.json", plain, keys=["k?"])
    fingerprint(["a/"], "some.json", plain, keys=["k*"])
    assert fingerprint(["some.json"], "two.json", plain, where="cls >= 0", slice=":10") == without
    shuffled = fingerprint(["one.json"], "three.json", ShuffledOrder(1))
    assert shuffled == fingerprint(["two.json"], "four.json", ShuffledOrder(1))
    assert shuffled not in (without, fingerprint(["two.json"], "five.json", ShuffledOrder(2)))
    assert fingerprint(["one.json"], "six.json", plain, drop="cls") != without


def test_crafted_rows_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    base_set(tmp_path / "a", random.Random(4), [f"k{number}" for number in range(30)], ["jpg"])
    reorder(Request(["a/"], "v.json", rekey="n{n}", jobs=1), ShuffledOrder(1))
    rows, text = bytearray(Path("v.rows").read_bytes()), json.loads(Path("v.json").read_text())
    [shard] = text["view"]["shards"]
    for name, at in (("rows", 0), ("rows", 4 * 30), ("keys", 0)):
        start, length, _ = shard[name]
        data = rows[start : start + length]
        data[at : at + 4] = b"\xfe\xff\xff\xff"
        crafted = {**shard, name: [start, length, xxh3_64_hexdigest(bytes(data))]}
        Path("v.rows").write_bytes(rows[:start] + data + rows[start + length :])
        Path("v.json").write_text(json.dumps({**text, "view": {**text["view"], "shards": [crafted]}}))
        views.forget()
        with pytest.raises(DataError, match="does not belong to"):
            ShardReader("v.json/v-000000.tar")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("merge --join left a b", "cat left.json"),  # b lacks samples in the middle
        ("split a --rename image=jpg --drop cls", "split all.json --rename image=jpg --drop cls"),
        ("merge b a --on-duplicate skip", "merge b all.json --on-duplicate skip"),
    ],
)
def test_steps_between_do_not_change_a_fingerprint(
    one: str, other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, keys in (("a", range(20)), ("b", range(8, 14))):
        with ShardWriter(f"{name}/x-%06d.tar") as writer:
            for key in keys:
                writer.write(f"k{key:02}", {"txt" if name == "b" else "jpg": b"x"})
    found = []
    for line, output in (("cat a", "all"), ("merge --join left a b", "left"), (one, "1"), (other, "2")):
        assert main([*line.split(), "-o", f"{output}.json", "--allow-empty"]) == 0
        found.append(json.loads(Path(f"{output}.json").read_text())["wdscli"]["fingerprint"])
    assert found[2] == found[3] != found[0]
