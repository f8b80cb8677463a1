"""Which samples and which fields: every option, alone and together, over files and streams."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wdscli.errors import DataError, InputError, UsageError
from wdscli.samples import SampleBatch, iter_batches
from wdscli.selection import Selection, SelectionState, Walk
from wdscli.selection.language import FUNCTIONS, TEXT_METHODS
from wdscli.selection.reading import MemberReader
from wdscli.storage import Source, open_source
from wdscli.tar import TarWriter

Samples = list[tuple[str, dict[str, bytes]]]

SAMPLES: Samples = [
    ("n01/a", {"jpg": b"x" * 10, "json": b'{"width": 100, "tags": ["cat"], "_id": 1}', "cls": b"0"}),
    ("n01/b", {"jpg": b"x" * 20, "json": b'{"width": 600, "height": 300, "nothing": null}', "cls": b"1\n"}),
    ("n02/c", {"png": b"x" * 30, "seg.png": b"y" * 5, "txt": "größer".encode(), "cls": b"dog"}),
    ("n02/d", {"jpg": b"x" * 40, "txt": b"a small cat", "cls": b"-1"}),
    ("n02/e", {"jpg": b"x" * 50, "json": b'["a list"]'}),
]
KEYS = [key for key, _ in SAMPLES]


def tar_of(samples: Samples) -> bytes:
    out = io.BytesIO()
    with TarWriter(out) as tar:
        for key, fields in samples:
            for field, payload in fields.items():
                tar.add(f"{key}.{field}".encode("utf-8", "surrogateescape"), payload)
    return out.getvalue()


@pytest.fixture
def shard(tmp_path: Path) -> str:
    path = tmp_path / "a.tar"
    path.write_bytes(tar_of(SAMPLES))
    return str(path)


def iter_selected(
    source: Source, selection: Selection, state: SelectionState, indexed: list[SampleBatch] | None = None
) -> Iterator[tuple[SampleBatch, list[int]]]:
    return Walk(selection, state, MemberReader(source, selection.payload_fields)).chosen(indexed)


def choose(shard: str, state: SelectionState | None = None, **options: Any) -> list[str]:
    """The keys that the options select; the same from a file, from a stream and with a selection that was pickled."""
    found = []
    for address in (shard, f"pipe:cat '{shard}'"):
        selection = pickle.loads(pickle.dumps(Selection.parse(**options)))
        counts = state or selection.new_state()
        with open_source(address) as source:
            batches = list(iter_selected(source, selection, counts))
        found.append([batch.keys[row].decode() for batch, rows in batches for row in rows])
        assert counts.seen_samples == counts.kept + sum(counts.dropped.values())
        if state is not None:
            return found[0]
    assert found[0] == found[1]
    return found[0]


def plan(sample: str, /, **options: Any) -> str:
    """What stays of a ``sample``, as ``place:name``."""
    names = tuple(sample.encode().split())
    return " ".join(
        f"{place}:{name.decode()}" for place, name in Selection.parse(**options).member_plan(names)
    )


# Nothing selected


def test_no_option_selects_everything_and_asks_for_nothing(shard: str) -> None:
    selection = Selection.parse()
    assert selection.is_trivial
    assert not (selection.changes_members)
    assert not selection.payload_fields
    assert not (selection.reads_stdin)
    assert choose(shard) == KEYS
    assert selection.member_plan((b"jpg", b"cls")) == ((0, b"jpg"), (1, b"cls"))


@pytest.mark.parametrize(
    "options",
    [
        {"fields": "jpg"},
        {"drop": "jpg"},
        {"rename": ["a=b"]},
        {"keys": ["a"]},
        {"where": "1"},
        {"slice": ":"},
        {"limit": 9},
    ],
)
def test_any_option_makes_it_more_than_trivial(options: dict[str, Any]) -> None:
    assert not Selection.parse(**options).is_trivial
    changes = bool({"fields", "drop", "rename"} & set(options))
    assert Selection.parse(**options).changes_members is changes


def test_options_that_were_not_given_are_none_or_empty() -> None:
    names = ("fields", "drop", "rename", "keys", "keys_from", "where", "slice", "limit")
    assert Selection.parse(**dict.fromkeys(names)).is_trivial
    assert Selection.parse(fields=[], drop=[], rename=[], keys=[]).is_trivial


# Fields


@pytest.mark.parametrize(
    ("options", "left"),
    [
        ({"fields": "jpg"}, "0:jpg"),
        ({"fields": ["jpg", "cls"]}, "0:jpg 2:cls"),
        ({"fields": "cls,jpg"}, "0:jpg 2:cls"),
        ({"fields": ".jpg"}, "0:jpg"),
        ({"fields": "*png"}, "1:seg.png"),
        ({"fields": "JPG"}, ""),
        ({"drop": "seg.*"}, "0:jpg 2:cls"),
        ({"drop": ["jpg", "cls"]}, "1:seg.png"),
        ({"fields": "j*,c*", "drop": "cls"}, "0:jpg"),
        ({"rename": ["image=jpg"]}, "0:image 1:seg.png 2:cls"),
        ({"rename": ["image=png;jpg"]}, "0:image 1:seg.png 2:cls"),
        ({"rename": ["jpg=cls", "cls=jpg"]}, "0:cls 1:seg.png 2:jpg"),
        ({"rename": ["image=jpg"], "fields": "jpg"}, "0:image"),
        ({"rename": ["image=jpg"], "fields": "image"}, "0:image"),
        ({"rename": ["image=jpg"], "drop": "image"}, "1:seg.png 2:cls"),
        ({"rename": ["jpg=cls", "cls=jpg"], "fields": "jpg"}, "0:cls"),
        ({"rename": ["cls=jpg"], "drop": "cls"}, "0:cls 1:seg.png"),
    ],
)
def test_which_members_stay_and_what_they_are_called(options: dict[str, Any], left: str) -> None:
    assert plan("jpg seg.png cls", **options) == left


def test_the_first_alternative_that_is_there_is_renamed_and_others_keep_their_names() -> None:
    assert plan("png jpg", rename=["image=jpg;png"]) == "0:png 1:image"


def test_a_field_that_is_there_already_is_an_error_with_its_place(shard: str) -> None:
    with open_source(shard) as source, pytest.raises(DataError, match='field "cls" already') as error:
        selection = Selection.parse(rename=["cls=jpg"])
        list(iter_selected(source, selection, selection.new_state()))
    assert (error.value.code, error.value.shard, error.value.offset) == ("duplicate-field", shard, 0)
    assert "n01/a" in str(error.value)
    assert plan("jpg cls", rename=["cls=jpg"], fields="jpg") == "0:cls"


def test_a_sample_left_with_no_member_is_dropped_and_counted(shard: str) -> None:
    state = SelectionState()
    assert choose(shard, state, fields="png", limit=2) == ["n02/c"]
    assert state.dropped == {"no-fields": 4}
    assert choose(shard, fields="jpg", slice="2:3") == ["n02/d"]


@pytest.mark.parametrize(
    "options",
    [
        {"fields": "jpg,,cls"},
        {"fields": ""},
        {"drop": ","},
        {"rename": ["jpg"]},
        {"rename": ["=jpg"]},
        {"rename": ["image="]},
        {"rename": ["a/b=jpg"]},
        {"rename": ["a=jpg", "a=png"]},
        {"rename": ["a=jpg", "b=jpg"]},
    ],
)
def test_names_that_cannot_mean_anything(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Selection.parse(**options)


# Keys


@pytest.mark.parametrize(
    ("globs", "left"),
    [
        (["n01/*"], "a b"),
        (["*/c"], "c"),
        (["*c"], "c"),
        (["n01/a"], "a"),
        (["n01/a", "n02/[ce]"], "a c e"),
        (["N01/*"], ""),
        (["n01"], ""),
        (["n0?/a"], "a"),
    ],
)
def test_keys_by_glob(shard: str, globs: list[str], left: str) -> None:
    assert [key[-1] for key in choose(shard, keys=globs)] == left.split()


@given(st.text(alphabet="ab*?[]!/é\n", max_size=6), st.text(alphabet="ab*[]/é\n", max_size=6))
def test_a_glob_means_what_fnmatch_says(glob: str, key: str) -> None:
    if glob:
        rule = Selection.parse(keys=[glob]).key_rule
        assert rule is not None
        assert rule.matches(key.encode(), set()) == fnmatchcase(key, glob)


def test_keys_from_a_file(shard: str, tmp_path: Path) -> None:
    listed = tmp_path / "keys"
    listed.write_bytes(b"n02/d\r\n\n  \nn01/a\nnot/there\nn01/a\nnor/this")
    state = SelectionState()
    selection = Selection.parse(keys_from=str(listed))
    assert choose(shard, state, keys_from=str(listed)) == ["n01/a", "n02/d"]
    assert selection.remarks(state) == [f"2 keys of {listed} not found: not/there, nor/this"]
    assert choose(shard, keys_from=str(listed), keys=["n01/*"]) == ["n01/a"]


def test_keys_that_a_file_leaves_out(shard: str, tmp_path: Path) -> None:
    everything = choose(shard)
    (tmp_path / "gone").write_text("n01/a\nnot/there\n")
    state, options = SelectionState(), {"not_keys_from": str(tmp_path / "gone")}
    assert choose(shard, state, **options) == [key for key in everything if key != "n01/a"]
    assert state.dropped == {"not-keys": 1}
    assert Selection.parse(**options).remarks(state) == [f"1 key of {tmp_path}/gone not found: not/there"]
    (tmp_path / "kept").write_text("n01/a\nn02/d\n")
    assert choose(shard, keys_from=str(tmp_path / "kept"), **options) == ["n02/d"]
    with pytest.raises(UsageError):
        Selection.parse(keys_from="-", not_keys_from="-")


def test_a_share_of_the_samples_by_key_and_seed(tmp_path: Path) -> None:
    keys = [f"k{number}" for number in range(400)]
    shards = [str(tmp_path / name) for name in ("a.tar", "b.tar")]
    for path, some in zip(shards, (keys, keys[::-1]), strict=True):
        Path(path).write_bytes(tar_of([(key, {"x": b""}) for key in some]))
    one = choose(shards[0], where="rand() < 0.25")
    assert sorted(one) == sorted(choose(shards[1], where="rand() < 0.25"))
    assert 60 < len(one) < 140
    assert one != choose(shards[0], where="rand(7) < 0.25")
    tenths = [choose(shards[0], where=f"hash(key) % 10 == {rest}") for rest in range(10)]
    assert sorted(key for tenth in tenths for key in tenth) == sorted(keys)
    assert tenths[0] != choose(shards[0], where="hash(key, 1) % 10 == 0")


def test_no_key_is_missed_when_a_limit_ended_the_search(shard: str, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("n01/a\nzz")
    state = SelectionState()
    choose(shard, state, keys_from=str(tmp_path / "keys"), limit=1)
    assert Selection.parse(keys_from=str(tmp_path / "keys")).remarks(state) == []


def test_keys_that_are_not_utf8_are_compared_as_bytes(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(tar_of([("b\udcff", {"x": b""}), ("bü", {"x": b""})]))
    (tmp_path / "keys").write_bytes(b"b\xff\n")
    selection = Selection.parse(keys_from=str(tmp_path / "keys"))
    with open_source(str(tmp_path / "a.tar")) as source:
        ((batch, rows),) = iter_selected(source, selection, selection.new_state())
    assert [batch.keys[row] for row in rows] == [b"b\xff"]


def test_a_key_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        Selection.parse(keys_from=str(tmp_path / "none"))
    with pytest.raises(UsageError):
        Selection.parse(keys=[""])


# Slice and limit


@pytest.mark.parametrize(
    "text", [":", "::", "1:", ":3", "1:4", "::2", "1::2", "0:5:3", "4:2", "9:", ":0", " 1 : 3 "]
)
def test_a_slice_means_what_it_means_in_python(shard: str, text: str) -> None:
    assert choose(shard, slice=text) == KEYS[slice(*[int(p) if p.strip() else None for p in text.split(":")])]


@pytest.mark.parametrize("text", ["", "3", "-1:", "1:2:0", "1:2:3:4", "a:b", "1.5:", "::-1", "²:"])
def test_what_is_no_slice(text: str) -> None:
    with pytest.raises(UsageError, match="slice"):
        Selection.parse(slice=text)


@pytest.mark.parametrize("limit", [0, 1, 3, 5, 6])
def test_limit(shard: str, limit: int) -> None:
    state = SelectionState()
    assert choose(shard, limit=limit) == KEYS[:limit]
    assert len(choose(shard, state, limit=limit, slice="1:")) == min(limit, 4)


def test_a_limit_that_cannot_be() -> None:
    with pytest.raises(UsageError):
        Selection.parse(limit=-1)


def test_the_count_goes_on_from_shard_to_shard(shard: str) -> None:
    selection = Selection.parse(slice="3:9:2", limit=2)
    state = selection.new_state()
    found = []
    for _ in range(3):
        with open_source(shard) as source:
            found += [
                batch.keys[row] for batch, rows in iter_selected(source, selection, state) for row in rows
            ]
    assert found == [b"n02/d", b"n01/a"]
    assert state.done
    assert (state.seen_samples, state.kept, state.dropped) == (6, 2, {"slice": 4})


def test_options_take_hold_in_one_order(shard: str) -> None:
    assert choose(shard, keys=["n02/*"], where="size.jpg > 0", slice="1:", limit=1) == ["n02/e"]


def test_reading_stops_when_nothing_more_can_be_selected(tmp_path: Path) -> None:
    cut = tmp_path / "cut.tar"
    cut.write_bytes(tar_of(SAMPLES * 1000)[:-5000])
    assert choose(str(cut), SelectionState(), slice="1:3") == KEYS[1:3]
    assert choose(str(cut), SelectionState(), where="len(txt) > 0", limit=1) == ["n02/c"]
    with pytest.raises(DataError):
        choose(str(cut), SelectionState(), keys=["none"])


# Expressions


@pytest.mark.parametrize(
    ("expression", "left"),
    [
        ("key == 'n01/a'", "a"),
        ("key.startswith('n01/')", "a b"),
        ("'n02' in key and not key.endswith('e')", "c d"),
        ("'a.tar' in shard", "a b c d e"),
        ("index >= 3", "d e"),
        ("index % 2 == 0", "a c e"),
        ("size.jpg > 20", "d e"),
        ("size['seg.png'] == 5", "c"),
        ("20 < size.jpg <= 40", "d"),
        ("sum(size) >= 60", "b e"),
        ("'png' in fields", "c"),
        ("len(fields) == 4", "c"),
        ("'png' in size or size.jpg == 10", "a c"),
        ("json.width >= 512 and size.jpg < 1e6", "b"),
        ("json['width'] == 100", "a"),
        ("json._id == 1", "a"),
        ("json.tags[0] == 'cat'", "a"),
        ("json[0] == 'a list'", "e"),
        ("'height' in json", "b"),
        ("'dog' in json.tags", ""),
        ("json.width / json.height == 2", "b"),
        ("json.nothing is None", "b"),
        ("json.nothing > 1", ""),
        ("get(json, 'height', 7) == 7", "a e"),
        ("cls == 0 or cls == 1", "a b"),
        ("cls in [1, -1]", "b d"),
        ("cls in ('dog', 5)", "c"),
        ("str(cls).isalpha()", "c"),
        ("len(txt) == 6", "c"),
        ("lines(txt) == 1", "c d"),
        ("lines(json) >= 1 and len(json) == 1", "e"),
        ("len(no.such.field) > 0", ""),
        ("txt.lower().count('cat') > 0", "d"),
        ("like(key, 'n0?/[ab]')", "a b"),
        ("search('^n0[2-9]', key)", "c d e"),
        (r"search('^n\d+/a', key)", "a"),
        ("1 if 'txt' in fields else 0", "c d"),
        ("index == round(1.4) or index == max(2, 1) * 2", "b e"),
        ("key[-1] in {'a', 'd'}", "a d"),
        ("key.split('/')[1] == 'b'", "b"),
        ("index > 0 and 1 / index > 0.4", "b c"),
        ("False", ""),
    ],
)
def test_expressions(shard: str, expression: str, left: str) -> None:
    assert [key[-1] for key in choose(shard, where=expression)] == left.split()


def test_what_a_sample_lacks_makes_the_whole_expression_false(shard: str) -> None:
    assert choose(shard, where="not json.hidden") == []
    assert choose(shard, where="json.hidden == 1 or True") == []
    assert choose(shard, where="'json' in fields and 'hidden' in json or index == 4") == ["n02/e"]


@pytest.mark.parametrize(
    ("expression", "told"),
    [
        ("", "empty"),
        ("1 +", "cannot be read"),
        ("json.width = 3", "cannot be read"),
        ("import os", "cannot be read"),
        ("json.lang is 'en'", "`is` does not compare values"),
        ("json.width is not 5", "`is` does not compare values"),
        ("lenn(txt)", "no such function: lenn"),
        ("len > 3", "len is a function"),
        ("key('a')", "no such function: key"),
        ("key.jpg == 1", "key has no .jpg"),
        ("key.lower == 'a'", "key has no .lower"),
        ("key.__class__", "__class__"),
        ("().__class__.__bases__", "__bases__"),
        ("json.__init__.__globals__ == 1", "__globals__"),
        ("key.format(1)", "no such method: .format"),
        ("key.replace('n', 'm' * 100)", "no such method: .replace"),
        ("key.ljust(10**9)", "no such method: .ljust"),
        ("json.get('a')", "no such method: .get"),
        ("json.items()", "no such method: .items"),
        ("size.jpg & 1", "& is not allowed"),
        ("~index", "~ is not allowed"),
        ("1 << 9999", "LShift is not allowed"),
        ("lambda: 1", "Lambda is not allowed"),
        ("[x for x in fields]", "ListComp is not allowed"),
        ("[1 for key in fields]", "ListComp is not allowed"),
        ("f'{key:>1000000000}'", "JoinedStr is not allowed"),
        ("(lambda: 1)()", "Lambda is not allowed"),
        ("(key := 'a')", "NamedExpr is not allowed"),
        ("len(*fields)", "Starred is not allowed"),
        ("eval('1')", "no such function: eval"),
        ("__import__('os')", "no such function: __import__"),
        ("(" * 500 + "1" + ")" * 500, "cannot be read"),
        ("1" + " + 1" * 5000, "longer than"),
    ],
)
def test_what_no_expression_may_say_is_told_before_anything_is_read(expression: str, told: str) -> None:
    with pytest.raises(UsageError) as error:
        Selection.parse(where=expression)
    assert told in error.value.message


@pytest.mark.parametrize(
    "expression",
    [
        "9 ** 999999 > 1",
        "'a' * 1000000000 == key",
        "('a' * 99999 + 'b' * 99999) == key",
        "round(index, -1000000000) == 1",
        "search('(', key)",
        "[1] * 1000000000 == fields",
    ],
)
def test_what_would_take_forever_is_refused(shard: str, expression: str) -> None:
    with pytest.raises(UsageError):
        choose(shard, where=expression)


def test_text_is_never_formatted(shard: str) -> None:
    with pytest.raises(DataError):
        choose(shard, where="'%1000000000d' % index == key")


def test_a_hint_says_what_was_meant() -> None:
    for expression, hint in [("lem(txt)", "len"), ("json.get('a')", "get(json")]:
        with pytest.raises(UsageError) as error:
            Selection.parse(where=expression)
        assert hint in (error.value.hint or "")


def test_functions_and_methods_are_plain() -> None:
    assert not {"eval", "exec", "open", "getattr", "type", "vars"} & set(FUNCTIONS)
    assert (
        not {"format", "format_map", "replace", "join", "ljust", "center", "zfill", "expandtabs"}
        & TEXT_METHODS
    )


@given(st.text(max_size=40))
def test_any_text_is_an_expression_or_a_usage_error(text: str) -> None:
    with contextlib.suppress(UsageError):
        Selection.parse(where=text)


BROKEN: Samples = [
    ("a", {"json": b"{", "cls": b"1"}),
    ("b", {"json": b'{"n": "7"}', "cls": b"\xff"}),
    ("c", {"json": b'{"n": 8}', "cls": b"1"}),
]


@pytest.mark.parametrize(
    ("expression", "member", "kept"),
    [
        ("json.n > 1", "a.json", "c"),
        ("cls == 1", "b.cls", "a c"),
        ("index != 0 and json.n > 7", "b", "c"),
        ("1 / index > 0.4", "a", "b c"),
        ("7 % (index - 1) >= 0", "b", "a c"),
        ("2.0 ** (index * 2000) > 0", "b", "a"),
        ("round(1e308 * (1 + index * 10)) > 0", "b", "a"),
        ("index == 1 or cls.startswith('c')", "a", "b"),
    ],
)
def test_what_cannot_be_decoded_or_compared(tmp_path: Path, expression: str, member: str, kept: str) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(tar_of(BROKEN))
    with pytest.raises(DataError) as error:
        choose(str(path), where=expression)
    found = error.value
    assert (found.code, found.shard, found.member) == ("undecodable", str(path), member)
    assert found.offset is not None
    state = Selection.parse(where=expression).new_state("skip")
    assert choose(str(path), state, where=expression) == kept.split()
    assert state.dropped["undecodable"] >= 1


def test_payloads_are_asked_for_only_when_the_expression_comes_to_them(shard: str) -> None:
    asked = []

    def payload_of(row: int, field: bytes) -> bytes:
        asked.append((row, field))
        return b"{}"

    selection = Selection.parse(where="index == 1 and 'a' in json and 'b' in json or cls == 5")
    assert selection.payload_fields == {b"json", b"cls"}
    with open_source(shard) as source:
        for batch in iter_batches(source):
            selection.apply(batch, shard, selection.new_state(), payload_of)
    assert [row for row, field in asked if field == b"json"] == [1]
    assert len([row for row, field in asked if field == b"cls"]) == 4


def test_payloads_of_a_stream_survive_the_seams_of_its_buffers(tmp_path: Path) -> None:
    samples: Samples = [
        (f"{n:04}", {"json": b'{"n": %d}' % n, "jpg": b"x" * (n * 7919 % 300_000)}) for n in range(60)
    ]
    path = tmp_path / "a.tar"
    path.write_bytes(tar_of(samples))
    assert choose(str(path), where="json.n % 7 == 3") == [f"{n:04}" for n in range(3, 60, 7)]


def test_a_huge_payload_is_not_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wdscli.selection.reading.MAX_LOOKED_INTO_BYTES", 100)
    path = tmp_path / "a.tar"
    path.write_bytes(tar_of([("a", {"txt": b"x" * 101})]))
    for address in (str(path), f"pipe:cat {path}"):
        selection = Selection.parse(where="len(txt) > 1")
        with open_source(address) as source, pytest.raises(DataError, match="too large to decode"):
            list(iter_selected(source, selection, selection.new_state()))


def test_batches_from_elsewhere_are_used(shard: str) -> None:
    with open_source(shard) as source:
        known = list(iter_batches(source))
    assert sum(len(batch.keys) for batch in known) == 5
    selection = Selection.parse(where="json.width == 600")
    with open_source(shard) as source:
        found = list(iter_selected(source, selection, selection.new_state(), known))
    assert [batch.keys[row] for batch, rows in found for row in rows] == [b"n01/b"]


def test_nothing_heavy_is_imported_before_it_is_needed() -> None:
    code = (
        "import sys; from wdscli.selection import Selection; Selection.parse(limit=1, slice='1:');"
        "print(*{'simpleeval', 'fnmatch', 'numpy', 'fsspec', 'json', 'difflib'} & set(sys.modules));"
        "Selection.parse(keys=['a']); print('simpleeval' in sys.modules)"
    )
    # -S: what site-packages load at start (editable installs) is not ours.
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": os.getcwd()},
    )
    assert done.stdout.split() == ["False"]
