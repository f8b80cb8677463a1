"""Values that commands and writers store with the shards that they make."""

import io
import json
import struct
import wave

import numpy
import pytest
from tiers import EXHAUSTIVE

from tests.support.shard_cases import wds
from wdscli import loader
from wdscli.errors import DataError, UsageError
from wdscli.selection.values import MISSING
from wdscli.shards import ShardWriter
from wdscli.shards.proof import find_index
from wdscli.storage import open_source


def values(address):
    """The values that commands use."""
    with open_source(str(address)) as source:
        found = find_index(str(address), source)
    return {name: one.tolist() for name, one in found.values.items()}


def png(width, height):
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", width, height) + bytes(9)


def wav(frames, rate=8000):
    out = io.BytesIO()
    with wave.open(out, "wb") as sound:
        sound.setnchannels(2)
        sound.setsampwidth(2)
        sound.setframerate(rate)
        sound.writeframes(bytes(4 * frames))
    return out.getvalue()


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "files"
    made.mkdir()
    for number in range(20):
        (made / f"k{number:02d}.json").write_text(json.dumps({"tokens": number * 3}))
        (made / f"k{number:02d}.txt").write_text("ä" * number)
        (made / f"k{number:02d}.png").write_bytes(png(number + 1, 7))
    (made / "k20.txt").write_text("alone")
    return made


VALUES = "json.tokens,len(txt),width(png)"
WANTED = {
    "json.tokens": [*range(0, 60, 3), MISSING],
    "len(txt)": [*range(20), 5],
    "width(png)": [*range(1, 21), MISSING],
}


def test_create(folder, tmp_path):
    assert wds("create", folder, "-o", tmp_path / "a.tar", "--values", VALUES).code == 0
    assert values(tmp_path / "a.tar") == WANTED
    assert wds("create", folder, "-o", tmp_path / "b.tar").code == 0
    assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()
    assert values(tmp_path / "b.tar") == {}


def test_create_of_a_table(tmp_path):
    (tmp_path / "t.csv").write_text("id,txt\na,one\nb,three\n")
    ran = wds(
        "create", "--from", tmp_path / "t.csv", "--key-column", "id", "--column", "txt=txt", "-o", tmp_path / "a.tar",
        "--values", "len(txt)",
    )  # fmt: skip
    assert ran.code == 0
    assert values(tmp_path / "a.tar") == {"len(txt)": [3, 5]}


@pytest.mark.exhaustive(sample=False)
@pytest.mark.parametrize("jobs", [pytest.param(1, marks=EXHAUSTIVE), 3])
def test_the_index_is_the_same_for_any_number_of_jobs(folder, tmp_path, jobs):
    for name, options in (("x", ["-j1"]), ("y", [f"-j{jobs}"])):
        out = tmp_path / name / "a-%02d.tar"
        assert wds("create", folder, "-o", out, "--max-count", "6", "--values", VALUES, *options).code == 0
        mapped = tmp_path / f"{name}-mapped" / "m-%02d.tar"
        assert (
            wds(
                "map", tmp_path / name, "-o", mapped, "--filter", "txt", "cat", "--values", VALUES, *options
            ).code
            == 0
        )
    files = [path for name in ("x", "x-mapped") for path in (tmp_path / name / ".wds").iterdir()]
    assert len(files) == 8
    for path in files:
        other = tmp_path / path.parts[-3].replace("x", "y", 1) / ".wds" / path.name
        assert path.read_bytes() == other.read_bytes()


def test_index_gives_the_same_bytes_as_the_writer(folder, tmp_path):
    for name in ("x", "y"):
        out = ["-o", tmp_path / name / "a-%02d.tar", "--max-count", "6"]
        assert wds("create", folder, *out, *(["--values", VALUES] if name == "x" else [])).code == 0
    assert wds("index", tmp_path / "y", "--values", VALUES, "--no-manifest").code == 0
    for path in (tmp_path / "x" / ".wds").iterdir():
        assert path.read_bytes() == (tmp_path / "y" / ".wds" / path.name).read_bytes()


def test_map_stores_values_of_the_new_samples(folder, tmp_path):
    wds("create", folder, "-o", tmp_path / "a.tar", "--values", VALUES)
    ran = wds(
        "map",
        tmp_path / "a.tar",
        "-o",
        tmp_path / "b.tar",
        "--filter",
        "txt",
        "cat; echo",
        "--values",
        "len(txt)",
    )
    assert ran.code == 0
    assert values(tmp_path / "b.tar") == {"len(txt)": [*range(1, 21), 6]}


def test_other_values_are_another_run(folder, tmp_path):
    command = ["create", folder, "-o", tmp_path / "a.tar", "--if-changed"]
    assert wds(*command, "--values", "len(txt)").code == 0
    assert wds(*command, "--values", VALUES).code == 0
    assert values(tmp_path / "a.tar") == WANTED


def test_a_plan_has_the_values(folder, tmp_path):
    assert (
        wds(
            "create", folder, "-o", tmp_path / "a.tar", "--plan", tmp_path / "p.plan", "--values", VALUES
        ).code
        == 0
    )
    assert wds("run", tmp_path / "p.plan").code == 0
    assert values(tmp_path / "a.tar") == WANTED


def test_a_damaged_payload_ends_the_run(folder, tmp_path):
    (folder / "k03.json").write_text("{")
    ran = wds("create", folder, "-o", tmp_path / "a.tar", "--values", VALUES)
    assert ran.code == 3
    assert "k03.json" in ran.err
    assert not (tmp_path / "a.tar").exists()


@pytest.mark.parametrize("command", ["create", "map", "index"])
def test_what_is_no_value_is_refused_before_work(folder, tmp_path, command):
    wds("create", folder, "-o", tmp_path / "a.tar")
    source = folder if command == "create" else tmp_path / "a.tar"
    more = {
        "create": ["-o", tmp_path / "b.tar"],
        "map": ["-o", tmp_path / "b.tar", "--filter", "txt", "cat"],
        "index": [],
    }
    ran = wds(command, source, *more[command], "--values", "len(key)")
    assert ran.code == 2
    assert "--values: len(key) is not a value of payloads" in ran.err


def test_shard_writer(tmp_path):
    with ShardWriter(str(tmp_path / "a.tar"), values=["json.a", "seconds(wav)"]) as writer:
        writer.write("k0", {"json": b'{"a": 1}', "wav": wav(4000)})
        with pytest.raises(DataError, match="wav cannot be decoded"):
            writer.write("k1", {"json": b'{"a": 2}', "wav": b"RIFF"})
        writer.write("k2", {"json": b'{"a": 3}', "wav": bytearray(wav(800))})
    assert values(tmp_path / "a.tar") == {"json.a": [1, 3], "seconds(wav)": [0.5, 0.1]}


def test_writers_of_the_loader(tmp_path):
    sample = {"__key__": "k0", "json": {"a": 5}, "npy": numpy.zeros((3, 4))}
    with loader.TarWriter(str(tmp_path / "a.tar"), values="shape(npy)[0],json.a") as writer:
        writer.write(sample)
    with loader.ShardWriter(str(tmp_path / "b-%d.tar"), values="shape(npy)[-1]") as writer:
        writer.write(sample)
    assert values(tmp_path / "a.tar") == {"json.a": [5], "shape(npy)[0]": [3]}
    assert values(tmp_path / "b-0.tar") == {"shape(npy)[-1]": [4]}
    with pytest.raises(UsageError, match="values"):
        loader.TarWriter(str(tmp_path / "c.tar"), values="key")


REORDER = {
    "cat": (),
    "shuffle": ("--seed", "3", "--max-count", "4"),
    "sort": ("--by", "json.tokens:r", "--max-count", "5"),
    "split": ("--shards", "3"),
    "merge": ("--max-count", "9"),
}


@pytest.fixture
def stored(folder, tmp_path):
    """A set with values in its indexes."""
    out = tmp_path / "set" / "a-%02d.tar"
    assert wds("create", folder, "-o", out, "--max-count", "6", "--values", VALUES).code == 0
    return tmp_path / "set"


def indexes(folder):
    return {path.name: path.read_bytes() for path in sorted((folder / ".wds").iterdir())}


@pytest.mark.parametrize("command", REORDER)
@pytest.mark.parametrize("more", [(), pytest.param(("-j2",), marks=EXHAUSTIVE), ("--strategy", "spill")])
def test_reordering_carries_values(stored, tmp_path, command, more):
    if command == "cat" and more:
        pytest.skip("cat has no such option")
    name = "b.tar" if command == "cat" else "b-%02d.tar"
    assert wds(command, stored, "-o", tmp_path / "out" / name, *REORDER[command], *more).code == 0
    carried = indexes(tmp_path / "out")
    assert b"value:json.tokens" in b"".join(carried.values())
    assert wds("index", tmp_path / "out", "--force", "--values", VALUES).code == 0
    assert indexes(tmp_path / "out") == carried


def test_reordering_carries_only_what_all_inputs_have(stored, tmp_path, folder):
    assert wds("create", folder, "-o", tmp_path / "c.tar", "--values", "len(txt)").code == 0
    ran = wds("shuffle", stored, tmp_path / "c.tar", "-o", tmp_path / "d.tar", "--on-duplicate", "skip")
    assert ran.code == 0
    assert list(values(tmp_path / "d.tar")) == ["len(txt)"]
    assert wds("create", folder, "-o", tmp_path / "e.tar").code == 0
    assert (
        wds("shuffle", stored, tmp_path / "e.tar", "-o", tmp_path / "f.tar", "--on-duplicate", "skip").code
        == 0
    )
    assert values(tmp_path / "f.tar") == {}


def test_a_selection_carries_the_values_of_its_samples(stored, tmp_path):
    assert (
        wds("shuffle", stored, "-o", tmp_path / "d.tar", "--where", "json.tokens > 30", "--drop", "txt").code
        == 0
    )
    assert sorted(values(tmp_path / "d.tar")["json.tokens"]) == [*range(33, 60, 3)]
    assert list(values(tmp_path / "d.tar")) == ["json.tokens", "width(png)"]
    assert wds("split", stored, "-o", tmp_path / "e.tar", "--rename", "json=txt", "--drop", "png").code in (
        0,
        3,
    )
    assert wds("split", stored, "-o", tmp_path / "g.tar", "--rename", "meta=json").code == 0
    assert list(values(tmp_path / "g.tar")) == ["len(txt)", "width(png)"]


def test_stale_values_are_not_carried(stored, tmp_path):
    shard = stored / "a-01.tar"
    shard.write_bytes(shard.read_bytes().replace(b'{"tokens": 18}', b'{"tokens": 99}'))
    assert wds("shuffle", stored, "-o", tmp_path / "d.tar").code == 0
    assert values(tmp_path / "d.tar") == {}


def test_mixed_types_are_not_exact(tmp_path):
    for name, number in (("a", 1), ("b", 0.5), ("c", None)):
        with ShardWriter(str(tmp_path / f"{name}.tar"), values="json.n") as writer:
            writer.write(name, {"json": json.dumps({} if number is None else {"n": number}).encode()})
    assert (
        wds(
            "merge", tmp_path / "a.tar", tmp_path / "b.tar", tmp_path / "c.tar", "-o", tmp_path / "m.tar"
        ).code
        == 0
    )
    with open_source(str(tmp_path / "m.tar")) as source:
        found = find_index(str(tmp_path / "m.tar"), source).numbers["json.n"]
    assert [found.at(row) for row in range(3)] == [1.0, 0.5, None]
    assert not found.exact


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "command",
    [
        ("shuffle", "--seed", "3", "--max-count", "4"),
        ("split", "--shards", "2"),
        ("sort", "--by", "json.tokens:r"),
        ("cat", "--where", "json.tokens > 20"),
        ("split", "--shards", "3", "--drop", "txt"),
    ],
)
def test_a_view_has_the_values_of_its_bases(stored, tmp_path, command):
    assert wds(*command[:1], stored, "-o", tmp_path / "v.json", *command[1:]).code == 0
    made = tmp_path / "real" / "b-%02d.tar"
    assert wds("shuffle", tmp_path / "v.json", "-o", made, "--max-count", "8").code == 0
    for path in (tmp_path / "real").glob("*.tar"):
        found = values(path)
        assert set(found) <= set(WANTED)
        assert found or "--drop" in command
        before = path.parent / ".wds" / f"{path.name}.wdx"
        kept = before.read_bytes()
        if found:
            assert wds("index", path, "--force", "--values", ",".join(found)).code == 0
            assert before.read_bytes() == kept
    listed = [wds("ls", tmp_path / one, "--where", "json.tokens > 30").out for one in ("v.json", "real")]
    assert sorted(line.split()[0] for line in listed[0].splitlines()) == sorted(
        line.split()[0] for line in listed[1].splitlines()
    )
