"""Names that no sample has, and outputs without samples: refused where something is written."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from conftest import Command
from reorders import shuffle
from shard_cases import keys_of, leftovers, members_of, write_shards
from tiers import EXHAUSTIVE

from wdscli.errors import DataError
from wdscli.ops.cat import cat
from wdscli.plan.request import Request
from wdscli.selection import Selection
from wdscli.selection.named import SeenNames
from wdscli.selection.places import Place

pytestmark = pytest.mark.usefixtures("shared_workers")
COMMAND: list[str] = []

SHARDS = [
    [
        [
            (f"n0{s}/img{n}.jpg", b"j%d" % n),
            (f"n0{s}/img{n}.cls", b"%d" % (n % 2)),
            (
                f"n0{s}/img{n}.json",
                json.dumps({"width": n * 10, "meta": {"lang": "en"}, "tags": ["a"]}).encode(),
            ),
        ]
        + ([(f"n0{s}/img{n}.seg.png", b"s")] if s == 1 else [])
        for n in range(4)
    ]
    for s in range(2)
]

WRITE = {
    "cat": ["cat"],
    "split": ["split"],
    "merge": ["merge"],
    "shuffle": ["shuffle"],
    "sort": ["sort"],
    "in turns": ["merge", "--weights", "equal"],
}


@pytest.fixture
def shards(tmp_path: Path) -> list[str]:
    return write_shards(tmp_path / "in", SHARDS)


SELECTED = [
    (["--fields", "jpg,clss"], "no sample has clss for --fields", "did you mean cls?"),
    (["--fields", "JPGG"], "no sample has JPGG for --fields", "did you mean jpg?"),
    (["--fields", "*.jsonl,cls"], "no sample has *.jsonl for --fields", ""),
    (["--drop", "seg.pgn"], "no sample has seg.pgn for --drop", "did you mean seg.png?"),
    (["--rename", "image=jpeg;pgn"], "no sample has jpeg;pgn for --rename", "jpg"),
    (["--where", "json.widht > 5"], "no sample has json.widht for --where", "did you mean width?"),
    (["--where", "json.mata.lang == 'en'"], "no sample has json.mata.lang for --where", "did you mean meta?"),
    (["--where", "json['meta']['lnag'] == 'en'"], "no sample has json.meta.lnag for --where", "lang?"),
    (["--where", "size.jgp > 0"], "no sample has size.jgp for --where", "did you mean jpg?"),
    (["--where", "txt == 'a'"], "no sample has txt for --where", "there are cls, jpg, json, seg.png"),
    (["--where", "cls == 0 or json.w > 1"], "no sample has json.w for --where", ""),
    (["--keys", "n01/img1", "--keys", "n01/img17"], "no sample has the key n01/img17 for --keys", "n01/img1"),
    (
        ["--keys", "n01/img1,n01/img2"],
        "no sample has the key n01/img1,n01/img2",
        "repeat the option for several keys",
    ),
    (["--keys", "n1/*"], "no sample has a key like n1/* for --keys", "keys are n00/img0, n00/img1"),
    (["--keys-from", "KEYS"], "no sample has a key of KEYS for --keys-from", "keys are n00/img0"),
]


def words_of(options: list[str], folder: Path) -> list[str]:
    (folder / "keys").write_text("x/1\nx/2\n")
    return [str(folder / "keys") if one == "KEYS" else one for one in options]


MORE: list[list[str]] = [[], ["--plan", "PLAN"], ["-n"], ["-j2"], ["--memory", "1"]]
CASES = [
    (how, more, *selected)
    for selected in SELECTED
    for name, how in WRITE.items()
    for more in MORE
    if selected[0][1] in ("jpg,clss", "n01/img1") or (name in ("cat", "split") and not more)
    if name != "cat" or more in ([], ["-n"])
]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("how", "more", "options", "said", "hint"),
    CASES,
    ids=[" ".join([*how, *more, *options]) for how, more, options, *_ in CASES],
)
def test_a_selection_that_names_what_is_nowhere(
    run: Command,
    shards: list[str],
    tmp_path: Path,
    how: list[str],
    more: list[str],
    options: list[str],
    said: str,
    hint: str,
) -> None:
    words = [str(tmp_path / "plan") if one == "PLAN" else one for one in more]
    ran = run(*how, *shards, "-o", tmp_path / "out.tar", *words_of(options, tmp_path), *words)
    assert ran.code == 3, ran.err
    assert said.replace("KEYS", str(tmp_path / "keys")) in ran.err
    assert hint in ran.err
    assert "--allow-empty" in ran.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "keys"]
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize(("options", "said", "hint"), SELECTED, ids=lambda value: " ".join(value))
def test_ls_warns(
    run: Command, shards: list[str], tmp_path: Path, options: list[str], said: str, hint: str
) -> None:
    for more in ([], ["--by", "member"], ["--summary"], ["--by", "shard"]):
        ran = run("ls", *shards, *more, *words_of(options, tmp_path))
        assert ran.code == 0
        assert "warning: " + said.replace("KEYS", str(tmp_path / "keys")) in ran.err
        assert hint in ran.err
        assert "allow-empty" not in ran.err


@pytest.mark.exhaustive
@pytest.mark.parametrize(("options", "said", "hint"), SELECTED, ids=lambda value: " ".join(value))
@pytest.mark.parametrize("how", ["split", "cat"])
def test_when_it_is_allowed(
    run: Command, shards: list[str], tmp_path: Path, how: str, options: list[str], said: str, hint: str
) -> None:
    words = words_of(options, tmp_path)
    ran = run(how, *shards, "-o", tmp_path / "out.tar", *words, "--allow-empty")
    assert ran.code == 0, ran.err
    assert "warning: " + said.replace("KEYS", str(tmp_path / "keys")) in ran.err
    assert (tmp_path / "out.tar").exists()


@pytest.mark.parametrize(
    "options",
    [
        ["--fields", "jpg,seg.png"],
        ["--fields", "*png"],
        ["--fields", ".jpg"],
        ["--fields", "image", "--rename", "image=png;jpg"],
        ["--drop", "seg.*"],
        ["--rename", "image=png;jpg"],
        ["--where", "json.width >= 0"],
        ["--where", "'txt' not in fields"],
        ["--where", "get(json, 'nothing', 1) == 1"],
        ["--where", "json.meta.lang.upper() == 'EN' and json.tags[0] == 'a'"],
        ["--where", "'txt' in fields and json.width > 5 or cls == 1"],
        ["--where", "size['seg.png'] > 0"],
        ["--where", "index == 0 or index == 77 and json.width > 1"],
        ["--keys", "n01/img1", "--keys", "n0*/img2", "--keys", "n01/*"],
        ["--keys", "n00/*", "--fields", "cls,seg.png"],
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("how", ["ls", *(pytest.param(how, marks=EXHAUSTIVE) for how in ("split", "cat"))])
def test_what_some_sample_has(
    good: Command, shards: list[str], tmp_path: Path, how: str, options: list[str]
) -> None:
    """``seg.png`` is in one shard of two; and what asks whether something is there may hear that it is not."""
    output = [] if how == "ls" else ["-o", tmp_path / "out.tar"]
    ran = good(how, *shards, *output, *options)
    assert "no sample has" not in ran.err


def test_some_keys_of_a_file(good: Command, shards: list[str], tmp_path: Path) -> None:
    """One list may serve several sets."""
    (tmp_path / "keys").write_text("n01/img1\nx/2\n")
    ran = good("split", *shards, "-o", tmp_path / "out.tar", "--keys-from", tmp_path / "keys")
    assert f"warning: 1 key of {tmp_path}/keys not found: x/2" in ran.err


BY = [
    (["sort", "--by", "clss"], "no sample has clss to sort by", "did you mean cls?"),
    (
        ["sort", "--by", "cls", "--by", "json.widht"],
        "no sample has json.widht to sort by",
        "did you mean width?",
    ),
    (
        ["sort", "--by", "json.width / json.height"],
        "no sample has json.height to sort by",
        "there are meta, tags, width",
    ),
    (["split", "--by", "clss"], None, ""),
    (["split", "--by", "clss", "--missing", "rest"], "no sample has clss for --by", "did you mean cls?"),
    (
        ["split", "--by", "json.mta.lang", "--missing", "skip"],
        "no sample has json.mta.lang for --by",
        "meta?",
    ),
    (
        ["split", "--ratio", "a=1,b=1", "--group-by", "json.pat", "--missing", "skip"],
        "no sample has json.pat for --group-by",
        "there are meta, tags, width",
    ),
    (
        ["split", "--ratio", "a=1,b=1", "--stratify", "clas", "--missing", "skip"],
        "no sample has clas for --stratify",
        "did you mean cls?",
    ),
    (["merge", "--dedup", "jpgg"], "no sample has jpgg to compare", "did you mean jpg?"),
    (["merge", "--dedup", "jpg,txt"], "no sample has txt to compare", "there are cls, jpg, json"),
    (["split", "--by", "@MAP", "--missing", "rest"], "--by: no sample has a key that map lists", ""),
]


@pytest.mark.parametrize("held", ["held", pytest.param("here and there", marks=EXHAUSTIVE)])
@pytest.mark.parametrize(("how", "said", "hint"), BY, ids=lambda value: " ".join(value or ""))
def test_an_order_by_what_is_nowhere(
    run: Command,
    shards: list[str],
    tmp_path: Path,
    how: list[str],
    said: str | None,
    hint: str,
    held: str,
    monkeypatch: Any,
) -> None:
    """Also where surveys are made by other processes, which tell what they have seen."""
    more = ["-j2"] if held == "here and there" else []
    if more:
        monkeypatch.setattr("wdscli.plan.survey.useful_jobs", lambda *_, **__: 2)
    (tmp_path / "map").write_text("x/1\ta\nx/2\tb\n")
    how = [f"@{tmp_path}/map" if one == "@MAP" else one for one in how]
    name = "{part}.tar" if how[0] == "split" else "out.tar"
    ran = run(*how, *shards, "-o", tmp_path / name, *more)
    assert ran.code == 3, ran.err
    if said is not None:
        assert said in ran.err
        assert hint in ran.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "map"]


def test_sorted_by_what_may_be_missing(good: Command, shards: list[str], tmp_path: Path) -> None:
    ran = good("sort", *shards, "-o", tmp_path / "out.tar", "--by", "json.widht", "--missing", "last")
    assert "warning: no sample has json.widht to sort by: did you mean width?" in ran.err


class TestCat:
    @pytest.mark.parametrize(
        ("options", "said"),
        [
            (["--to", "raw", "--fields", "jgp"], "no sample has jgp for --fields"),
            (["--to", "raw", "--fields", "jpg", "--keys", "n01/img11"], 'no sample has the key "n01/img11"'),
            (["--to", "jsonl", "--keys", "n02/*"], "no sample has a key like n02/* for --keys"),
            (["--to", "jsonl", "--where", "cls > 3"], "no sample is left to write: 8 where"),
            (["--to", "DIR/", "--drop", "clss"], "no sample has clss for --drop"),
        ],
        ids=lambda value: " ".join(value) if isinstance(value, list) else "",
    )
    def test_instead_of_a_tar(
        self, run: Command, shards: list[str], tmp_path: Path, options: list[str], said: str
    ) -> None:
        options = [f"{tmp_path}/dir/" if one == "DIR/" else one for one in options]
        output = [] if f"{tmp_path}/dir/" in options else ["-o", str(tmp_path / "o")]
        ran = run("cat", *shards, *options, *output)
        assert ran.code == 3, ran.err
        assert said in ran.err
        assert not (tmp_path / "o").exists()
        if "no sample has" in said and "--fields" not in options and "--drop" not in options:
            assert "hint: " in ran.err

    def test_a_field_that_one_sample_has(self, good: Command, shards: list[str]) -> None:
        ran = good("cat", *shards, "--to", "raw", "--fields", "seg.png")
        assert ran.out == b"ssss"
        assert "left out 4 samples: 4 no-such-field" in ran.err.replace("no-such-field 4", "4 no-such-field")

    def test_a_near_key(self, run: Command, shards: list[str]) -> None:
        ran = run("cat", *shards, "--to", "raw", "--fields", "jpg", "--keys", "n01/img11")
        assert "did you mean n01/img1" in ran.err

    def test_allowed(self, good: Command, shards: list[str]) -> None:
        ran = good("cat", *shards, "--to", "raw", "--fields", "jgp", "--allow-empty")
        assert ran.out == b""
        assert "warning: no sample has jgp for --fields: did you mean jpg?" in ran.err

    def test_a_stream(self, run: Command, shards: list[str], tmp_path: Path) -> None:
        ran = run("cat", f"pipe:cat {shards[0]}", "-o", tmp_path / "o.tar", "--where", "json.widht > 1")
        assert ran.code == 3
        assert "did you mean width?" in ran.err
        assert not (tmp_path / "o.tar").exists()


class TestJoin:
    def test_a_name_that_any_set_has(self, run: Command, good: Command, tmp_path: Path) -> None:
        one, other = write_shards(
            tmp_path / "in", [[[("a.jpg", b"1")]], [[("a.txt", b"1"), ("a.cls", b"0")]]]
        )
        joined = ["merge", "--join", "inner", one, other, "-o", str(tmp_path / "o.tar")]
        good(*joined, "--fields", "jpg,txt", "--keys", "a")
        assert [name for name, _ in members_of(tmp_path / "o.tar")] == ["a.jpg", "a.txt"]
        ran = run(*joined, "--force", "--fields", "jpg,txtt")
        assert (ran.code, "no sample has txtt for --fields" in ran.err) == (3, True)
        ran = run(*joined, "--force", "--keys", "b")
        assert (ran.code, "no sample has the key b for --keys" in ran.err) == (3, True)

    def test_nothing_in_common(self, run: Command, good: Command, tmp_path: Path) -> None:
        one, other = write_shards(tmp_path / "in", [[[("a.jpg", b"1")]], [[("b.txt", b"1")]]])
        joined = ["merge", "--join", "inner", one, other, "-o", str(tmp_path / "o.tar")]
        ran = run(*joined)
        assert (ran.code, "no sample is left to write: 2 no-partner" in ran.err) == (3, True)
        assert not (tmp_path / "o.tar").exists()
        good(*joined, "--allow-empty")
        assert keys_of(tmp_path / "o.tar") == []


class TestEmpty:
    @pytest.mark.exhaustive
    @pytest.mark.parametrize("how", WRITE.values(), ids=WRITE)
    @pytest.mark.parametrize(
        "options", [["--where", "cls > 7"], ["--slice", "99:"], ["--limit", "0"]], ids=" ".join
    )
    def test_an_output_without_samples(
        self,
        run: Command,
        good: Command,
        shards: list[str],
        tmp_path: Path,
        how: list[str],
        options: list[str],
    ) -> None:
        words = [*how, *shards, "-o", tmp_path / "out.tar", *options]
        ran = run(*words)
        assert ran.code == 3
        assert "no sample is left to write" in ran.err
        assert "--allow-empty" in ran.err
        assert not (tmp_path / "out.tar").exists()
        assert run(*words, "-n").code == 3
        good(*words, "--allow-empty")
        assert keys_of(tmp_path / "out.tar") == []

    @pytest.mark.parametrize("how", WRITE.values(), ids=WRITE)
    def test_inputs_without_samples(
        self, run: Command, good: Command, tmp_path: Path, how: list[str]
    ) -> None:
        """Nothing was lost."""
        shards = write_shards(tmp_path / "in", [[], []])
        good(*how, *shards, "-o", tmp_path / "out.tar")
        assert keys_of(tmp_path / "out.tar") == []
        ran = run(*how, *shards, "-o", tmp_path / "two.tar", "--fields", "jpg")
        assert (ran.code, "no sample is left to write" in ran.err) == (3, True)

    def test_all_parts_without_samples(self, run: Command, shards: list[str], tmp_path: Path) -> None:
        words = ["--ratio", "a=1,b=1", "--group-by", "^q[0-9]+", "--missing", "skip"]
        ran = run("split", *shards, "-o", tmp_path / "{part}.tar", *words)
        assert (ran.code, "no sample is left to write: 8 missing" in ran.err) == (3, True)

    def test_one_part_without_samples(self, good: Command, shards: list[str], tmp_path: Path) -> None:
        good("split", *shards, "-o", tmp_path / "{part}.tar", "--ratio", "a=1000000,b=1")
        assert keys_of(tmp_path / "b.tar") == []

    def test_all_damaged(self, run: Command, tmp_path: Path) -> None:
        (tmp_path / "bad.tar").write_bytes(write_shard_bytes(tmp_path)[:700])
        ran = run("split", tmp_path / "bad.tar", "-o", tmp_path / "out.tar", "--on-error", "skip")
        assert (ran.code, "no sample is left to write" in ran.err) == (3, True)


def write_shard_bytes(folder: Path) -> bytes:
    return Path(write_shards(folder / "whole", [[[("a.x", b"1" * 2000)]]])[0]).read_bytes()


class TestReadingThatEndedEarly:
    """A limit may end it before the first sample that has a field: then it is told, and no error."""

    @pytest.mark.parametrize("how", ["split", "cat", "ls"])
    def test_a_field_that_may_come(self, good: Command, shards: list[str], tmp_path: Path, how: str) -> None:
        output = [] if how == "ls" else ["-o", tmp_path / "o.tar"]
        ran = good(how, *shards, *output, "--fields", "jpg,seg.png", "--limit", "2")
        assert "warning: no sample has seg.png for --fields among the 2 that were read" in ran.err
        assert "among" not in good("ls", *shards, "--keys", "n01/img3", "--keys", "n00/*", "--limit", 1).err


class TestCreate:
    @pytest.mark.parametrize("policy", ["skip", "keep"])
    def test_required_fields_that_no_file_is(self, run: Command, tmp_path: Path, policy: str) -> None:
        (tmp_path / "in").mkdir()
        for name in ("a.jpg", "a.cls", "b.jpg"):
            (tmp_path / "in" / name).write_bytes(b"1")
        words = ["create", tmp_path / "in", "-o", tmp_path / "o.tar", "--missing", policy, "--require"]
        ran = run(*words, "jpg,clss")
        assert ran.code == 3
        assert "no sample has clss for --require" in ran.err
        assert "did you mean cls?" in ran.err
        assert not (tmp_path / "o.tar").exists()
        assert run(*words, "jpg;png,cls").code == 0


class TestLibrary:
    def test_it_is_a_data_error(self, shards: list[str], tmp_path: Path) -> None:
        for make in (cat, shuffle):
            request = Request(shards, f"{tmp_path}/o.tar", selection=Selection.parse(fields="jpgg"))
            with pytest.raises(DataError, match="no sample has jpgg") as error:
                make(request)
            assert error.value.code == "not-found"
            request = Request(shards, f"{tmp_path}/o.tar", selection=Selection.parse(where="cls > 3"))
            with pytest.raises(DataError, match="no sample is left") as error:
                make(request)
            assert error.value.code == "empty"
            assert make(request._replace(allow_empty=True)).samples == 0
            Path(f"{tmp_path}/o.tar").unlink()
            Path(f"{tmp_path}/o-manifest.json").unlink()

    def test_sightings_of_two_places_are_put_together(self) -> None:
        one, other, place = SeenNames(), SeenNames(), Place(b"json", ("a", 0))
        one.see_document(place, {"b": 1})
        assert one.alternatives == {place: {"b"}}
        other.see_document(place, {"a": [1]})
        other.fields.add(b"json")
        one.merge(other)
        assert (one.alternatives, one.places, one.fields) == ({}, {place}, {b"json"})
        for keys in ([b"a1", b"a9"], [b"a55"], [b"b"]):
            other.see_keys(keys, [b"a5"])
        one.merge(other)
        assert one.similar_keys(b"a5")[0] == "a55"


class TestLoader:
    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"where": "json.widht > 5"}, "no sample has json.widht for where: did you mean width"),
            ({"where": "txt == 'a'"}, "no sample has txt for where: there are cls, jpg, json, seg.png"),
            (
                {"keys": ["n01/img1", "n01/img17"]},
                "no sample has the key n01/img17 for keys: did you mean n01/img1",
            ),
            ({"keys": "n7/*"}, "no sample has a key like n7/. for keys: keys are n00/img0"),
        ],
        ids=str,
    )
    def test_it_warns(
        self, good: Command, shards: list[str], tmp_path: Path, options: Any, said: str
    ) -> None:
        from wdscli.loader import IndexedDataset, WebDataset

        good("split", *shards, "-o", tmp_path / "set-%d.tar")
        with pytest.warns(UserWarning, match=said):
            WebDataset(f"{tmp_path}/set-manifest.json", **options, empty_check=False)
        with pytest.warns(UserWarning, match=said):
            IndexedDataset(f"{tmp_path}/set-manifest.json", **options)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            WebDataset(f"{tmp_path}/set-manifest.json", where="size['seg.png'] > 0 or json.width > 10")
