"""Joins, against an oracle of plain dictionaries: which samples come out, in what order, with which fields, in which
bytes."""

from __future__ import annotations

import tarfile
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reorders import join
from shard_cases import Members, assert_true_set, members_of, no_new_files, outputs, tar_of
from tiers import examples
from waits import seconds_of

from wdscli.copy import copier
from wdscli.errors import DataError, UsageError
from wdscli.plan import join as matching
from wdscli.plan import survey
from wdscli.plan.cut import Cuts
from wdscli.plan.join import Join
from wdscli.plan.plan import make_plan
from wdscli.plan.request import Request
from wdscli.selection import Selection
from wdscli.selection.layers import lay_out
from wdscli.tar import build_header

Sample = tuple[str, dict[str, bytes]]
Set = list[Sample]


def oracle(sets: Sequence[Set], kind: str, policy: str = "error") -> Set:
    """What a join is, said with dictionaries. Raises KeyError for a conflict."""
    keys = list(dict(sets[0]))
    for more in sets[1:]:
        if kind == "inner":
            keys = [key for key in keys if key in dict(more)]
        if kind == "outer":
            keys += [key for key, _ in more if key not in keys]
    made: Set = []
    for key in keys:
        fields: dict[str, bytes] = {}
        for number, one in enumerate(sets, 1):
            fields = _beside(fields, dict(one).get(key, {}), number, policy)
        made.append((key, fields))
    return made


def _beside(fields: dict[str, bytes], more: dict[str, bytes], number: int, policy: str) -> dict[str, bytes]:
    if policy == "right":
        return {**fields, **more}
    whole = dict(fields)
    for field, payload in more.items():
        if field not in whole:
            whole[field] = payload
        elif policy == "suffix":
            new = f"{number}.{field}"
            if new in whole or new in more:
                raise KeyError(new)
            whole[new] = payload
        elif policy == "error":
            raise KeyError(field)
    return whole


def members(samples: Set) -> Members:
    return [(f"{key}.{field}", payload) for key, fields in samples for field, payload in fields.items()]


def write(folder: Path, sets: Sequence[Set], shards: int = 1, **how: Any) -> list[str]:
    """Each set as a folder of shards."""
    inputs = []
    for number, samples in enumerate(sets):
        place = folder / f"set{number}"
        place.mkdir(parents=True)
        bounds = [len(samples) * at // shards for at in range(shards + 1)]
        for at, (first, end) in enumerate(pairwise(bounds)):
            (place / f"{at}.tar").write_bytes(tar_of(members(samples[first:end]), **how))
        inputs.append(str(place))
    return inputs


def joined_bytes(folder: Path, inputs: Sequence[str], how: Join, **more: Any) -> bytes:
    join(Request(inputs, str(folder / "out.tar"), **{"jobs": 1, "allow_empty": True, **more}), how)
    return (folder / "out.tar").read_bytes()


KEYS = ["a", "b", "n01/c", "n01/d", "e" * 93, "long/" * 25 + "f"]
PAYLOADS = st.sampled_from([b"", b"1", b"2" * 511, b"3" * 512, b"4" * 513, b"5" * 3000])
FIELDS = st.dictionaries(
    st.sampled_from(["jpg", "txt", "seg.png", "2.txt"]), PAYLOADS, min_size=1, max_size=4
)
SETS = st.lists(
    st.dictionaries(st.sampled_from(KEYS), FIELDS, min_size=1)
    .map(lambda found: list(found.items()))
    .flatmap(st.permutations),
    min_size=2,
    max_size=3,
)
QUICK = settings(max_examples=examples(40), deadline=None, suppress_health_check=list(HealthCheck))


class TestOracle:
    @QUICK
    @given(
        SETS,
        st.sampled_from(["inner", "left", "outer"]),
        st.sampled_from(["error", "left", "right", "suffix"]),
    )
    def test_bytes_are_those_of_the_oracle(self, sets: list[Set], kind: Any, policy: Any) -> None:
        with tempfile.TemporaryDirectory() as name:
            inputs = write(Path(name), sets, shards=2)
            try:
                expected = oracle(sets, kind, policy)
            except KeyError as error:
                with pytest.raises(DataError) as raised:
                    joined_bytes(Path(name), inputs, Join(kind, policy))
                assert raised.value.code == "conflict"
                assert "field" in str(raised.value), error
                return
            assert joined_bytes(Path(name), inputs, Join(kind, policy)) == tar_of(members(expected))

    @QUICK
    @given(SETS, st.sampled_from(["inner", "left", "outer"]), st.sampled_from([1, 600, 5000]))
    def test_buffers_and_headers_do_not_show(self, sets: list[Set], kind: Any, buffer: int) -> None:
        with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
            patch.setattr(copier, "COPY_BUFFER_BYTES", buffer)
            patch.setattr(copier, "ROWS_PER_CHUNK", 6)
            inputs = write(Path(name), sets, format=tarfile.GNU_FORMAT, mtime=7, uname="me")
            expected = tar_of(members(oracle(sets, kind, "right")))
            assert joined_bytes(Path(name), inputs, Join(kind, "right")) == expected

    @pytest.mark.parametrize("kind", ["inner", "left", "outer"])
    def test_selected_fields_of_every_set(self, tmp_path: Path, kind: Any) -> None:
        sets: list[Set] = [
            [("a", {"jpg": b"1", "txt": b"2"}), ("b", {"jpg": b"3"})],
            [("b", {"txt": b"4", "cls": b"5"}), ("c", {"txt": b"6"}), ("a", {"cls": b"7"})],
        ]
        kept = [
            [
                (key, {"x" if f == "txt" else f: p for f, p in fields.items() if f != "cls"})
                for key, fields in one
            ]
            for one in sets
        ]
        kept = [[(key, fields) for key, fields in one if fields] for one in kept]
        selection = Selection.parse(drop="cls", rename=["x=txt"])
        found = joined_bytes(tmp_path, write(tmp_path, sets), Join(kind), selection=selection)
        assert found == tar_of(members(oracle(kept, kind)))


class TestLayout:
    def test_policies_are_those_of_the_later_part(self) -> None:
        layout = lay_out([(b"a",), (b"a", b"b"), (b"b",)], ["error", "left", "right"])
        assert [(slot.field, slot.part) for slot in layout.slots] == [(b"a", 0), (b"b", 2)]
        assert (len(layout.out), layout.replaced, len(layout.renamed)) == (2, 1, 0)

    def test_a_name_that_is_taken_is_no_suffix(self) -> None:
        for parts in ([(b"a", b"2.a"), (b"a",)], [(b"a",), (b"a", b"2.a")]):
            with pytest.raises(DataError, match=r'"2\.a" already'):
                lay_out(parts, ["error", "suffix"])

    def test_suffixes_are_the_numbers_of_sets(self) -> None:
        layout = lay_out([(b"a",), None, (b"a",), (b"a",)], ["error"] + ["suffix"] * 3)  # type: ignore[arg-type]
        assert [slot.field for slot in layout.slots] == [b"a", b"3.a", b"4.a"]


class TestMatching:
    @QUICK
    @given(
        st.lists(st.lists(st.integers(0, 9), unique=True), min_size=2, max_size=4),
        st.sampled_from(["inner", "left", "outer"]),
    )
    def test_rows_are_those_of_the_oracle(self, keys: list[list[int]], kind: Any) -> None:
        import numpy

        arrays = [numpy.array(some, dtype=numpy.uint64) for some in keys]
        rows = matching.match(arrays, kind)
        sets: list[Set] = [
            [(str(key), {f"s{number}": b"%d" % row}) for row, key in enumerate(some)]
            for number, some in enumerate(keys)
        ]
        found = [
            {f"s{number}": b"%d" % row for number, row in enumerate(one) if row >= 0}
            for one in zip(*(column.tolist() for column in rows), strict=True)
        ]
        assert found == [fields for _, fields in oracle(sets, kind)]

    @pytest.mark.exhaustive
    def test_the_time_for_many_keys_is_linear(self) -> None:
        import numpy

        keys = numpy.random.default_rng(0).permutation(300_000).astype(numpy.uint64)
        sets = [keys, keys[::-1].copy(), keys[:1000].copy()]
        rows = matching.match(sets, "left")
        few = [keys[:30_000] for keys in sets]
        assert seconds_of(lambda: matching.match(sets, "left")) < 40 * seconds_of(
            lambda: matching.match(few, "left")
        )
        assert (keys[::-1][rows[1]] == keys).all()
        assert int((rows[2] >= 0).sum()) == 1000


def small_sets() -> list[Set]:
    return [
        [(f"k{number}", {"jpg": b"j" * number * 100, "cls": b"%d" % number}) for number in range(40)],
        [(f"k{number}", {"txt": b"t%d" % number, "cls": b"x"}) for number in (*range(59, 5, -3), 4, 2)],
    ]


class TestTask:
    def test_junk_between_members_stays_out(self, tmp_path: Path) -> None:
        (tmp_path / "a.tar").write_bytes(
            tar_of([("k.a", b"1"), ("README", b"x"), ("k.b", b"2"), ("l.a", b"3")])
        )
        (tmp_path / "b.tar").write_bytes(
            tar_of([("l.c", b"4"), ("k.c", b"5"), ("dir/x", b"6"), ("k.d", b"7")])
        )
        found = joined_bytes(tmp_path, [f"{tmp_path}/a.tar", f"{tmp_path}/b.tar"], Join())
        names = [("k.a", b"1"), ("k.b", b"2"), ("k.c", b"5"), ("k.d", b"7"), ("l.a", b"3"), ("l.c", b"4")]
        assert found == tar_of(names)

    def test_pax_global_headers_apply_where_they_stand(self, tmp_path: Path) -> None:
        sets = small_sets()
        inputs = write(tmp_path, sets)
        for number in range(2):
            with tarfile.open(
                tmp_path / f"set{number}" / "0.tar",
                "w",
                format=tarfile.PAX_FORMAT,
                pax_headers={"comment": "c"},
            ) as tar:
                for name, payload in members(sets[number]):
                    info = tarfile.TarInfo(name)
                    info.size = len(payload)
                    import io

                    tar.addfile(info, io.BytesIO(payload))
        (tmp_path / "set1" / "1.tar").write_bytes(
            tar_of([("k0.txt", b"0"), ("k1.txt", b"1"), ("k3.txt", b"3")])
        )
        sets[1] += [(f"k{number}", {"txt": b"%d" % number}) for number in (0, 1, 3)]
        (tmp_path / "set0" / "0.tar").write_bytes(tar_of(members(sets[0])))
        found = joined_bytes(tmp_path, inputs, Join("outer", "left"))
        assert found == tar_of(members(oracle(sets, "outer", "left")))

    def test_samples_larger_than_the_buffer(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        big = bytes(range(256)) * 4000
        sets: list[Set] = [
            [("a", {"x": big}), ("b", {"x": b"1"}), ("c", {"x": big[:300_000]})],
            [("c", {"y": big[:300_000]}), ("b", {"y": big, "x": big}), ("a", {"y": b"2"})],
        ]
        monkeypatch.setattr(copier, "COPY_BUFFER_BYTES", 1 << 19)
        found = joined_bytes(tmp_path, write(tmp_path, sets), Join("inner", "suffix"))
        assert found == tar_of(members(oracle(sets, "inner", "suffix")))

    @pytest.mark.parametrize("drop", ["cls", None])
    def test_padding_that_is_not_zero_does_not_show(self, tmp_path: Path, drop: str | None) -> None:
        sets = small_sets()
        sets = [sets[0], [(key, {"txt": fields["txt"]}) for key, fields in sets[1]]]
        inputs = write(tmp_path, sets)
        path = tmp_path / "set0" / "0.tar"
        data = bytearray(path.read_bytes())
        end = data.index(b"j" * 200 + bytes(312)) + 200
        data[end : end + 312] = b"z" * 312
        path.write_bytes(data)
        if drop:
            sets = [
                [(key, {f: p for f, p in fields.items() if f != drop}) for key, fields in sets[0]][1:],
                sets[1],
            ]
        found = joined_bytes(tmp_path, inputs, Join(), selection=Selection.parse(drop=drop))
        assert found == tar_of(members(oracle(sets, "inner")))

    @pytest.mark.parametrize("buffer", [1 << 19, 1])
    @pytest.mark.parametrize(
        "names",
        [("b.x", "b.y"), ("a.y", "a.y"), ("a.x", "a.x")],
        ids=["other keys", "a conflict", "the other conflict"],
    )
    def test_what_was_changed_in_both(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, str], buffer: int
    ) -> None:
        from wdscli.run.execute import run_plan

        monkeypatch.setattr(copier, "COPY_BUFFER_BYTES", buffer)
        inputs = write(tmp_path, [[("a", {"x": b"1"})], [("a", {"y": b"3"})]])
        plan = make_plan(Request(inputs, str(tmp_path / "out.tar"), jobs=1), Join())
        for number, name in enumerate(names):
            (tmp_path / f"set{number}" / "0.tar").write_bytes(tar_of([(name, b"1")]))
        with pytest.raises(DataError, match="differs from the planned sample"):
            run_plan(plan)
        assert outputs(tmp_path, "out*") == []

    def test_members_that_end_elsewhere(self, tmp_path: Path) -> None:
        """The parts together have the same bytes and the same key, but the first goes on in what was the second."""
        from wdscli.run.execute import run_plan

        sets: list[Set] = [[("a", {"x": b"1"})], [("a", {"y": b"2" * 1000, "z": b"3"})]]
        inputs = write(tmp_path, sets)
        plan = make_plan(Request(inputs, str(tmp_path / "out.tar"), jobs=1), Join("inner", "suffix"))
        header = build_header(b"a.x", 512 + 512 + 512)
        (tmp_path / "set0" / "0.tar").write_bytes((header + b"1" * 512).ljust(10_240, b"\0"))
        with pytest.raises(DataError, match="differs from the planned sample"):
            run_plan(plan)

    def test_a_member_that_went_to_the_next_sample(self, tmp_path: Path) -> None:
        from wdscli.run.execute import run_plan

        sets: list[Set] = [[("a", {"x": b"1", "y": b"2"}), ("b", {"x": b"3"})], [("c", {"z": b"4"})]]
        inputs = write(tmp_path, sets)
        plan = make_plan(Request(inputs, str(tmp_path / "out.tar"), jobs=1), Join("outer"))
        (tmp_path / "set0" / "0.tar").write_bytes(tar_of([("a.x", b"1"), ("b.y", b"2"), ("b.x", b"3")]))
        with pytest.raises(DataError, match="sample 0 differs from the planned sample"):
            run_plan(plan)

    @pytest.mark.parametrize("length", range(92, 98))
    def test_a_suffix_may_need_a_longer_header(self, tmp_path: Path, length: int) -> None:
        sets: list[Set] = [
            [("e" * length, {"txt": b"1"}), ("b", {"txt": b""})],
            [("b", {"txt": b"2"}), ("e" * length, {"txt": b"3" * 600})],
        ]
        found = joined_bytes(tmp_path, write(tmp_path, sets), Join("inner", "suffix"))
        assert found == tar_of(members(oracle(sets, "inner", "suffix")))

    def test_empty_shards_and_sets(self, tmp_path: Path) -> None:
        for number, sets in enumerate([[[], []], [[("a", {"x": b"1"})], []], [[], [("a", {"x": b"1"})]]]):
            for kind in ("inner", "left", "outer"):
                folder = tmp_path / f"{number}{kind}"
                found = joined_bytes(folder, write(folder, sets, shards=2), Join(kind, "left"))  # type: ignore[arg-type]
                assert found == tar_of(members(oracle(sets, kind)))  # type: ignore[arg-type]

    def test_a_key_that_was_changed_after_the_plan(self, tmp_path: Path) -> None:
        from wdscli.run.execute import run_plan

        sets: list[Set] = [[("a", {"x": b"1"}), ("b", {"x": b"2"})], [("b", {"y": b"3"}), ("a", {"y": b"4"})]]
        inputs = write(tmp_path, sets)
        plan = make_plan(Request(inputs, str(tmp_path / "out.tar"), jobs=1), Join())
        sets[1][1] = ("c", {"y": b"4"})
        (tmp_path / "set1" / "0.tar").write_bytes(tar_of(members(sets[1])))
        with no_new_files(tmp_path), pytest.raises(DataError) as raised:
            run_plan(plan)
        assert raised.value.code == "changed"
        assert (raised.value.shard, raised.value.offset) == (f"{inputs[1]}/0.tar", 1024)

    def test_two_keys_of_one_hash_are_never_joined(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for module in (survey, copier):
            monkeypatch.setattr(module, "hash_key", len)
        monkeypatch.setattr(matching, "second_hash", lambda key, seed: len(key))
        sets: list[Set] = [
            [("a", {"x": b"1"}), ("ccc", {"x": b"2"})],
            [("b", {"y": b"3"}), ("ccc", {"y": b"4"})],
        ]
        inputs = write(tmp_path, sets)
        with no_new_files(tmp_path), pytest.raises(DataError, match='"a" and "b" have the same') as raised:
            joined_bytes(tmp_path, inputs, Join())
        assert raised.value.code == "hash-collision"
        monkeypatch.setattr(copier, "COPY_BUFFER_BYTES", 1)
        with pytest.raises(DataError, match='"a" and "b" have the same'):
            joined_bytes(tmp_path, inputs, Join())

    @pytest.mark.parametrize("kind", ["inner", "left", "outer"])
    @pytest.mark.parametrize("with_index", [False, True])
    def test_keys_of_one_hash_are_told_apart(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Any, with_index: bool
    ) -> None:
        from indexing import index

        for module in (survey, copier):
            monkeypatch.setattr(module, "hash_key", lambda key: len(key) // 9)
        sets: list[Set] = [
            [("a", {"x": b"1"}), ("b", {"x": b"2"}), ("c", {"x": b"3"}), ("long-enough", {"x": b"4"})],
            [("d", {"y": b"5"}), ("c", {"y": b"6"}), ("long-as-well", {"y": b"7"}), ("a", {"y": b"8"})],
            [("c", {"z": b"9"}), ("d", {"z": b"10"}), ("e", {"z": b"11"})],
        ]
        inputs = write(tmp_path, sets)
        for one in inputs if with_index else ():
            index([one])
        found = joined_bytes(tmp_path, inputs, Join(kind))
        assert found == tar_of(members(oracle(sets, kind)))

    @pytest.mark.exhaustive
    def test_jobs_and_indexes_do_not_show(self, tmp_path: Path) -> None:
        from indexing import index

        sets = small_sets()
        made: set[bytes] = set()
        for number, (jobs, with_index) in enumerate([(1, False), (2, False), (5, True), (1, True)]):
            folder = tmp_path / str(number)
            inputs = write(folder, sets, shards=3)
            for one in inputs if with_index else ():
                index([one])
            request = Request(inputs, str(folder / "out-%d.tar"), cuts=Cuts(max_count=17), jobs=jobs)
            join(request, Join("outer", "suffix"))
            assert_true_set(folder)
            made.add(b"".join(path.read_bytes() for path in outputs(folder)))
        assert len(made) == 1
        found = [one for path in outputs(tmp_path / "0") for one in members_of(path)]
        assert found == members(oracle(sets, "outer", "suffix"))

    def test_no_shard_is_larger_than_its_limit(self, tmp_path: Path) -> None:
        for limit in (3000, 10_240, 20_000):
            folder = tmp_path / str(limit)
            inputs = write(folder, small_sets())
            report = join(
                Request(inputs, str(folder / "out-%d.tar"), cuts=Cuts(max_size=limit), jobs=1),
                Join("outer", "suffix"),
            )
            sizes = [shard.size_bytes for shard in report.manifest.shards if shard.samples > 1]
            assert max(sizes, default=0) <= limit


class TestReport:
    def test_counts(self, tmp_path: Path) -> None:
        sets = small_sets()
        report = join(Request(write(tmp_path, sets), str(tmp_path / "o.tar"), jobs=1), Join("left", "right"))
        common = len(dict(sets[0]).keys() & dict(sets[1]).keys())
        found = report.joined
        assert found is not None
        assert found.matched == found.partners == found.replaced == common
        assert found.unmatched == (len(sets[0]) - common, len(sets[1]) - common)
        assert report.dropped == {"no-partner": len(sets[1]) - common}
        assert report.samples_in == report.samples + found.partners + sum(report.dropped.values())

    def test_counts_of_what_is_left_out_and_renamed(self, tmp_path: Path) -> None:
        sets = small_sets()
        counts = []
        for policy in ("left", "suffix"):
            folder = tmp_path / policy
            report = join(
                Request(write(folder, sets), str(folder / "o.tar"), jobs=1),
                Join("outer", policy),  # type: ignore[arg-type]
            )
            assert report.joined is not None
            counts.append((report.joined.replaced, report.joined.left_out, report.joined.renamed))
            assert report.dropped == {}
        common = len(dict(sets[0]).keys() & dict(sets[1]).keys())
        assert counts == [(0, common, 0), (0, 0, common)]


class TestRefused:
    def test_the_first_conflict_is_told(self, tmp_path: Path) -> None:
        sets: list[Set] = [
            [("k0", {"x": b"1"}), ("k1", {"x": b"2"})],
            [("k1", {"x": b"3"}), ("k0", {"x": b"4", "z": b"5"})],
        ]
        with pytest.raises(DataError, match='sample "k0" has a field "x" in two sets'):
            joined_bytes(tmp_path, write(tmp_path, sets), Join())

    def test_one_set(self, tmp_path: Path) -> None:
        inputs = write(tmp_path, [[("a", {"x": b"1"})]])
        with pytest.raises(UsageError, match="two sets"):
            joined_bytes(tmp_path, inputs, Join())

    @pytest.mark.parametrize(
        "more",
        [{"rekey": "{key}-{index}"}, {"on_duplicate": "rekey"}],
        ids=lambda more: next(iter(more)),
    )
    def test_what_a_join_cannot_do(self, tmp_path: Path, more: dict[str, Any]) -> None:
        with pytest.raises(UsageError, match="a join"):
            joined_bytes(tmp_path, write(tmp_path, small_sets()), Join(), **more)

    @pytest.mark.parametrize("text", [{"where": "index > 3"}, {"slice": "1:"}], ids=str)
    def test_an_outer_join_of_chosen_samples(self, tmp_path: Path, text: dict[str, Any]) -> None:
        with pytest.raises(UsageError, match="outer"):
            joined_bytes(
                tmp_path, write(tmp_path, small_sets()), Join("outer"), selection=Selection.parse(**text)
            )

    def test_lengths_are_not_taken_where_nobody_needs_them(self, tmp_path: Path, monkeypatch: Any) -> None:
        monkeypatch.setattr(matching.Shapes, "_blocks", None)
        sets: list[Set] = [[("a", {"x": b"1"})], [("a", {"y": b"1"})]]
        assert joined_bytes(tmp_path, write(tmp_path, sets), Join()) == tar_of([("a.x", b"1"), ("a.y", b"1")])
