"""Filters at the level of the index: what they keep, what they read, what they change of the set's identity."""

from __future__ import annotations

import pickle
import warnings
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from awkward_sets import write_awkward
from indexing import index
from loader_sets import Reads, oracle, serve, write_set
from storage_servers import web_server
from xxhash import xxh3_128

from wdscli.errors import DataError, InputError, UsageError
from wdscli.loader import IndexedDataset, WebDataset
from wdscli.loader.read import selected as filters
from wdscli.loader.read.catalog import Catalog
from wdscli.loader.read.selected import FilteredCatalog, filtered
from wdscli.look.listing import ls
from wdscli.selection import Selection, reading
from wdscli.shards import ShardWriter


@pytest.fixture
def shards(tmp_path: Path) -> list[str]:
    return write_set(tmp_path)


def keys(data: Any) -> list[str]:
    return [one["__key__"] for one in data]


class TestDrawn:
    """``sample=``: the same samples as ``--sample`` of every command (tests/selection/test_draw.py)."""

    def drawn(self, shards: list[str], sample: str, seed: int = 0, **how: Any) -> list[str]:
        """As ``wds ls`` draws them."""
        selection = Selection.parse(sample=sample, seed=seed, **how)
        return [key.decode() for page in ls(shards, selection=selection).samples() for key in page.batch.keys]

    @pytest.mark.parametrize(
        ("given", "text", "seed"),
        [
            (7, "7", 0),
            ("30%", "30%", 0),
            (0.3, "0.3", 0),
            (("5", 3), "5", 3),
            ((0.25, 9), "25%", 9),
            (1.0, "1.0", 0),
        ],
    )
    def test_as_a_look_draws(self, shards: list[str], given: Any, text: str, seed: int) -> None:
        expected = self.drawn(shards, text, seed)
        data = WebDataset(shards, sample=given, shuffle="none")
        assert (len(data), keys(data)) == (len(expected), expected)
        table = IndexedDataset(shards, sample=given)
        assert keys(table) == expected
        assert keys(IndexedDataset(shards).select(sample=given)) == expected

    def test_of_what_is_selected(self, shards: list[str]) -> None:
        expected = self.drawn(shards, "4", where="index < 6")
        assert keys(WebDataset(shards, sample=4, where="index < 6", shuffle="none")) == expected
        table = IndexedDataset(shards, where="index < 6")
        assert keys(table.select(sample=4)) == expected
        backwards = table[::-1]
        assert keys(backwards.select(sample=4)) == expected[::-1]

    def test_in_a_worker(self, shards: list[str]) -> None:
        data = WebDataset(shards, sample=6)
        assert keys(pickle.loads(pickle.dumps(data))) == keys(data)

    @pytest.mark.parametrize("given", [0, -1, 1.5, "x", ("x", 1)])
    def test_refused(self, shards: list[str], given: Any) -> None:
        with pytest.raises(UsageError, match=r"^sample"):
            WebDataset(shards, sample=given)


class TestKept:
    @pytest.mark.parametrize("indexed", [False, True])
    @pytest.mark.parametrize(
        ("how", "holds"),
        [
            ({"where": "cls == 1"}, lambda one: one.get("cls") == b"1"),
            ({"where": "size.jpg > 900"}, lambda one: len(one.get("jpg", b"")) > 900),
            (
                {"where": "json.w >= 2"},
                lambda one: one.get("json", b"")[:6] == b'{"w": ' and one["json"][6:7] >= b"2",
            ),
            ({"where": "'txt' in fields"}, lambda one: "txt" in one),
            ({"where": "like(key, '*/s00[01]')"}, lambda one: one["__key__"].endswith(("/s000", "/s001"))),
            ({"keys": "a/*"}, lambda one: one["__key__"].startswith("a/")),
            ({"keys": ["a/s003", "one/*", "nothing"]}, lambda one: one["__key__"] in ("a/s003", "one/s000")),
            (
                {"keys": "a/*", "where": "cls == 2"},
                lambda one: one["__key__"][:2] == "a/" and one["cls"] == b"2",
            ),
        ],
    )
    def test_as_a_look_at_every_sample(self, tmp_path: Path, indexed: bool, how: Any, holds: Any) -> None:
        names = write_awkward(tmp_path / "in")
        if indexed:
            index(names)
        true = [one for one in oracle(names) if holds(one)]
        assert true
        data = WebDataset(names, **how)
        assert (len(data), list(data)) == (len(true), true)

    def test_keys_from(self, shards: list[str], tmp_path: Path) -> None:
        (tmp_path / "keys").write_text("n00/img0004\nn03/img0003\n")
        assert keys(WebDataset(shards, keys_from=str(tmp_path / "keys"))) == ["n03/img0003", "n00/img0004"]

    def test_keys_that_no_shard_has_are_told(self, shards: list[str], tmp_path: Path) -> None:
        (tmp_path / "keys").write_text("n00/img0004\nn77/img0003\n")
        with pytest.warns(UserWarning, match="n77/img0003"):
            WebDataset(shards, keys_from=str(tmp_path / "keys"))

    def test_all_keys_are_there(self, shards: list[str], tmp_path: Path) -> None:
        (tmp_path / "keys").write_text("n00/img0004\nn01/img0021\n")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert len(WebDataset(shards, keys_from=str(tmp_path / "keys"))) == 2

    @pytest.mark.parametrize("shuffle", ["window", "blocks", "shards", "full", "none"])
    def test_orders_know_nothing_of_the_others(self, shards: list[str], shuffle: Any) -> None:
        data = WebDataset(shards, where="cls == 1", shuffle=shuffle, seed=3)
        true = [one for one in oracle(shards) if one["cls"] == b"1"]
        for epoch in (0, 1):
            data.set_epoch(epoch)
            found = list(data)
            assert sorted(keys(found)) == sorted(keys(true))
            assert all(one in true for one in found)

    def test_ranks_and_batches(self, shards: list[str]) -> None:
        whole = keys(WebDataset(shards, where="cls != 1", shuffle="window"))
        ranks = [
            keys(WebDataset(shards, where="cls != 1", shuffle="window", rank=r, world_size=3, tail="uneven"))
            for r in range(3)
        ]
        assert [ranks[place % 3][place // 3] for place in range(len(whole))] == whole

    def test_a_resume(self, shards: list[str]) -> None:
        data = WebDataset(shards, where="cls != 1", shuffle="window").map(lambda one: one["__key__"])
        whole = list(data)
        data.set_epoch(0)
        running = iter(data)
        begun = [next(running) for _ in range(5)]
        state = data.state_dict()
        again = WebDataset(shards, where="cls != 1", shuffle="window").map(lambda one: one["__key__"])
        again.load_state_dict(state)
        assert begun + list(again) == whole

    def test_nothing_is_kept(self, shards: list[str]) -> None:
        data = WebDataset(shards, where="False", empty_check=False)
        assert (len(data), list(data)) == (0, [])


class TestIdentity:
    def mark(self, shards: list[str], **how: Any) -> str:
        return filtered(Catalog(shards), **how).fingerprint

    def test_it_says_what_is_kept_and_not_how(self, shards: list[str]) -> None:
        plain = self.mark(shards)
        some = self.mark(shards, where="json.width < 4")
        assert some != plain
        assert some == self.mark(shards, where="4 > json.width")
        assert some == self.mark(shards, keys=["n00/img0000", "n01/img0001", "n02/img0002", "n03/img0003"])
        assert some != self.mark(shards, where="json.width < 5")
        assert self.mark(shards, where="True") == self.mark(shards, keys="*") == plain

    def test_as_it_is_written_down(self, shards: list[str]) -> None:
        """23 samples in shards of 5: the first two, then all, then none of each of the others."""
        digest = xxh3_128(self.mark(shards).encode())
        digest.update((1).to_bytes(8, "little") + b"\x03" + b"\xff" * 8 + bytes(8) * 3)
        found = self.mark(shards, where="json.width < 2 or 5 <= json.width < 10")
        assert found == f"xxh3_128:{digest.hexdigest()}"

    def test_a_state_of_another_filter_is_refused(self, shards: list[str]) -> None:
        state = WebDataset(shards, where="cls == 1").state_dict()
        with pytest.raises(UsageError, match=r"other data|another source"):
            WebDataset(shards, where="cls == 2").load_state_dict(state)
        with pytest.raises(UsageError, match=r"other data|another source"):
            WebDataset(shards).load_state_dict(state)
        WebDataset(shards, where="1 == cls").load_state_dict(state)


class TestRead:
    def test_indexes_alone(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        names = write_set(tmp_path, image=100_000)
        catalog = Catalog(names)
        reads = Reads(monkeypatch)
        for how in ({"where": "size.jpg > 5 and key != 'x' and index > 1"}, {"keys": "n01/*"}):
            reads.forget()
            filtered(catalog, **how)  # type: ignore[arg-type]
            assert reads.bytes < len(names) * 5000

    @pytest.mark.parametrize("image", [30_000, 300_000])
    def test_the_payloads_that_are_looked_into(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, image: int
    ) -> None:
        names = write_set(tmp_path, image=image)
        catalog = Catalog(names)
        reads = Reads(monkeypatch)
        assert filtered(catalog, where="json.width > 20").total == 2
        assert reads.bytes < 23 * 20_000
        # Once: what is kept is known from then on.
        reads.forget()
        assert filtered(catalog, where="size.jpg > 0 or json.width > 20").total == 23
        assert reads.bytes < len(names) * 5000

    def test_payloads_are_read_many_at_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        catalog = Catalog(write_set(tmp_path, count=1000, per_shard=1000, image=10))
        reads = Reads(monkeypatch)
        assert filtered(catalog, where="json.width >= 990").total == 10
        assert len(reads.of) < 30

    def test_over_http(self, tmp_path: Path) -> None:
        true = oracle(write_set(tmp_path, count=40, per_shard=4))
        with web_server("ranges") as web:
            serve(web, tmp_path)
            data = WebDataset(web.url("in-manifest.json"), where="json.width % 2 == 1", shuffle="none")
            assert keys(data) == keys(true)[1::2]

    def test_fields_of_what_is_kept(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        names = write_set(tmp_path, image=100_000)
        data = WebDataset(names, keys="n01/*", fields=["json"])
        reads = Reads(monkeypatch)
        assert [sorted(one) for one in data] == [["__key__", "__url__", "json"]] * 6
        assert reads.bytes < 23 * 20_000


class TestTravel:
    @pytest.mark.parametrize("where", ["cls == 1", "size.json > 12", "True", "False", "json.width < 9"])
    @pytest.mark.parametrize("packed", [0, 1 << 20])
    def test_pickled(
        self, shards: list[str], where: str, packed: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(filters, "SENT_BYTES", packed)
        data = WebDataset(shards, where=where, shuffle="window", empty_check=False)
        again = pickle.loads(pickle.dumps(data))
        assert list(again) == list(data)
        assert pickle.loads(pickle.dumps(again)).state_dict() == data.state_dict()

    def test_a_bit_a_sample(self, tmp_path: Path) -> None:
        names = write_set(tmp_path, count=20_000, per_shard=10_000, image=1)
        some = pickle.dumps(FilteredCatalog(Catalog(names), _filter("cls == 1")))
        assert len(some) < 20_000 // 8 + 1000

    def test_what_is_worked_out_again_reads_no_payload(
        self, shards: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(filters, "SENT_BYTES", 0)
        looked = pickle.loads(pickle.dumps(filtered(Catalog(shards), where="json.width < 9")))
        asked = pickle.loads(pickle.dumps(filtered(Catalog(shards), where="index > 1")))
        assert (looked._chosen, asked._chosen is None) == (None, False)

    def test_few_places_are_at_hand(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(filters, "UNPACKED_PLACES", 6)
        names = write_set(tmp_path, count=40, per_shard=8)
        catalog = filtered(Catalog(names), where="index > 3")
        assert isinstance(catalog, FilteredCatalog)
        for shard in (0, 1, 2, 3, 4, 3, 2):
            found = catalog.kept(shard)
            assert found is not None
            assert found.tolist() == [4, 5, 6, 7]
            assert len(catalog._unpacked) == 1

    def test_another_answer_is_an_error(self, shards: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(filters, "SENT_BYTES", 0)
        catalog = pickle.loads(pickle.dumps(filtered(Catalog(shards), where="index > 1")))
        catalog.counts = catalog.counts + 1
        with pytest.raises(DataError, match="are selected, but "):
            catalog.kept(2)


class TestRefused:
    def test_what_cannot_mean_anything(self, shards: list[str], tmp_path: Path) -> None:
        for how in ({"where": "len > 3"}, {"where": ""}, {"keys": ""}, {"keys": []}):
            with pytest.raises(UsageError):
                WebDataset(shards, **how)  # type: ignore[arg-type]
        with pytest.warns(UserWarning, match="did you mean json"):
            assert keys(WebDataset(shards, where="jsn.width > 3", empty_check=False)) == []
        with pytest.raises(InputError):
            WebDataset(shards, keys_from=str(tmp_path / "none"))

    def test_what_cannot_be_decoded(self, tmp_path: Path) -> None:
        with ShardWriter(f"{tmp_path}/in.tar") as writer:
            writer.write("a", {"json": b"{}"})
            writer.write("b", {"json": b"{"})
            writer.write("c", {"json": b'{"w": 1}'})
        name = f"{tmp_path}/in.tar"
        with pytest.raises(DataError) as caught:
            WebDataset(name, where="json.w == 1")
        assert (caught.value.code, caught.value.member) == ("undecodable", "b.json")
        catalog = filtered(Catalog(name), where="json.w == 1", on_error="skip")
        assert isinstance(catalog, FilteredCatalog)
        assert catalog.total == 1
        data = WebDataset(name, where="json.w == 1", on_error="skip")
        assert keys(data) == ["c"]
        assert data.stats()["dropped"] == {name: {"where: undecodable": 1}}

    def test_errors_are_in_the_words_of_code(self, shards: list[str], tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="where cannot be read"):
            WebDataset(shards, where="cls ==")
        with pytest.raises(UsageError, match="text, not a function") as caught:
            WebDataset(shards, where=lambda sample: True)  # type: ignore[arg-type]
        assert "select()" in str(caught.value.hint)
        for keys in (5, [5], [b"a"]):
            with pytest.raises(UsageError, match="keys must be text"):
                WebDataset(shards, keys=keys)  # type: ignore[arg-type]
        with ShardWriter(f"{tmp_path}/broken.tar") as writer:
            writer.write("a", {"json": b"{"})
        with pytest.raises(DataError) as broken:
            WebDataset(f"{tmp_path}/broken.tar", where="json.w == 1")
        assert broken.value.hint == 'on_error="skip" skips such samples'

    def test_too_large_to_be_decoded(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(reading, "MAX_LOOKED_INTO_BYTES", 100)
        with ShardWriter(f"{tmp_path}/in.tar") as writer:
            writer.write("a", {"txt": b"x" * 100})
            writer.write("b", {"txt": b"x" * 101})
        with pytest.raises(DataError, match="limit: 100 bytes"):
            WebDataset(f"{tmp_path}/in.tar", where="txt == 'x'")

    def test_streams(self) -> None:
        with pytest.raises(UsageError, match="where=, keys= and sample="):
            filtered(Catalog("pipe:cat x.tar"), where="cls == 1")


class TestMissing:
    """A shard that is not there when the filter looks."""

    @pytest.mark.parametrize("how", [{"where": "cls == 1"}, {"where": "size.jpg > 0"}, {"keys": "n01/*"}])
    def test_on_error_says_what_becomes_of_it(self, shards: list[str], tmp_path: Path, how: Any) -> None:
        manifest = f"{tmp_path}/in-manifest.json"
        gone = shards[2]
        there = [one["__key__"] for one in WebDataset(manifest, **how) if one["__url__"] != gone]
        everything = [one["__key__"] for one in WebDataset(manifest)]
        Path(gone).unlink()
        for make in WebDataset, IndexedDataset:
            with pytest.raises(InputError, match="does not exist"):
                make(manifest, **how)
            for policy in "skip", "substitute":
                with pytest.warns(UserWarning, match="no such file"):
                    data: Any = make(manifest, on_error=policy, **how)
                assert [one["__key__"] for one in data] == there
                assert data.stats()["dropped"] == {gone: {"read: unreadable": 1}}
        for first in 0, 1:
            view = IndexedDataset(manifest, on_error="skip")[first:]
            with pytest.warns(UserWarning, match="no such file"):
                found = list(view.select(**how).keys())
            assert found == [key for key in there if key not in everything[:first]]
            assert view.stats()["dropped"] == {gone: {"read: unreadable": 1}}

    def test_keys_of_the_others_are_found(self, shards: list[str], tmp_path: Path) -> None:
        manifest = f"{tmp_path}/in-manifest.json"
        last, of_gone = IndexedDataset(shards[-1])[0]["__key__"], IndexedDataset(shards[2])[0]["__key__"]
        Path(shards[2]).unlink()
        table = IndexedDataset(manifest, on_error="skip")
        assert table[last]["__key__"] == last
        with pytest.raises(KeyError, match=of_gone):
            table[of_gone]
        with pytest.raises(InputError, match="does not exist"):
            IndexedDataset(manifest)


class TestFields:
    """``fields=``, which says what is read of each sample."""

    @pytest.mark.parametrize("make", [WebDataset, IndexedDataset])
    def test_text_is_names_with_commas(self, shards: list[str], make: Any) -> None:
        for given in ("cls", ["cls"], ("cls",), iter(["cls"])):
            assert next({*one} - {"__key__", "__url__"} for one in make(shards, fields=given)) == {"cls"}
        both = make(shards, fields="cls,jpg")
        assert any("jpg" in one for one in both)
        assert all("txt" not in one for one in both)

    @pytest.mark.parametrize("make", [WebDataset, IndexedDataset])
    def test_what_are_no_names(self, shards: list[str], make: Any) -> None:
        for given in (5, [5], [""], [b"cls"]):
            with pytest.raises(UsageError, match="names of fields must be text"):
                make(shards, fields=given)

    @pytest.mark.parametrize("make", [WebDataset, IndexedDataset])
    def test_that_no_sample_has(self, tmp_path: Path, make: Any) -> None:
        with ShardWriter(f"{tmp_path}/in-%d.tar") as writer:
            writer.write("a", {"jpg": b"x", "cls": b"1"})
        with pytest.warns(UserWarning, match="no sample has a field jpeg or png; the fields are cls, jpg"):
            assert len(make(str(tmp_path), fields=["jpeg", "png"])) == 1
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for given in (["JPG", "png"], []):
                assert len(list(make(str(tmp_path), fields=given))) == 1

    @pytest.mark.parametrize("kind", ["indexed", "scanned", "a pipe", "a long pipe"])
    @pytest.mark.parametrize("make", [WebDataset, IndexedDataset])
    def test_that_no_sample_has_where_no_manifest_counts(self, tmp_path: Path, make: Any, kind: str) -> None:
        many = 150 if kind == "a long pipe" else 2
        with ShardWriter(f"{tmp_path}/in-%d.tar", with_index=kind == "indexed") as writer:
            for number in range(many):
                writer.write(f"{number}", {"jpg": b"x", "cls": b"1"})
        Path(f"{tmp_path}/in-manifest.json").unlink(missing_ok=True)
        url = str(tmp_path)
        if "pipe" in kind:
            if make is IndexedDataset:
                pytest.skip("a stream has no table")
            url = f"pipe:cat {tmp_path}/in-0.tar"
        with pytest.warns(UserWarning, match="no sample.* has a field jpgg; the fields are cls, jpg"):
            list(islice(make(url, fields=["jpgg"]), 100))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert len(list(make(url, fields=["JPG", "png"]))) == many


@pytest.mark.parametrize("part", [(-5, None), (-5,), (2, -1)])
def test_a_slice_from_the_end_of_what_is_not_counted(shards: list[str], part: tuple[int | None, ...]) -> None:
    filtered = WebDataset(shards).select(bool)
    for data in (filtered, WebDataset(shards).compose(iter), WebDataset(f"pipe:cat {shards[0]}")):
        with pytest.raises(UsageError, match=r"slice\(-?\d.*counts from the end"):
            data.slice(*part)
    assert len(list(WebDataset(shards).slice(-5, None))) == 5


def _filter(where: str) -> filters.Filter:
    chosen = filters.Filter.parse(filters.Criteria(where=where))
    assert chosen is not None
    return chosen
