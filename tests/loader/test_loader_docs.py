"""Every example of wdscli-loader(7) is run, on real shards, and what it says of orders and mixing is what comes out."""

from __future__ import annotations

import io
import json
import re
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy
import pytest
from torch_processes import Program

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


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name != ORDER])
def test_examples_run(folder: Path, name: str) -> None:
    said(name, folder)


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


def test_the_page_names_all_of_a_state(folder: Path) -> None:
    import wdscli.loader as wds

    state = wds.WebDataset(str(folder / "train"), shuffle="window").state_dict()
    told = PAGE.split(".Sh STATE")[1].split(".Sh MIXING")[0]
    for name in (*state, *state["source"]):
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
