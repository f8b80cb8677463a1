"""``rename_files``: members are grouped by their new names, as in webdataset, however the set is read."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest
from indexing import index
from shard_cases import tar_of
from shard_cases import wds as wds_command

import wdscli.loader as wds
from wdscli.errors import DataError, UsageError

DOTS = ["22.05.png", "22.05.txt", "22.06.png", "22.06.txt", "23.01.png", "23.01.txt"]
FOLDERS = [
    f"s{number}/{name}" for number in (1, 2) for name in ("in_image.jpg", "meta.json", "out_image.jpg")
]


def by_folder(name: str) -> str:
    return name.replace("/", ".")


def last_dot(name: str) -> str:
    stem, _, field = name.rpartition(".")
    return stem.replace(".", "_") + "." + field


def write(path: Path, names: list[str]) -> str:
    path.write_bytes(tar_of([(name, f"{path.name} {name}".encode()) for name in names]))
    return str(path)


def grouped(paths: list[str], rename: Any, select: Any = None) -> list[dict[str, Any]]:
    """As webdataset groups them."""
    samples: list[dict[str, Any]] = []
    for path in paths:
        current: dict[str, Any] = {}
        for name in NAMES[path]:
            new = rename(name)
            if select is not None and not select(new):
                continue
            slash = new.rfind("/") + 1
            key, _, field = new[slash:].partition(".")
            if current.get("__key__") != new[:slash] + key:
                current = {"__key__": new[:slash] + key, "__url__": path}
                samples.append(current)
            current[field.lower()] = f"{Path(path).name} {name}".encode()
    return samples


NAMES: dict[str, list[str]] = {}


def make(path: Path, names: list[str]) -> str:
    address = write(path, names)
    NAMES[address] = names
    return address


@pytest.mark.parametrize(
    ("names", "rename"), [(FOLDERS, by_folder), (DOTS, last_dot)], ids=["folders", "dots"]
)
def test_members_are_grouped_by_their_new_names(tmp_path: Path, names: list[str], rename: Any) -> None:
    address = make(tmp_path / "a.tar", names)
    expected = grouped([address], rename)
    webdataset = pytest.importorskip("webdataset")
    theirs = webdataset.WebDataset(address, rename_files=rename, shardshuffle=False)
    assert [{k: v for k, v in one.items() if k != "__local_path__"} for one in theirs] == expected
    for indexed in (False, True):
        if indexed:
            index([address])
        data = wds.WebDataset(address, rename_files=rename)
        assert list(data) == expected
        assert len(data) == len(expected)
        assert list(data.compose(lambda samples: samples)) == expected
        for shuffle in ("full", "window", "blocks"):
            mixed: Any = wds.WebDataset(address, rename_files=rename, shuffle=shuffle, seed=3)  # type: ignore[arg-type]
            assert sorted(mixed, key=lambda one: one["__key__"]) == expected
    stream = wds.WebDataset(f"pipe:cat {address}", rename_files=rename)
    assert [{**one, "__url__": address} for one in stream] == expected
    plain = wds.DataPipeline(lambda: iter([{"url": address}]), wds.tarfile_to_samples(rename_files=rename))
    assert list(plain) == expected


def test_places_are_those_of_the_new_samples(tmp_path: Path) -> None:
    addresses = [make(tmp_path / f"{number}.tar", DOTS) for number in range(4)]

    def data(rename: Any = last_dot) -> Any:
        return wds.WebDataset(addresses, rename_files=rename, shuffle="window", seed=1).listed(5)

    whole = list(data())
    assert sum(map(len, whole)) == 12
    assert data().keys(0, 1) == [one["__key__"] for one in whole[1]]
    assert data().find("22_06", 0) in [(0, 0), (1, 0), (2, 0)]
    first = data()
    items = iter(first)
    next(items)
    state = first.state_dict()
    again = data()
    again.load_state_dict(state)
    assert list(again) == whole[1:] == list(items)
    with pytest.raises(UsageError, match="other data"):
        data(lambda name: last_dot(name).replace("22_", "x")).load_state_dict(state)
    with pytest.raises(UsageError, match="rename_files"):
        wds.WebDataset(addresses, rename_files=last_dot).packed(9, "size(png)")


def test_a_selection_is_made_before_and_select_files_after(tmp_path: Path) -> None:
    address = make(tmp_path / "a.tar", [*FOLDERS, "s3/in_image.jpg"])
    select = lambda name: not name.endswith(".json")  # noqa: E731
    data = wds.WebDataset(address, rename_files=by_folder, select_files=select)
    assert list(data) == grouped([address], by_folder, select)
    chosen = wds.WebDataset(address, rename_files=by_folder, where="'in_' in key")
    assert [sorted(one) for one in chosen] == [["__key__", "__url__", "in_image.jpg"]] * 3
    fields = wds.WebDataset(address, rename_files=by_folder, fields="jpg")
    assert [sorted(one) for one in fields] == [
        ["__key__", "__url__", "in_image.jpg", "out_image.jpg"]
    ] * 2 + [["__key__", "__url__", "in_image.jpg"]]


RULES = [("last-dot", last_dot), (r"(.*)\.([^.]*)", last_dot), ("first-dot", lambda name: name)]


@pytest.mark.parametrize(("rule", "rename"), RULES, ids=["last-dot", "expression", "first-dot"])
def test_a_key_rule_groups_as_a_function_does(tmp_path: Path, rule: str, rename: Any) -> None:
    addresses = [make(tmp_path / f"{number}.tar", DOTS) for number in range(3)]
    expected = grouped(addresses, rename)
    for indexed in (False, True):
        if indexed:
            index(addresses)
        data = wds.WebDataset(addresses, key_rule=rule, shuffle="none")
        assert list(data) == expected
        assert len(data) == len(expected)
        mixed = wds.WebDataset(addresses, key_rule=rule, shuffle="full", seed=1)
        assert sorted(mixed, key=lambda one: (one["__url__"], one["__key__"])) == expected
    streams = [f"pipe:cat {address}" for address in addresses]
    stream = wds.WebDataset(streams, key_rule=rule)
    assert [{**one, "__url__": one["__url__"].removeprefix("pipe:cat ")} for one in stream] == expected


@pytest.mark.exhaustive(sample=False)
def test_a_key_rule_in_the_workers_of_a_loader(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from torch.utils.data import DataLoader

    addresses = [make(tmp_path / f"{number}.tar", DOTS) for number in range(3)]
    data = wds.WebDataset(addresses, key_rule="last-dot", shuffle="none").listed(3)
    batches = list(DataLoader(data, batch_size=None, num_workers=2, multiprocessing_context="spawn"))
    assert [one for batch in batches for one in batch] == grouped(addresses, last_dot)


def test_key_rules_that_cannot_be_used(tmp_path: Path) -> None:
    address = make(tmp_path / "a.tar", ["a.b.png", "a_b.txt"])
    with pytest.raises(DataError, match=r"gives .a\.b. and .a_b. one key"):
        list(wds.WebDataset(address, key_rule="last-dot"))
    with pytest.raises(UsageError, match="rename_files"):
        wds.WebDataset(address, key_rule="last-dot", rename_files=last_dot)
    with pytest.raises(UsageError, match="no groups for key and field"):
        wds.WebDataset(address, key_rule="a+")


@pytest.mark.parametrize("case", range(30))
def test_any_names(tmp_path: Path, case: int) -> None:
    draw = random.Random(case)
    addresses = []
    for shard in range(3):
        names = []
        for sample in range(draw.randint(1, 6)):
            folder = draw.choice(["", "a/", "x" * draw.randint(90, 130) + "/"])
            for field in sorted(draw.sample(["jpg", "cls", "a.JSON", "b.json", "txt"], draw.randint(1, 5))):
                names.append(f"{folder}s{shard}{sample:02d}.p{draw.randint(0, 1)}.{field}")
        names.sort()
        addresses.append(make(tmp_path / f"{shard}.tar", names))
    rename = draw.choice(
        [
            last_dot,
            lambda name: name,
            lambda name: name.replace(".p", "_p", 1),
            lambda name: name.replace(".json", "_j.json"),
            lambda name: name.replace("s0", "s1") + ".x",
            lambda name: name.replace("/", "."),
        ]
    )
    expected = grouped(addresses, rename)
    try:
        data = list(wds.WebDataset(addresses, rename_files=rename))
    except DataError as error:
        keys = [(one["__key__"], one["__url__"]) for one in expected]
        assert error.code == "duplicate-field" or len(set(keys)) < len(keys)
        return
    assert data == expected
    assert len(wds.WebDataset(addresses, rename_files=rename)) == len(expected)
    stream = wds.WebDataset([f"pipe:cat {one}" for one in addresses], rename_files=rename)
    assert [{**one, "__url__": one["__url__"][9:]} for one in stream] == expected


def test_members_that_are_not_neighbours_are_an_error(tmp_path: Path) -> None:
    names = [f"{field}/{number}.{field}" for field in ("jpg", "txt") for number in range(3)]
    address = make(tmp_path / "a.tar", names)
    with pytest.raises(DataError, match="not next to each other"):
        wds.WebDataset(address, rename_files=lambda name: name.partition("/")[2])
    twice = make(tmp_path / "b.tar", ["a/1.jpg", "b/1.jpg"])
    with pytest.raises(DataError, match="two members") as caught:
        wds.WebDataset(twice, rename_files=lambda name: name.partition("/")[2])
    assert caught.value.code == "duplicate-field"


def test_a_later_shard_that_is_grouped_in_another_way_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses = [make(tmp_path / "a.tar", ["a.jpg", "b.jpg"]), make(tmp_path / "b.tar", FOLDERS)]
    for address in addresses:
        index([address])
    assert list(wds.WebDataset(addresses, rename_files=by_folder)) == grouped(addresses, by_folder)
    monkeypatch.setattr("wdscli.loader.read.renamed.FEW_SAMPLES", 1)
    data = wds.WebDataset(addresses, rename_files=by_folder)
    with pytest.raises(DataError, match="other samples of this shard"):
        list(data)
    skipping = wds.WebDataset(addresses, rename_files=by_folder, on_error="skip")
    assert [one["__key__"] for one in skipping] == ["a", "b"]
    assert sum(skipping.stats()["dropped"][addresses[1]].values()) == 6
    assert [one["__key__"] for one in wds.WebDataset(addresses[::-1], rename_files=by_folder)] == [
        "s1",
        "s2",
        "a",
        "b",
    ]


def test_changed_members(tmp_path: Path) -> None:
    address = make(tmp_path / "a.tar", DOTS)
    index([address])
    stat = Path(address).stat()
    write(Path(address), [name.replace("22.06.png", "22.07.png") for name in DOTS])
    os.utime(address, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    skipping = wds.WebDataset(address, rename_files=last_dot, on_error="skip")
    assert [one["__key__"] for one in skipping] == ["22_05", "23_01"]
    assert skipping.stats()["dropped"] == {address: {"read: changed": 1}}


def test_views(tmp_path: Path) -> None:
    address = make(tmp_path / "a.tar", DOTS)
    assert wds_command("shuffle", address, "-o", tmp_path / "view.json", "--seed", 1, "-q").code == 0
    found = list(wds.WebDataset(str(tmp_path / "view.json"), rename_files=last_dot))
    assert [one["__key__"] for one in found] == ["23_01", "22_05", "22_06"]
    assert all(
        one[field].endswith(f" {one['__key__'].replace('_', '.')}.{field}".encode())
        for one in found
        for field in ("png", "txt")
    )


@pytest.mark.exhaustive
def test_workers(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    addresses = [make(tmp_path / f"{number}.tar", DOTS) for number in range(2)]
    data = wds.WebDataset(addresses, rename_files=last_dot, shuffle="full").listed(2)
    loader = wds.WebLoader(data, num_workers=2, multiprocessing_context="spawn")
    assert list(loader) == list(wds.WebDataset(addresses, rename_files=last_dot, shuffle="full").listed(2))
