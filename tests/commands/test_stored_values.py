"""Commands that take values from indexes give the results that they give without them, and read no payload."""

import json
import random
import re
import shutil
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from indexing import index
from tiers import examples

from tests.support.shard_cases import foreign_tar, wds
from wdscli.selection.reading import MemberReader
from wdscli.shards import ShardWriter
from wdscli.storage import open_source

VALUES = "json.tokens,json.w,json.w / json.h,len(txt),size.txt,json.deep[0]['a b']"


def document(number, rng):
    found = {
        "tokens": rng.randrange(50),
        "w": rng.random() * 100,
        "h": rng.random() + 1,
        "deep": [{"a b": number % 7}],
    }
    for name in list(found):
        if rng.random() < 0.15:
            del found[name]
    return found


def make(folder, documents, **options):
    with ShardWriter(str(folder / "a-%02d.tar"), max_count=7, **options) as writer:
        for number, one in enumerate(documents):
            fields = {"txt": b"x" * (number % 11)}
            if one is not None:
                fields["json"] = json.dumps(one).encode()
            writer.write(f"k{number:03d}", fields)


@pytest.fixture
def pair(tmp_path):
    """The same set twice, with values in its indexes and without."""
    rng = random.Random(1)
    documents = [None if number % 9 == 4 else document(number, rng) for number in range(40)]
    for name in ("plain", "stored"):
        (tmp_path / name).mkdir()
        make(tmp_path / name, documents)
    index([str(tmp_path / "stored")], values=VALUES)
    return str(tmp_path / "plain"), str(tmp_path / "stored")


@pytest.fixture
def reads(monkeypatch):
    """The fields whose payloads an expression or a sort read."""
    found = []
    original = MemberReader.__call__

    def of(self, row, field):
        found.append(field)
        return original(self, row, field)

    monkeypatch.setattr(MemberReader, "__call__", of)
    return found


WHERE = [
    "json.tokens > 20",
    "json['tokens'] > 20 and json.w < 50",
    "json.w / json.h > 30",
    "not (json.tokens > 20)",
    "json.tokens > 20 or len(txt) == 3",
    "len( txt ) in [1, 2]",
    "size.txt == 3",
    'json.deep[0]["a b"] == 3',
    "json.tokens % 3 == 0",
    "str(json.w)[0] == '1'",
    "hash(json.tokens) % 2 == 0",
    "json.tokens if len(txt) > 4 else json.w",
]


@pytest.mark.parametrize("text", WHERE)
def test_where(pair, reads, text):
    plain, stored = pair
    wanted = wds("ls", plain, "--where", text)
    assert wanted.code == 0
    was = len(reads)
    found = wds("ls", stored, "--where", text)
    assert (found.out, found.code) == (wanted.out, 0)
    assert len(reads) == was
    assert wanted.out


@pytest.mark.parametrize(
    "text", ["json.h > 1.5", "json.tokens > 5 and json.h < 1.9", "get(json, 'tokens', 9) == 9"]
)
def test_where_that_needs_payloads_too(pair, reads, text):
    wanted, found = (wds("ls", one, "--where", text).out for one in pair)
    assert found == wanted != b""
    assert b"json" in reads


@pytest.mark.parametrize("command", ["cat", "shuffle", "split", "sort --by key:r", "merge"])
def test_where_of_commands_that_write(pair, reads, tmp_path, command):
    name, *options = command.split()
    got = []
    for one in pair:
        out = tmp_path / f"{Path(one).name}.tar"
        if name == "split":
            options = ["--shards", "1"]
        assert wds(name, one, *options, "--where", "json.tokens > 20", "-o", str(out)).code == 0
        got.append(out.read_bytes())
        was = len(reads)
    assert got[0] == got[1]
    assert len(reads) == was


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "by", ["json.tokens", "json.w:r", "json.tokens:V", "json.tokens:n", "json.deep[0]['a b']"]
)
def test_sort(pair, reads, tmp_path, by):
    got = []
    for one in pair:
        reads.clear()
        out = tmp_path / f"{Path(one).name}.tar"
        ran = wds("sort", one, "--by", by, "-o", str(out))
        got.append((out.read_bytes() if out.exists() else None, ran.code))
    assert got[0] == got[1]
    assert not reads
    assert got[0][1] == 0 or by.endswith(":n")


@pytest.mark.parametrize("field", ["json.tokens", "len(txt)", "json.w / json.h", "json.deep[0]['a b']"])
def test_count(pair, reads, field):
    plain, stored = pair
    wanted = wds("ls", plain, "--count", field).out
    reads.clear()
    assert wds("ls", stored, "--count", field).out == wanted
    assert not reads


@pytest.mark.parametrize("between", [[], [("d/._other.jpg", b"x" * 700)]])
@pytest.mark.parametrize("tar", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_headers_of_several_blocks_become_canonical(tmp_path, monkeypatch, tar, between):
    """Long names and fractional times, also after a sample's first member and after members of no sample."""
    monkeypatch.chdir(tmp_path)
    members = [
        one
        for number in range(6)
        for key in [f"{'long' * 30 * (number % 2)}k{number}"]
        for one in [(f"{key}.json", b'{"w": %d}' % number), *between, (f"{key}.txt", b"t" * number)]
    ]
    for name in ("plain", "stored"):
        Path(name).mkdir()
        Path(name, "a.tar").write_bytes(foreign_tar(members, format=tar, mtime=1.5, uname="ann"))
    index(["stored"], values="json.w")
    line = ("--where", "json.w > 1", "-o", "-")
    assert wds("cat", "stored", *line).out == wds("cat", "plain", *line).out


def test_values_of_a_joined_view(tmp_path, monkeypatch):
    """The field of a value comes from one set or from the other."""
    monkeypatch.chdir(tmp_path)
    for name, own in (("txt", "k1"), ("seg", "k2")):
        with ShardWriter(f"{name}/s-%d.tar") as writer:
            for key in ("k1", "k2"):
                writer.write(key, {"json": b'{"w": 5}'} if key == own else {name: b"x"})
        index([name], values="json.w,len(txt)" if name == "txt" else "json.w", force=True)
    assert wds("merge", "--join", "left", "txt", "seg", "-o", "v.json").code == 0
    assert wds("ls", "v.json", "--where", "json.w == 5").out == b"k1\tjson,seg\t9\nk2\ttxt,json\t9\n"
    with open_source("v.json/s-0.tar") as source:
        assert source.layout.index.numbers.keys() == {"len(txt)"}


def test_a_name_that_no_sample_has(pair):
    for one in pair:
        ran = wds("ls", one, "--where", "json.tokns > 3")
        assert "no sample has json.tokns for --where" in ran.err
        assert wds("ls", one, "--where", "json.tokens > 1000").err.count("no sample has") == 0


def test_stale_values_are_not_believed(pair):
    _, stored = pair
    pattern = re.compile(rb'"tokens": ([0-9]{2})')
    shard = next(path for path in sorted(Path(stored).glob("*.tar")) if pattern.search(path.read_bytes()))
    data = shard.read_bytes()
    at = pattern.search(data).start(1)
    before = wds("ls", stored, "--where", "json.tokens >= 90").out
    shard.write_bytes(data[:at] + b"99" + data[at + 2 :])
    after = wds("ls", stored, "--where", "json.tokens >= 90").out
    assert before == b""
    assert after.count(b"\n") == 1


PLACES = ("json.a", "json.b", "json['c d']", "len(txt)", "size.txt", "json.l[0]", "json.l[-1]")
FORMS = (
    "{} > 1",
    "{} == 2",
    "{} is None",
    "not {}",
    "str({}) == '2'",
    "{} + 1 > 1 or len(txt) > 2",
    "{} in [0, 2.0]",
)
NUMBERS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 5),
    st.sampled_from([0.5, -0.0, 2.0, 1e300, 1 << 63, "text", "7", [1]]),
)
DOCUMENT = st.fixed_dictionaries(
    {},
    optional={
        "a": NUMBERS,
        "b": st.integers(0, 3),
        "c d": st.floats(0, 2),
        "l": st.lists(NUMBERS, max_size=2),
    },
)


def results(folder, place, form):
    """What a few commands give for a place."""
    listed, counted = wds("ls", folder, "--where", form.format(place)), wds("ls", folder, "--count", place)
    found = [(listed.code, listed.out), (counted.code, counted.out)]
    if "(" not in place and not place.startswith("size"):
        out = folder / "sorted.tgz"
        ran = wds("sort", folder, "--by", place, "-o", out, "--force", "--no-index")
        found.append((ran.code, out.read_bytes() if ran.code == 0 else None))
    return found


@settings(max_examples=examples(40), deadline=None)
@given(
    st.lists(st.none() | DOCUMENT, min_size=1, max_size=9),
    st.lists(st.sampled_from(PLACES), min_size=1, max_size=3, unique=True),
    st.sampled_from(PLACES),
    st.sampled_from(FORMS),
)
def test_any_values_change_no_result(tmp_path_factory, documents, values, place, form):
    folder = tmp_path_factory.mktemp("set")
    make(folder, documents)
    before = results(folder, place, form)
    for one in values:
        wds("index", folder, "--values", one)
    assert results(folder, place, form) == before
    shutil.rmtree(folder)
