"""``verify --profile``: each demand of each reader, by a shard that breaks it, and a shard that pleases all."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest
from tiers import EXHAUSTIVE
from verify_cases import GOOD, good_tar, tar_bytes, tar_member, write
from verify_options import checks_of

from wdscli.cli.main import main
from wdscli.errors import UsageError
from wdscli.tar import END_OF_ARCHIVE, Form, build_header, padding
from wdscli.tar.header import extended, pax_record
from wdscli.verify.findings import DEMANDS, KINDS
from wdscli.verify.profiles import PROFILES
from wdscli.verify.set import VerifyReport, verify

LONG = b"d" * 150 + b".jpg"
FIVE = [(b"%d.%s" % (n, field), b"1") for n in range(5) for field in (b"cls", b"jpg")]
NULLS = [(b"%d.json" % n, b'{"a": null}') for n in range(5)]

# demand -> (members or bytes, the member or field that is named)
CASES: dict[str, tuple[Any, str | None]] = {
    "webdataset-upper-case": ([(b"a.JPG", b"x"), (b"b.JPG", b"x")], "JPG"),
    "webdataset-case-collision": ([(b"a.jpg", b"x"), (b"a.JPG", b"x")], "a.JPG"),
    "webdataset-reserved-field": ([(b"a.__key__", b"x")], "__key__"),
    "webdataset-skipped": ([*GOOD, (b"__meta__/x.json", b"x")], "__meta__/x.json"),
    "hf-empty-shard": ([], None),
    "hf-mixed-fields": ([(b"a.jpg", b"x"), (b"b.jpg", b"x"), (b"b.cls", b"1")], "b"),
    "hf-dropped-field": ([*FIVE, (b"9.cls", b"1"), (b"9.json", b"1"), (b"9.jpg", b"x")], "json"),
    "hf-mixed-types": ([*NULLS, (b"9.json", b'{"a": "x"}')], "9.json"),
    "hf-undecodable": ([(b"a.txt", b"\xff"), (b"b.txt", b"x")], "a.txt"),
    "hf-not-an-integer": ([(b"a.cls", b"cat"), (b"b.cls", b"7\n")], "a.cls"),
    "hf-raw-field": ([(b"a.weird", b"x")], "weird"),
    "hf-skipped": ([*GOOD, (b"x/.hidden.jpg", b"x")], "x/.hidden.jpg"),
    "dali-pax-header": (build_header(LONG, 1) + b"x" + padding(1) + END_OF_ARCHIVE, LONG.decode()),
    "dali-blank": ([(b"a b.jpg", b"x"), (b"c.jpg", b"x")], "a b.jpg"),
    "dali-missing-component": ([*GOOD[:5]], "c"),
    "dali-compressed": (gzip.compress(good_tar()), None),
    "energon-empty-shard": ([], None),
    "energon-compressed": (gzip.compress(good_tar()), None),
    "energon-skipped": ([*GOOD, (b"__meta__/y.json", b"x")], "__meta__/y.json"),
}


def check(folder: Path, data: Any, *profiles: str) -> VerifyReport:
    data = data if isinstance(data, bytes) else tar_bytes(*data)
    return verify([write(folder, data)], checks_of(profiles=profiles), jobs=1)


@pytest.mark.parametrize("code", CASES)
def test_each_demand(code: str, tmp_path: Path) -> None:
    data, member = CASES[code]
    profile = code.partition("-")[0]
    report = check(tmp_path, data, profile)
    named = [finding for finding in report.findings if finding.code == code]
    assert [finding.member for finding in named] == [member]
    assert named[0].severity == DEMANDS[code].severity
    assert named[0].hint == DEMANDS[code].hint
    reader = "Hugging Face" if profile == "hf" else profile
    assert reader.lower() in named[0].message.lower()
    assert code not in check(tmp_path, data).counts
    others = [name for name in PROFILES if name != profile]
    assert code not in check(tmp_path, data, *others).counts


def test_every_demand_has_a_test_and_a_meaning() -> None:
    assert set(CASES) == set(DEMANDS)
    assert {code.partition("-")[0] for code in DEMANDS} == set(PROFILES)
    assert all(kind.meaning for kind in (*KINDS.values(), *DEMANDS.values()))


def test_a_good_shard_pleases_all(tmp_path: Path) -> None:
    assert check(tmp_path, good_tar(), *PROFILES).counts == {}


def test_pax_headers_are_seen_wherever_they_are(tmp_path: Path) -> None:
    header = extended(b"x", pax_record(b"mtime", b"1.5"))
    data = b"".join(tar_member(b"%d.jpg" % n, b"x" * 40_000) for n in range(20))
    data += header + tar_member(b"p.jpg") + END_OF_ARCHIVE
    address = write(tmp_path, data)
    for source in (address, f"pipe:cat {address}"):
        report = verify([source], checks_of(profiles=["dali"]), jobs=1)
        assert [f.member for f in report.findings] == ["p.jpg"], source
    glob = extended(b"g", pax_record(b"comment", b"x")) + good_tar()
    assert check(tmp_path, glob, "dali").counts == {"dali-pax-header": 6}


@pytest.mark.parametrize("name", [b" a.jpg", b"a.jpg ", b"a\tb.jpg", b"a\nb.jpg", b"a.j pg"])
def test_blanks_anywhere(name: bytes, tmp_path: Path) -> None:
    report = check(tmp_path, [(name, b"x"), (b"c.jpg", b"x")], "dali")
    assert report.counts["dali-blank"] == 1


def test_dali_reads_gnu_long_names(tmp_path: Path) -> None:
    data = build_header(LONG, 1, Form(0, "gnu")) + b"x" + padding(1) + END_OF_ARCHIVE
    assert check(tmp_path, data, "dali").counts == {}


def test_hugging_face_looks_at_the_first_shard_only_for_fields(tmp_path: Path) -> None:
    one = write(tmp_path, good_tar(), "1.tar")
    two = write(tmp_path, tar_bytes((b"x.jpg", b"1"), (b"y.jpg", b"1"), (b"y.cls", b"1")), "2.tar")
    assert set(verify([one, two], checks_of(profiles=["hf"])).counts) == {"mixed-fields"}
    assert "hf-mixed-fields" in verify([two, one], checks_of(profiles=["hf"])).counts


def test_hugging_face_numbers_in_a_stream(tmp_path: Path) -> None:
    members = [
        (b"%d.%s" % (n, field), b"x" * size)
        for n in range(9)
        for field, size in ((b"jpg", 90_000), (b"cls", 3))
    ]
    address = write(tmp_path, tar_bytes(*members))
    for source in (address, f"pipe:cat {address}"):
        assert verify([source], checks_of(profiles=["hf"]), jobs=1).counts == {"hf-not-an-integer": 9}


TEXT = tar_bytes((b"x.json", b'{"a": "text"}'))


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=EXHAUSTIVE)])
@pytest.mark.parametrize("first", ["{}", "pipe:cat {}"])
def test_types_in_json_are_those_of_the_first_shard(first: str, jobs: int, tmp_path: Path) -> None:
    nulls, text = write(tmp_path, tar_bytes(*NULLS), "1.tar"), write(tmp_path, TEXT, "2.tar")
    report = verify([first.format(nulls), text, text], checks_of(profiles=["hf"]), jobs=jobs)
    assert report.counts["hf-mixed-types"] == 2
    message = "Hugging Face datasets: json.a has text, but earlier values are null"
    assert {(f.shard, f.member, f.message) for f in report.findings if f.code == "hf-mixed-types"} == {
        (text, "x.json", message)
    }
    assert "hf-mixed-types" not in verify([text, nulls], checks_of(profiles=["hf"]), jobs=jobs).counts


@pytest.mark.parametrize(
    ("first", "later", "codes"),
    [
        ('{"a": 1}', '{"a": 2.5}', {"hf-mixed-types"}),
        ('{"a": 1}', '{"a": "1"}', {"hf-mixed-types"}),
        ('{"a": 1}', '{"a": true}', {"hf-mixed-types"}),
        ('{"a": 1}', '{"a": 2.0}', set()),
        ('{"a": 1}', '{"a": 9223372036854775808}', {"hf-mixed-types"}),
        ('{"a": 0.5}', '{"a": 1}', set()),
        ('{"a": {"b": 1}}', '{"a": {}}', set()),
        ('{"a": {"b": 1}}', '{"a": {"c": 1}}', {"hf-dropped-field"}),
        ('{"a": [{"b": 1}]}', '{"a": [{"b": 1}, {"b": 1, "c": 1}]}', {"hf-mixed-types"}),
        ('{"a": [{"b": 1}]}', '{"a": [{"b": 1, "c": 1}, {"b": 1}]}', {"hf-dropped-field"}),
        ('{"a": [1, 2.5]}', '{"a": [3]}', set()),
        ('{"a": [1, "x"]}', '{"a": [1]}', {"hf-mixed-types"}),
        ('{"a": []}', '{"a": [1]}', {"hf-mixed-types"}),
        ("[1]", "null", set()),
        ("[1]", "{}", {"hf-mixed-types"}),
        ('{"a": "x"}', '{"a": "\\ud800"}', {"hf-undecodable"}),
        ('{"a": "x"}', "{", {"hf-undecodable"}),
        ('{"a": 1.5}', '{"a": 1' + "0" * 400 + "}", {"hf-mixed-types"}),
        ('{"a": 1}', "[" * 100_000, {"hf-undecodable"}),
    ],
)
def test_types_in_json(first: str, later: str, codes: set[str], tmp_path: Path) -> None:
    members = [(b"%d.json" % n, first.encode()) for n in range(5)]
    report = check(tmp_path, [*members, (b"5.json", later.encode())], "hf")
    assert {code for code in report.counts if code.startswith("hf-")} == codes


def test_what_webdataset_does_with_what_is_told(tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset")

    def read(data: list[tuple[bytes, bytes]]) -> list[set[str]]:
        address = write(tmp_path, tar_bytes(*data))
        dataset = webdataset.WebDataset(address, shardshuffle=False, empty_check=False)
        return [{name for name in sample if not name.startswith("__")} for sample in dataset]

    assert read(CASES["webdataset-upper-case"][0]) == [{"jpg"}, {"jpg"}]
    assert read(CASES["webdataset-skipped"][0]) == [{"jpg", "cls"}] * 3
    for code in ("webdataset-case-collision", "webdataset-reserved-field"):
        with pytest.raises(ValueError, match="duplicate"):
            read(CASES[code][0])


def test_the_option(tmp_path: Path, capfd: Any) -> None:
    address = write(tmp_path, tar_bytes((b"a.JPG", b"x"), (b"b c.JPG", b"x")))
    assert main(["verify", address]) == 0
    assert capfd.readouterr().out == ""
    assert main(["verify", address, "--for", "webdataset", "--for", "dali"]) == 1
    out = capfd.readouterr().out
    assert "webdataset-upper-case: 1 warning" in out
    assert "dali-blank: 1 error" in out
    with pytest.raises(UsageError, match="nobody"):
        verify([address], checks_of(profiles=["nobody"]))
