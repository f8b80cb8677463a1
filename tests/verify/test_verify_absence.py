"""``verify --absent``: no key of a list is overlooked, and no proof says more than was searched."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from shard_cases import Ran, tar_of, wds
from verify_options import checks_of

from wdscli.tar import END_OF_ARCHIVE
from wdscli.verify.set import verify

CHECK_PROOF = Path(__file__).parents[2] / "scripts/examples/check_proof.py"
NAMES = [f"k{number}.txt" for number in range(10)]


@pytest.fixture(autouse=True)
def a_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a").mkdir()
    Path("a/s.tar").write_bytes(tar_of([(name, name.encode()) for name in NAMES]))
    Path("out.txt").write_text("k5\n")


def prove(*given: str, absent: str = "out.txt") -> tuple[Ran, dict[str, object]]:
    ran = wds("verify", *given, "--absent", absent, "--report", "proof.json")
    return ran, json.loads(Path("proof.json").read_text())


def check(*shards: str, absent: str = "out.txt") -> str:
    words = [sys.executable, str(CHECK_PROOF), "proof.json", absent, *shards]
    ran = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (ran.returncode == 0) == ("no key of the list is in these shards" in ran.stdout), ran
    return ran.stdout + ran.stderr


@pytest.mark.parametrize("damage", ["cut", "a key's header", "gone", "another base"])
def test_a_search_that_did_not_see_all_headers_is_not_complete(damage: str) -> None:
    assert wds("split", "a", "--keys", "k?", "-o", "v.json").code == 0
    shard, given = Path("a/s.tar"), "v.json" if damage == "another base" else "a/s.tar"
    data = bytearray(shard.read_bytes())
    if damage == "cut":
        del data[5 << 10 :]
    elif damage == "a key's header":
        data[5 << 10] ^= 1
    else:
        data = bytearray(tar_of([(name.replace("k5", "k_"), name.encode()) for name in NAMES]))
    shard.write_bytes(data)
    if damage == "gone":
        assert wds("index", "a").code == 0
        shard.unlink()
        [given] = map(str, Path("a").glob("*.json"))
    ran, proof = prove(given)
    assert (ran.code != 0, proof["found"], proof["complete"]) == (True, 0, False), (ran, proof)
    assert "not complete" in check("a/s.tar")


@pytest.mark.parametrize("mark", [b"\xef\xbb\xbf", b""])
def test_a_list_from_windows(mark: bytes) -> None:
    Path("out.txt").write_bytes(mark + b"k5\r\nk6\r\n\r\nk5\r\n")
    ran, proof = prove("a")
    assert (ran.code, proof["found"], proof["list"]["keys"]) == (1, 2, 2)  # type: ignore[index]
    assert "2 keys of the list are there" in check("a/s.tar")
    assert wds("split", "a", "--not-keys-from", "out.txt", "-o", "v.json").code == 0
    assert prove("v.json")[0].code == 0
    check("v.json")


@pytest.mark.parametrize(
    ("listed", "says"),
    [
        (b"k5 \nk6\n", '"k5 " begins or ends with a blank'),
        (b'"k5"\n', "has quotes around it; if the list is CSV, name it LIST.csv"),
        (b"k5,1\n", '"k5,1" has a comma; if the list is CSV, name it LIST.csv'),
        (b"k5\rk6\rk7\r", "has a carriage return; end each line with a newline"),
        ("k5\n".encode("utf-16"), "has a zero byte, as no key has; save the list as UTF-8"),
        (b"k5.txt\nk6.txt\n", '"k5.txt" (and 1 more) has a dot after its last slash, as no key has'),
    ],
)
def test_keys_that_are_probably_mistakes(listed: bytes, says: str) -> None:
    Path("out.txt").write_bytes(listed)
    assert says in prove("a")[0].err


@pytest.mark.parametrize("name", ["out.csv", "out.jsonl"])
def test_the_script_refuses_a_table(name: str) -> None:
    Path(name).write_text('{"key": "gone"}\n' if name.endswith("l") else "key\ngone\n")
    ran, proof = prove("a", absent=name)
    assert (ran.code, proof["found"]) == (0, 0)
    assert "the list is a table" in check("a/s.tar", absent=name)


def test_a_compressed_shard() -> None:
    assert wds("cat", "a", "-o", "packed.tar.gz").code == 0
    Path("out.txt").write_text("gone\n")
    assert prove("packed.tar.gz")[0].code == 0
    assert check("packed.tar.gz") == "no key of the list is in these shards\n"


def test_new_keys_are_named() -> None:
    assert wds("split", "a", "--rekey", "n{n}", "-o", "v.json").code == 0
    ran, _ = prove("v.json")
    assert (ran.code, "v.json gives samples new keys" in ran.err) == (0, True), ran.err
    assert "new keys" not in prove("a")[0].err
    assert wds("split", "a", "--rekey", "w{n}", "-o", "w.json").code == 0
    ran = wds("verify", "v.json", "w.json", "--absent", "out.txt")
    assert [name in ran.err for name in ("v.json gives", "w.json gives")] == [True, True], ran.err


def test_the_proof_is_of_the_list_that_was_searched() -> None:
    """A list that changes between two searches of one process, or before the proof is written."""
    Path("out.txt").write_text("gone\n")
    first = verify(["a"], checks_of(absent="out.txt"))
    Path("out.txt").write_text("k5\n")
    second = verify(["a"], checks_of(absent="out.txt"))
    assert [report.proof(None)["found"] for report in (first, second)] == [0, 1]
    assert first.proof(None)["list"] != second.proof(None)["list"]


@pytest.mark.parametrize("line", ["split a", "shuffle a --rekey z{n}-{key}", "merge --join left a b"])
def test_the_proof_of_a_view_is_of_the_shards_made_from_it(line: str) -> None:
    Path("b").mkdir()
    Path("b/s.tar").write_bytes(tar_of([("k3.cls", b"1"), ("k5.cls", b"1")]))
    assert wds(*line.split(), "--not-keys-from", "out.txt", "-o", "v.json").code == 0
    assert wds("cat", "v.json", "-o", "real/{name}.tar").code == 0
    (_, real), (ran, proof) = prove("real"), prove("v.json")
    assert (ran.code, proof["complete"]) == (0, True)
    keys = [[shard["keys"] for shard in of["shards"]] for of in (proof, real)]  # type: ignore[attr-defined]
    assert keys[0] == keys[1]
    shards = sorted(map(str, Path("real").glob("*.tar")))
    assert check(*shards) == check("v.json") == "no key of the list is in these shards\n"
    made = json.loads(next(Path("real").glob("*.json")).read_text())["wdscli"]["made"]
    assert made["inputs"] == [proof["set"]]


def test_several_views() -> None:
    for name in ("v1", "v2"):
        assert wds("split", "a", "--rekey", f"{name}{{n}}", "-o", f"{name}.json").code == 0
    ran, proof = prove("v1.json", "v2.json")
    assert (ran.code, len(proof["shards"]), proof["complete"]) == (0, 2, True)  # type: ignore[arg-type]
    check("v1.json", "v2.json")
    assert wds("verify", "v1.json", "v2.json", "--checksums").code == 2
    assert wds("index", "a").code == 0
    for name in ("v1", "v2"):
        assert wds("split", "a", "--rekey", f"{name}{{n}}", "-o", f"{name}.json", "--force").code == 0
    assert wds("verify", "v1.json", "v2.json", "--checksums").code == 0
    data = bytearray(Path("a/s.tar").read_bytes())
    data[512] ^= 1
    Path("a/s.tar").write_bytes(data)
    assert b"s.tar was changed" in wds("verify", "v1.json", "v2.json", "--checksums").out


def link_of(name: str, kind: bytes) -> bytes:
    header = tarfile.TarInfo(name)
    header.type, header.linkname = kind, "k1.txt"
    return header.tobuf(tarfile.GNU_FORMAT)


@pytest.mark.parametrize(
    "special",
    [
        link_of("gone.txt", tarfile.LNKTYPE),
        link_of("other.txt", tarfile.SYMTYPE),
        link_of("gone.txt", tarfile.FIFOTYPE),
        link_of("gone.txt", tarfile.GNUTYPE_SPARSE),
        tar_of([("../gone.txt", b"x")]).removesuffix(END_OF_ARCHIVE),
        tar_of([("/gone.txt", b"x")]).removesuffix(END_OF_ARCHIVE),
    ],
)
def test_a_member_that_is_no_file_leaves_the_proof_open(special: bytes) -> None:
    """`tar x` writes a listed key of a hard link, and of a name with slashes before it."""
    Path("out.txt").write_text("gone\n")
    Path("a/s.tar").write_bytes(special + tar_of([(name, b"x") for name in NAMES]))
    ran, proof = prove("a")
    assert (ran.code, proof["complete"]) == (1, False)
    is_listed = b"gone" in special and special[156:157] != b"0"
    assert proof["found"] == int(is_listed)
    assert "none of 1 key found (the search is not complete)" in ran.err or is_listed
    assert "the search was not complete" in check("a/s.tar")
    proof["complete"] = True
    Path("proof.json").write_text(json.dumps(proof))
    assert "the search is not complete: a/s.tar has a member" in check("a/s.tar")


@pytest.mark.parametrize(
    ("listed", "stored"), [("k3", "./k3"), ("./k3", "k3"), ("a/k3", "a//k3"), ("a//k3", "a/./k3")]
)
def test_the_same_path_in_two_spellings(listed: str, stored: str) -> None:
    Path("out.txt").write_text(f"{listed}\n")
    Path("a/s.tar").write_bytes(tar_of([("k1.txt", b"x"), (f"{stored}.txt", b"x")]))
    ran, proof = prove("a")
    assert (ran.code, proof["found"], proof["complete"]) == (0, 0, True)
    assert f'"{stored}": out.txt lists the key "{listed}", which is the same path'.encode() in ran.out
    assert wds("verify", "a", "--absent", "out.txt", "--errors", "similar-key").code == 1


def test_the_proof_says_what_was_compared() -> None:
    assert str(prove("a")[1]["how"]).endswith("payloads were not compared")
