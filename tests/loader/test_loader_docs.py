"""Every example of wdscli-loader(7) is run, on real shards, and what it says of orders and mixing is what comes out."""

from __future__ import annotations

import io
import json
import random
import re
import sys
from importlib.util import module_from_spec, spec_from_file_location
from itertools import count as numbers_from
from math import gcd
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy
import pytest
from loader_cases import Numbers
from torch_processes import Program

from wdscli.loader import mix
from wdscli.loader.dataset import PositionDataset
from wdscli.loader.order import order
from wdscli.loader.order.order import EpochOrder
from wdscli.shards import ShardWriter

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "man" / "man7" / "wdscli-loader.7").read_text()
COUNT = 40


def examples() -> dict[str, str]:
    """The programs of the page, by the section in which they stand and their number there."""
    found = {}
    for section in re.split(r"^\.S[hs] ", PAGE, flags=re.MULTILINE)[1:]:
        programs = re.findall(
            r"^\.Bd -literal -offset indent\n(.*?)^\.Ed$", section, re.MULTILINE | re.DOTALL
        )
        for number, program in enumerate(programs):
            found[f"{section.splitlines()[0].lower()} {number}"] = program
    return found


EXAMPLES = examples()
ORDER = "order 0"


def picture(number: int) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (32, 24), (number * 6, 0, 0)).save(file, "JPEG")
    return file.getvalue()


def write_set(folder: Path, prefix: str, count: int) -> None:
    with ShardWriter(f"{folder}/in-%06d.tar", max_count=7) as writer:
        for number in range(count):
            payloads = {
                "cls": b"%d" % (number % 3),
                "jpg": picture(number),
                "json": json.dumps({"width": number}).encode(),
            }
            writer.write(f"{prefix}/{number}", payloads)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where examples run: ``train`` and ``more``, and ``damaged``, of which a shard is cut off."""
    pytest.importorskip("PIL")
    folder = tmp_path_factory.mktemp("docs")
    for name, prefix, count in (("train", "n", COUNT), ("more", "m", 20)):
        (folder / name).mkdir()
        write_set(folder / name, prefix, count)
    (folder / "damaged").mkdir()
    for shard in (folder / "train").glob("*.tar"):
        data = shard.read_bytes()
        whole = not shard.stem.endswith("2")
        (folder / "damaged" / shard.name).write_bytes(data if whole else data[: len(data) // 2])
    return folder


def run(program: str, folder: Path, *arguments: str) -> str:
    """What a program prints; it must have run without an error."""
    # As a file: what a DataLoader's workers are sent must be importable.
    path = folder / "example.py"
    path.write_text(program)
    ran = Program(path, *arguments, cwd=folder)
    printed, errors = ran.communicate()
    assert ran.wait() == 0, errors
    return printed


def said(name: str, folder: Path) -> str:
    """What an example prints; it must have run without an error."""
    if "import torch" in EXAMPLES[name]:
        pytest.importorskip("torch")
    (folder / name).mkdir(exist_ok=True)
    for one in ("train", "more", "damaged"):
        link = folder / name / one
        if not link.exists():
            link.symlink_to(folder / one)
    return run(EXAMPLES[name], folder / name)


def test_the_page_has_examples() -> None:
    assert len(EXAMPLES) >= 10
    assert ORDER in EXAMPLES


@pytest.mark.exhaustive(sample=False)
@pytest.mark.parametrize("name", [name for name in EXAMPLES if name != ORDER])
def test_examples_run(folder: Path, name: str) -> None:
    said(name, folder)


@pytest.mark.exhaustive
def test_what_examples_print(folder: Path) -> None:
    assert said("description 0", folder).splitlines() == [
        f"{epoch} ({COUNT}, 24, 32, 3) int64" for epoch in range(2)
    ]
    assert said("arguments 0", folder).startswith("8 {'width': 3")
    assert said("tables 0", folder) == "40 0 {'width': 3}\n"
    count, shard, reasons = said("errors in data 0", folder).split(" ", 2)
    assert int(count) < COUNT
    assert shard == "damaged/in-000002.tar"
    assert reasons.startswith("{'read: truncated': ")


@pytest.mark.exhaustive(sample=False)
@pytest.mark.parametrize(
    "counts",
    [(13, 0, 1, 30, 7, 19, 2, 25, 4), (5,), (1, 1, 1), (400, 300, 500)],
    ids=["ragged", "1", "3", "large"],
)
@pytest.mark.parametrize("window", [1, 3, 64])
def test_the_program_of_the_page_gives_our_order(
    tmp_path: Path, counts: tuple[int, ...], window: int
) -> None:
    printed = run(EXAMPLES[ORDER], tmp_path, "7", "3", str(window), *map(str, counts))
    one = EpochOrder(numpy.array(counts, dtype=numpy.int64), seed=7, epoch=3, window=window)
    ours = zip(*(part.tolist() for part in one.locate(numpy.arange(one.total, dtype=numpy.int64))))
    assert [tuple(map(int, line.split())) for line in printed.splitlines()] == list(ours)


def test_the_program_of_the_page_gives_our_large_permutations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are too large to be sorted, which begin earlier here."""
    program: dict[str, Any] = {}
    exec(EXAMPLES[ORDER].split("\nseed, epoch")[0].replace("1 << 20", "1 << 4"), program)
    monkeypatch.setattr(order, "SORTED", 1 << 4)
    for count in (17, 100, 1001):
        ours = order.Permutation(count, 99).at(numpy.arange(count, dtype=numpy.int64)).tolist()
        assert program["permuted"](count, 99) == ours


def sets_by_the_page(weights: list[int], lengths: list[int], stop: str, seed: int | None) -> list[int]:
    """The sets at the positions of an epoch of a mix, from the section MIXING and the program of the page alone."""
    program: dict[str, Any] = {}
    exec(EXAMPLES[ORDER].split("\nseed, epoch")[0], program)
    left, rest, order = list(lengths), list(range(len(weights))), list[int]()
    for phase in range(len(weights)):
        divisor = gcd(*(weights[number] for number in rest))
        listed = [number for number in rest for _ in range(weights[number] // divisor)]
        for position in numbers_from():
            block, place = divmod(position, len(listed))
            places: Any = range(len(listed))
            if seed is not None:
                places = program["permuted"](len(listed), program["key"](seed, 4, phase, block))
            ended = listed[places[place]]
            if not left[ended]:
                break
            left[ended] -= 1
            order.append(ended)
        if stop == "first":
            break
        after = rest.index(ended)
        rest = rest[after + 1 :] + rest[:after] if seed is None else rest[:after] + rest[after + 1 :]
    return order


@pytest.mark.parametrize("case", range(20))
def test_mixes_have_the_order_of_the_page(case: int) -> None:
    draw = random.Random(case)
    weights = [draw.randint(1, 6) for _ in range(draw.randint(1, 4))]
    lengths = [draw.randint(1, 40) for _ in weights]
    stop, seed = draw.choice(["all", "all", "first"]), draw.choice([None, 0, 3])
    sets = [PositionDataset(Numbers((length,))).map(lambda _, at=at: at) for at, length in enumerate(lengths)]
    divisor = gcd(*weights)
    expected = sets_by_the_page([weight // divisor for weight in weights], lengths, stop, seed)
    if stop == "all":
        assert sorted(expected) == [at for at, length in enumerate(lengths) for _ in range(length)]
    assert list(mix(list(zip(sets, weights)), stop=stop, seed=seed)) == expected  # type: ignore[arg-type]
    if stop == "all" and seed is not None:
        named = {str(at): one for at, one in enumerate(sets)}
        divisor = gcd(*lengths)
        by_length = [length // divisor for length in lengths]
        assert list(mix(named, repeat={}, seed=seed)) == sets_by_the_page(by_length, lengths, stop, seed)


def quality() -> ModuleType:
    """scripts/_quality.py, which prints the table."""
    if "_quality" not in sys.modules:
        spec = spec_from_file_location("_quality", ROOT / "scripts" / "_quality.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules["_quality"] = module_from_spec(spec)
        spec.loader.exec_module(sys.modules["_quality"])
    return sys.modules["_quality"]


def rows_of(text: str) -> set[tuple[str, ...]]:
    """Lines of a table as their cells, however wide the columns are."""
    return {tuple(re.split(" {2,}", line.strip())) for line in text.splitlines()}


@pytest.mark.exhaustive
def test_the_table_of_orders_is_what_the_script_prints() -> None:
    script = quality()
    printed = rows_of(script.table(script.ours()))
    assert len(printed) == 7
    assert printed <= rows_of(PAGE)


@pytest.mark.exhaustive
def test_the_rows_of_webdataset_are_what_its_code_gives() -> None:
    pytest.importorskip("webdataset")
    script = quality()
    assert rows_of(script.table([script.webdatasets(1_000, 8)])) <= rows_of(PAGE)


def test_shards_in_use() -> None:
    script = quality()
    assert script.in_use(numpy.array([0, 0, 1, 1])) == 1
    assert script.in_use(numpy.array([0, 1, 0, 1, 2])) == 2
    assert script.in_use(numpy.array([0, 1, 2, 0])) == 2
    assert script.in_use(numpy.array([0, 1, 2, 1, 0])) == 3


def lengths(folder: Path) -> Path:
    """A table of numbers for the samples of ``train``."""
    table = folder / "lengths.csv"
    table.write_text("key,n\n" + "".join(f"n/{number},{number % 12 + 1}\n" for number in range(COUNT)))
    return table


def test_the_page_names_all_of_a_state(folder: Path) -> None:
    import wdscli.loader as wds

    data = wds.WebDataset(str(folder / "train"), shuffle="window", values=str(lengths(folder)))
    state = data.state_dict()
    packed = data.packed(12, "n", collation_fn=list)
    next(iter(packed))
    told = PAGE.split(".Sh STATE")[1].split(".Sh MIXING")[0]
    for name in (*state, *state["source"], *packed.state_dict()):
        assert re.search(rf"\b{name}\b", told), name
    assert len(json.dumps(state)) < 1000


def test_the_page_names_the_arguments_of_our_own() -> None:
    import inspect

    import wdscli.loader as wds

    ours = set(inspect.signature(wds.WebDataset).parameters)
    peer = pytest.importorskip("webdataset")
    told = PAGE.split(".Sh ARGUMENTS")[1].split(".Sh ORDER")[0]
    for name in sorted(ours - set(inspect.signature(peer.WebDataset).parameters)):
        assert re.search(rf"^\.It Fa .*\b{name}\b", told, re.MULTILINE), name


def test_the_page_names_all_of_the_statistics(folder: Path) -> None:
    import wdscli.loader as wds

    told = PAGE.split(".Ss Statistics")[1].split(".Sh SECURITY")[0]
    for name in wds.WebDataset(str(folder / "train")).stats():
        assert f".Li {name}\n" in told or f".Li {name} ,\n" in told, name
    packed = wds.WebDataset(str(folder / "train"), values=str(lengths(folder)))
    packed = packed.packed(9, "n", collation_fn=list, truncate=True)
    assert list(packed)
    for name in packed.stats():
        assert f".Li {name}\n" in told or f".Li {name} ,\n" in told, name
