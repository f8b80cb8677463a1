"""One language of places and expressions: each place, in each option and argument, stored in an index or not."""

from __future__ import annotations

import csv
import gzip
import json
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgpack
import pytest
from shard_cases import content, keys_of, members_of, wds
from storage_servers import S3, web_server

from wdscli.errors import UsageError
from wdscli.loader import WebDataset
from wdscli.selection.places import Place, parse_place
from wdscli.shards import ShardWriter
from wdscli.shards.reading import values_of

HAS_CBOR = find_spec("cbor2") is not None
NUMBERS = [3, 1, 2, 1]
PLACES: dict[str, list[Any]] = {
    "info.json.w": NUMBERS,
    "info.json.boxes[0].x": NUMBERS,
    "info.json['a b']": NUMBERS,
    "label.cls": NUMBERS,
    "score": NUMBERS,
    "tokens.json.gz.n": NUMBERS,
    "meta.msgpack.w": NUMBERS,
    **({"a.cbor.w": NUMBERS} if HAS_CBOR else {}),
    "json.w": NUMBERS,
    "size.seg.bin": NUMBERS,
    "caption": ["c3", "c1", "c2", "c1"],
    "info.json.name": ["c3", "c1", "c2", "c1"],
    "text.gz": ["c3", "c1", "c2", "c1"],
    "my-field": ["c3", "c1", "c2", "c1"],
}
EXPRESSIONS: dict[str, list[Any]] = {
    "info.json.w + label.cls": [6, 2, 4, 2],
    "len(caption) + meta.msgpack.w": [7, 5, 6, 5],
    "len(info.json.boxes) * score": NUMBERS,
    "sum(box.x for box in info.json.boxes)": NUMBERS,
    "field('my-field')": ["c3", "c1", "c2", "c1"],
}
ALL = {**PLACES, **EXPRESSIONS}


def sample_fields(number: int) -> dict[str, bytes]:
    document = {"w": number, "a b": number, "boxes": [{"x": number}], "name": f"c{number}"}
    return {
        "info.json": json.dumps(document).encode(),
        "label.cls": b"%d\n" % number,
        "score": b"%d" % number,
        "tokens.json.gz": gzip.compress(json.dumps({"n": number}).encode()),
        "meta.msgpack": msgpack.packb(document),
        "a.cbor": b"\xa1aw" + bytes([number]),  # {"w": number}
        "json": json.dumps(document).encode(),
        "seg.bin": bytes(number),
        "caption": b" c%d\n" % number,
        "text.gz": gzip.compress(b"c%d" % number),
        "my-field": b"c%d" % number,
    }


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same set without stored values, and with the values of all places that are numbers."""
    folder = tmp_path_factory.mktemp("places")
    with ShardWriter(f"{folder}/plain/a-%02d.tar", max_count=2) as writer:
        for place, number in enumerate(NUMBERS):
            writer.write(f"k{place}", sample_fields(number))
    shutil.copytree(folder / "plain", folder / "stored")
    numeric = [name for name, values in ALL.items() if isinstance(values[0], int)]
    for name in numeric:
        ran = wds("index", folder / "stored", "--values", name)
        assert ran.code == 0, ran.err
    return {"plain": folder / "plain", "stored": folder / "stored"}


@pytest.fixture(params=["plain", "stored"])
def folder(request: pytest.FixtureRequest, sets: dict[str, Path]) -> Path:
    return sets[request.param]


def good(*args: object) -> Any:
    ran = wds(*args)
    assert ran.code == 0, ran.err
    assert "no sample has" not in ran.err
    return ran


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ALL)
class TestEverywhere:
    def test_count(self, folder: Path, name: str) -> None:
        counted = {
            row["value"]: row["count"] for row in good("ls", folder, "--count", name, "--json").objects
        }
        assert counted == {value: ALL[name].count(value) for value in ALL[name]}

    def test_where(self, folder: Path, name: str) -> None:
        text = "field('my-field')" if name == "my-field" else name
        out = good("ls", folder, "--where", f"{text} == {ALL[name][1]!r}").out
        assert [line.split(b"\t")[0] for line in out.splitlines()] == [b"k1", b"k3"]

    def test_where_of_the_loader(self, folder: Path, name: str) -> None:
        text = "field('my-field')" if name == "my-field" else name
        dataset = WebDataset(str(folder), where=f"{text} == {ALL[name][1]!r}")
        assert [sample["__key__"] for sample in dataset] == ["k1", "k3"]

    def test_sort(self, folder: Path, name: str, tmp_path: Path) -> None:
        good("sort", folder, "--by", name, "-o", tmp_path / "o.tar")
        assert keys_of(tmp_path / "o.tar") == ["k1", "k3", "k2", "k0"]

    def test_split(self, folder: Path, name: str, tmp_path: Path) -> None:
        good("split", folder, "--by", name, "-o", tmp_path / "{part}.tar")
        assert keys_of(tmp_path / f"{ALL[name][1]}.tar") == ["k1", "k3"]

    def test_dedup(self, folder: Path, name: str, tmp_path: Path) -> None:
        for command in ("merge", "cat"):
            good(command, folder, "--dedup", name, "-o", tmp_path / f"{command}.tar")
            assert keys_of(tmp_path / f"{command}.tar") == ["k0", "k1", "k2"]

    def test_rekey(self, folder: Path, name: str, tmp_path: Path) -> None:
        wanted = [f"{value}-{number}" for number, value in enumerate(ALL[name])]
        for command in ("split", "cat"):
            good(command, folder, "--rekey", f"{{{name}}}-{{n}}", "-o", tmp_path / f"{command}.tar")
            assert keys_of(tmp_path / f"{command}.tar") == wanted

    def test_keys_from(self, folder: Path, name: str, tmp_path: Path) -> None:
        (tmp_path / "list").write_text(f"{ALL[name][1]}\nother\n")
        for option, keys in (("--keys-from", ["k1", "k3"]), ("--not-keys-from", ["k0", "k2"])):
            good("split", folder, option, tmp_path / "list", "--on", name, "-o", tmp_path / f"{option}.tar")
            assert keys_of(tmp_path / f"{option}.tar") == keys

    def test_keys_from_of_the_loader(self, folder: Path, name: str, tmp_path: Path) -> None:
        (tmp_path / "list").write_text(f"{ALL[name][1]}\nother\n")
        dataset = WebDataset(str(folder), keys_from=(str(tmp_path / "list"), name))
        assert [sample["__key__"] for sample in dataset] == ["k1", "k3"]

    def test_keys_from_a_set(self, folder: Path, name: str, tmp_path: Path) -> None:
        good("split", folder, "--keys", "k3", "-o", tmp_path / "val" / "v.tar")
        for source in (tmp_path / "val", tmp_path / "val" / "v-manifest.json", tmp_path / "val" / "v.tar"):
            out = good("ls", folder, "--not-keys-from", source, "--on", name).out
            assert [line.split(b"\t")[0] for line in out.splitlines()] == [b"k0", b"k2"]

    def test_join(self, folder: Path, name: str, tmp_path: Path) -> None:
        good("split", folder, "--keys", "k3", "-o", tmp_path / "b.tar")
        how = ["--join", "inner", "--on-conflict", "left", "--on", name]
        good("merge", folder, tmp_path / "b.tar", *how, "-o", tmp_path / "o.tar")
        assert keys_of(tmp_path / "o.tar") == ["k1", "k3"]

    def test_diff(self, folder: Path, name: str, tmp_path: Path) -> None:
        good("cat", folder, "--keys", "k[012]", "-o", tmp_path / "a.tar")
        good("shuffle", tmp_path / "a.tar", "--rekey", "x{n}", "-o", tmp_path / "b.tar")
        assert good("diff", tmp_path / "a.tar", tmp_path / "b.tar", "--on", name, "--ignore-order").out == b""
        good("cat", folder, "--keys", "k1", "-o", tmp_path / "c.tar")
        ran = wds("diff", tmp_path / "a.tar", tmp_path / "c.tar", "--on", name)
        assert [row.split("\t")[:2] for row in ran.out.decode().splitlines()] == [
            ["-", str(ALL[name][place])] for place in (0, 2)
        ]

    def test_new_fields(self, folder: Path, name: str, tmp_path: Path) -> None:
        for command in (["split"], ["map"], ["cat"], ["sort", "--by", "key"], ["shuffle"]):
            good(*command, folder, "--column", f"new.txt={name}", "-o", tmp_path / f"{command[0]}.tar")
            written = dict(members_of(tmp_path / f"{command[0]}.tar"))
            texts = [written[f"k{number}.new.txt"].decode().strip() for number in range(len(NUMBERS))]
            assert texts == [str(value) for value in ALL[name]]

    def test_column(self, folder: Path, name: str) -> None:
        out = good("ls", folder, "--to", "csv", "--column", name).out.decode()
        cells = [row[name].strip() for row in csv.DictReader(out.splitlines())]
        assert cells == [str(value) for value in ALL[name]]


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", [name for name, values in ALL.items() if isinstance(values[0], int)])
class TestNumbers:
    def test_values_of_the_loader(self, folder: Path, name: str) -> None:
        shards = sorted(map(str, folder.glob("*.tar")))
        assert values_of(shards, name, warn=lambda text: None).tolist() == ALL[name]

    def test_buckets(self, folder: Path, name: str) -> None:
        middle = sorted(ALL[name])[1] + 0.5
        dataset = WebDataset(str(folder), shuffle=None).batched(4, bucket=name, buckets=[middle])
        batches = [batch["__key__"] for batch in dataset]
        assert sorted(map(sorted, batches)) == [["k0", "k2"], ["k1", "k3"]]

    def test_budgets(self, folder: Path, name: str) -> None:
        dataset = WebDataset(str(folder), shuffle=None).batched(budget=100, length=name)
        assert sorted(key for batch in dataset for key in batch["__key__"]) == ["k0", "k1", "k2", "k3"]

    def test_stored(self, sets: dict[str, Path], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """No payload is read for a stored value."""
        from wdscli.selection.reading import MemberReader

        monkeypatch.setattr(MemberReader, "payload", lambda *_: pytest.fail("a payload was read"))
        if name in ("label.cls", "score"):
            return  # a sort compares the payload itself
        good("ls", sets["stored"], "--where", f"{name} == 1")
        good("ls", sets["stored"], "--count", name)


@pytest.fixture(scope="module")
def stores(sets: dict[str, Path], s3: S3) -> Iterator[dict[str, str]]:
    """The addresses of both sets on a web server and in a bucket."""
    bucket = s3.bucket("places")
    with web_server("ranges") as web:
        for kind, folder in sets.items():
            for path, data in content(folder).items():
                web.files[f"{kind}/{path}"] = data
                s3.client.put_object(Bucket=bucket, Key=f"{kind}/{path}", Body=data)
        yield {
            f"{store}-{kind}": root + f"{kind}/a-{{00..01}}.tar"
            for kind in sets
            for store, root in (("web", web.url("")), ("s3", f"s3://{bucket}/"))
        }


SMALL = ["info.json.w", "len(caption) + meta.msgpack.w", "text.gz"]


@pytest.mark.parametrize(
    "name", [name if name in SMALL else pytest.param(name, marks=pytest.mark.exhaustive) for name in ALL]
)
@pytest.mark.parametrize("kind", ["web-plain", "web-stored", "s3-plain", "s3-stored"])
def test_in_stores(stores: dict[str, str], kind: str, name: str, tmp_path: Path) -> None:
    """A place has the same value in a store: for commands, and for arguments of the loader."""
    url, values = stores[kind], ALL[name]
    rows = good("ls", url, "--count", name, "--json").objects
    assert {row["value"]: row["count"] for row in rows} == {value: values.count(value) for value in values}
    where = f"{name if name != 'my-field' else 'field(name)'.replace('name', repr(name))} == {values[1]!r}"
    good("split", url, "--where", where, "-o", tmp_path / "where.tar", "-j", 1)
    assert keys_of(tmp_path / "where.tar") == ["k1", "k3"]
    good("sort", url, "--by", name, "-o", tmp_path / "sort.tar", "-j", 1)
    assert keys_of(tmp_path / "sort.tar") == ["k1", "k3", "k2", "k0"]
    assert [sample["__key__"] for sample in WebDataset(url, where=where)] == ["k1", "k3"]
    if isinstance(values[0], int):
        buckets = [sorted(values)[1] + 0.5]
        dataset = WebDataset(url, shuffle=None).batched(4, bucket=name, buckets=buckets)
        assert sorted(sorted(batch["__key__"]) for batch in dataset) == [["k0", "k2"], ["k1", "k3"]]


DOCUMENTS = [
    {"annotations": [{"category": "person", "score": 0.9}, {"category": "dog"}], "tags": ["a"]},
    {"annotations": [{"category": "dog", "score": 0.2}, {"category": "dog", "score": None}]},
    {"annotations": []},
    {"other": 1},
]


class TestLists:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        with ShardWriter(f"{tmp_path}/a.tar") as writer:
            for number, document in enumerate(DOCUMENTS):
                writer.write(f"k{number}", {"json": json.dumps(document).encode()})
        return tmp_path

    @pytest.mark.parametrize(
        ("expression", "keys"),
        [
            ("any(a.category == 'person' for a in json.annotations)", "k0"),
            ("any(a.score > 0.5 for a in json.annotations)", "k0"),
            ("all(a.score > 0.1 for a in json.annotations)", "k2"),
            ("sum(1 for a in json.annotations if a.category == 'dog') == 2", "k1"),
            ("max(a.score for a in json.annotations) < 0.5", "k1"),
            ("len(json.annotations) == 2", "k0 k1"),
            ("'person' in json.annotations.category", "k0"),
            ("'person' not in json.annotations.category", "k1 k2"),
            ("any(a.category == b for a in json.annotations for b in json.tags)", ""),
            ("any(len(name) > 9 for name in json)", "k0 k1 k2"),
            ("json.annotations[0].category == 'dog'", "k1"),
        ],
    )
    def test_where(self, folder: Path, expression: str, keys: str) -> None:
        ran = wds("ls", folder, "--where", expression)
        assert ran.code == 0, ran.err
        assert [line.split(b"\t")[0].decode() for line in ran.out.splitlines()] == keys.split()

    def test_count_of_all_values(self, folder: Path) -> None:
        ran = wds("ls", folder, "--count", "json.annotations.category")
        assert [line.split("\t") for line in ran.out.decode().splitlines()[1:]] == [
            ["dog", "", "3", "50.0%"],
            ["person", "", "1", "16.7%"],
            ["", "missing", "2", "33.3%"],
        ]
        assert ran.err == ""
        wrong = wds("ls", folder, "--count", "json.annotations.categroy")
        assert "no sample has json.annotations.categroy for --count: did you mean category?" in wrong.err

    def test_numbers_of_lists_are_stored(self, folder: Path) -> None:
        assert wds("index", folder, "--values", "len(json.annotations)").code == 0
        assert values_of([f"{folder}/a.tar"], "len(json.annotations)")[:3].tolist() == [2, 2, 0]

    @pytest.mark.parametrize(
        "expression",
        [
            "[a for a in json.annotations] == []",
            "len(a for a in json.annotations)",
            "any(key for key in json.annotations)",
            "any(a for a, b in json.annotations)",
            "any(any(a for a in a.b) for a in json.annotations)",
            "(a for a in json.annotations)",
        ],
    )
    def test_refused(self, folder: Path, expression: str) -> None:
        ran = wds("ls", folder, "--where", expression)
        assert (ran.code, ran.out) == (2, b"")

    def test_time_is_bounded(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("wdscli.selection.where.MATCH_SECONDS", 0.01)
        with ShardWriter(f"{folder}/b.tar") as writer:
            writer.write("k", {"json": json.dumps(list(range(3000))).encode()})
        ran = wds("ls", folder / "b.tar", "--where", "any(a == 1.5 + b for a in json for b in json)")
        assert ran.code == 2
        assert "the lists of one sample take more than 0.01 seconds" in ran.err


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("json.a.b[0]", (b"json", ("a", "b", 0))),
        ("json.box.0", (b"json", ("box", "0"))),
        ("tokens.json.gz.n", (b"tokens.json.gz", ("n",))),
        ("json.clip-score", (b"json", ("clip-score",))),
        ("seg.png", (b"seg.png", ())),
        (".size", (b"size", ())),
        ("class", (b"class", ())),
        ("size.jpg", None),
        ("json.a-json.b", None),
        ("txt.lower", None),
        ("1.5", None),
        ("not", None),
        ("a b", None),
    ],
)
def test_what_is_one_place(text: str, place: Any) -> None:
    assert parse_place(text) == (place and Place(*place))


def test_several_values_are_no_place() -> None:
    from wdscli.plan.sort import sort_key

    with pytest.raises(UsageError, match="cannot sort by"):
        sort_key("cls, key")
