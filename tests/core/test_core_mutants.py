"""The compiled core and plain Python say the same of every archive, good or damaged.

What calls a function of the core has a line in ``CHECKS``: a function that is given an archive and returns all that can
be seen of it; errors of ours are seen too. It runs once with each core. The checks share ``WDSCLI_MUTANTS`` archives
(the slow checks a tenth of them); ``WDSCLI_MUTANT=check-name/17`` runs one alone.

The calls that the checks make of the core are kept and made again many times: nothing may grow, and no argument of a
wrong kind may do more than raise.
"""

from __future__ import annotations

import copy
import gc
import os
import random
import re
import resource
import shutil
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import BuiltinFunctionType
from typing import Any, NamedTuple

import pytest
from mutants import archives, damaged, mutant
from shard_cases import wds_here
from tar_cases import FileSource, StreamSource, outcome

from wdscli.errors import WdsError
from wdscli.loader import IndexedDataset, WebDataset
from wdscli.samples import iter_batches, iter_samples
from wdscli.samples.grouping import Salvager
from wdscli.storage import open_source
from wdscli.tar import Form, TarWriter, build_header, core

CORE = core.CORE
pytestmark = pytest.mark.skipif(
    CORE is None, reason="not with the compiled core: tests/project/test_build.py"
)

MUTANTS = int(os.environ.get("WDSCLI_MUTANTS", "5000"))
ALONE = os.environ.get("WDSCLI_MUTANT", "")
UNDER_SANITIZER = "asan" in os.environ.get("LD_PRELOAD", "")
# The sanitizer notices the first wrong access, and hides growth: more calls would only take longer.
REPEATS = 10_000 if MUTANTS <= 5000 or UNDER_SANITIZER else 100_000
FORMS = [Form(), Form(), Form(mtime=1_700_000_000), Form(long_names="gnu")]


class Case(NamedTuple):
    """One archive, and a folder to write in. Each core gets the same numbers of ``random``."""

    data: bytes
    random: random.Random
    folder: Path

    def file(self, data: bytes | None = None) -> str:
        """It, or others, as a file that looks the same from outside each time."""
        path = self.folder / "x.tar"
        path.write_bytes(self.data if data is None else data)
        os.utime(path, (1, 1))
        return str(path)


def whole_buffer(case: Case) -> object:
    return outcome(FileSource(case.data), form=case.random.choice(FORMS))


def short_buffers(case: Case) -> object:
    chunk = case.random.choice((512, 513, 1000, 1024, 1536, 2048, 5000))
    return outcome(FileSource(case.data), chunk=chunk, payloads=case.random.random() < 0.5)


def stream(case: Case) -> object:
    """In pieces that end anywhere."""
    cuts = [case.random.randrange(len(case.data) + 1) for _ in range(case.random.choice((0, 3, 30)))]
    chunk = case.random.choice((512, 700, 4096, 1 << 18))
    return outcome(StreamSource(case.data, cuts), payloads=case.random.random() < 0.5, chunk=chunk)


def by_descriptor(case: Case) -> object:
    with open_source(case.file()) as source:
        return outcome(source, form=case.random.choice(FORMS))


def batches(case: Case) -> object:
    sources = FileSource(case.data), StreamSource(case.data, range(0, len(case.data), 1000))
    return [each(iter_batches(source)) for source in sources]


def salvaged(case: Case) -> object:
    errors: list[Any] = []
    dropped: dict[str, int] = {}
    found = each(Salvager(FileSource(case.data), errors.append, dropped).batches())
    return found, [error_of(error) for error in errors], dropped


def samples(case: Case) -> object:
    fields = case.random.choice([None, None, frozenset({"cls", "txt"})])
    sources = FileSource(case.data), StreamSource(case.data, range(0, len(case.data), 1300))
    return [each(iter_samples(source, fields=fields)) for source in sources]


def samples_of_a_file(case: Case) -> object:
    with open_source(case.file()) as source:
        return each(iter_samples(source))


def headers(case: Case) -> object:
    """Headers and whole archives for names and sizes of any kind."""
    rng = case.random
    names = [
        b"a/b.c",
        b"",
        b"a\0b",
        b"n" * 100,
        b"n" * 101,
        b"p/" * 60 + b"n.c",
        b"p" * 155 + b"/" + b"n" * 100,
        case.data[:99],
    ]
    name = rng.choice(names)[: rng.choice((3, 100, 101, 999))]
    size = rng.choice((0, 1, 511, 512, (1 << 33) - 1, 1 << 33, 1 << 60, rng.randrange(1 << 40)))
    form = rng.choice(FORMS)
    out = case.folder / "made.tar"
    with open(out, "wb") as file, TarWriter(file, form=form) as tar:
        for _ in range(3):
            tar.add(
                rng.choice([b"a/b.c", b"n" * 101, b"p/" * 60 + b"n.c"]),
                case.data[: rng.choice((0, 5, 512, 5000))],
            )
    return build_header(name, size, form), out.read_bytes()


def created(case: Case) -> object:
    """A folder of small files made into shards."""
    rng, tree, out = case.random, case.folder / "tree", case.folder / "created"
    for folder in (tree, out):
        shutil.rmtree(folder, ignore_errors=True)
    names = [
        "s.cls",
        "s.jpg",
        "t.cls",
        "t.seg.png",
        "noext",
        "._a.b",
        ".b",
        "__x__",
        "u" * 120 + ".txt",
        "d/e.f",
        "d/e.g/h",
    ]
    for name in rng.sample(names, 6):
        path = tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        at = rng.randrange(len(case.data) + 1)
        path.write_bytes(case.data[at : at + rng.choice((0, 3, 512, 513, 3000))])
    out.mkdir()
    labels = rng.choice(([], ["--label-from", "parent"]))
    ran = wds_here("create", tree, "-o", out / "o-%06d.tar", "--max-count", "2", "-j1", *labels)
    return ran.code, ran.out, untimed(ran.err), written(out)


def untimed(text: str) -> str:
    """What was said, but for the seconds that it took."""
    return re.sub(r" in \d[\d.]* \w+(, [\d.]+ \w+/s)?$", "", text, flags=re.MULTILINE)


def written(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def loader(case: Case) -> object:
    return each(WebDataset(case.file(), shuffle=False)), table(IndexedDataset, case.file())


def changed_behind_its_index(case: Case) -> object:
    """The good archive is indexed, then another lies in its place: rows of the one, headers of the other."""
    good = case.random.choice(list(archives().values()))
    now = damaged(good, case.random).ljust(len(good), b"\0")[: len(good)]
    file = case.file(good)
    try:
        dataset = IndexedDataset(file)
    except WdsError as error:
        return error_of(error)
    case.file(now)
    return [table(lambda number=number: dataset[number]) for number in range(len(dataset))]


def viewed(case: Case) -> object:
    """A view of the archive, and the shard that it describes."""
    view, shard = case.folder / "v.json", case.folder / "v.tar"
    shard.unlink(missing_ok=True)
    ran = [
        wds_here("cat", one, "-o", to, "-q", "--force") for one, to in ((case.file(), view), (view, shard))
    ]
    return [(one.code, one.out, one.err) for one in ran], shard.exists() and shard.read_bytes()


def command(*words: object) -> Callable[[Case], object]:
    """A command on the file: its exit code, what it says and what it writes."""

    def run(case: Case) -> object:
        out = case.folder / "out"
        out.mkdir(exist_ok=True)
        for old in out.rglob("*"):
            if old.is_file():
                old.unlink()
        ran = wds_here(
            *[
                {"IN": case.file(), "OUT": out}.get(str(word), str(word).replace("OUT", str(out)))
                for word in words
            ]
        )
        return ran.code, ran.out, untimed(ran.err), written(out)

    return run


def in_buffers(*words: str) -> Callable[[Case], object]:
    """A command that reads small shards too as it reads large ones."""

    def run_in_buffers(case: Case) -> object:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("wdscli.samples.reading.SMALL_SHARD_BYTES", 0)
            return command(*words)(case)

    return run_in_buffers


FAST: dict[str, Callable[[Case], object]] = {
    "whole-buffer": whole_buffer,
    "short-buffers": short_buffers,
    "stream": stream,
    "by-descriptor": by_descriptor,
    "batches": batches,
    "salvaged": salvaged,
    "samples": samples,
    "samples-of-a-file": samples_of_a_file,
    "headers": headers,
}
SLOW: dict[str, Callable[[Case], object]] = {
    "created": created,
    "loader": loader,
    "changed": changed_behind_its_index,
    "viewed": viewed,
    "cat": command("cat", "IN", "-o", "OUT/o.tar", "-q"),
    "cat-skip": command("cat", "IN", "-o", "OUT/o.tar", "-q", "--on-error", "skip"),
    "split": command("split", "IN", "-o", "OUT/o-%06d.tar", "--max-count", "2", "-j1", "-q"),
    "shuffle-skip": command(
        "shuffle", "IN", "-o", "OUT/o-%06d.tar", "--shards", "2", "-j1", "-q", "--on-error", "skip"
    ),
    "spill": command(
        "shuffle", "IN", "-o", "OUT/o-%06d.tar", "--shards", "2", "-j1", "-q", "--strategy", "spill"
    ),
    "verify": command("verify", "IN", "--json"),
    "verify-in-buffers": in_buffers("verify", "IN", "--json"),
    "split-in-buffers": in_buffers("split", "IN", "-o", "OUT/o-%06d.tar", "--max-count", "2", "-j1", "-q"),
}
CHECKS = FAST | SLOW


def each(things: Any) -> list[object]:
    """All that come, and the error that ends them."""
    found: list[object] = []
    try:
        for thing in things:
            found.append(thing)
    except WdsError as error:
        found.append(error_of(error))
    return found


def table(make: Any, *args: Any) -> object:
    try:
        made = make(*args)
    except WdsError as error:
        return error_of(error)
    return each(made) if isinstance(made, IndexedDataset) else made


def error_of(error: WdsError) -> tuple[object, ...]:
    places = [getattr(error, name, None) for name in ("code", "shard", "offset", "member")]
    return type(error).__name__, str(error), error.hint, *places


def with_core(what: Any, check: Callable[[Case], object], data: bytes, seed: str, folder: Path) -> object:
    folder.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core, "CORE", what)
        try:
            return check(Case(data, random.Random(seed), folder))
        except WdsError as error:
            return error_of(error)


@pytest.mark.parametrize("name", CHECKS)
def test_both_say_the_same(name: str, tmp_path: Path) -> None:
    count = MUTANTS * 9 // 10 // len(FAST) if name in FAST else MUTANTS // 10 // len(SLOW)
    seeds = [f"{name}/{number}" for number in range(count)]
    for seed in [ALONE] if ALONE.startswith(f"{name}/") else [] if ALONE else seeds:
        data = mutant(seed)
        compiled, plain = (
            with_core(what, CHECKS[name], data, seed, tmp_path / "case") for what in (CORE, None)
        )
        assert compiled == plain, f"WDSCLI_MUTANT={seed}"


@pytest.mark.parametrize("maker", archives())
@pytest.mark.parametrize("name", CHECKS)
def test_both_say_the_same_of_what_is_good(name: str, maker: str, tmp_path: Path) -> None:
    data = archives()[maker]
    compiled, plain = (with_core(what, CHECKS[name], data, maker, tmp_path / "case") for what in (CORE, None))
    assert compiled == plain


# --- the calls themselves


class Recorder:
    """The core, keeping what its functions are given."""

    MOST = 12

    def __init__(self) -> None:
        self.calls: dict[str, list[tuple[Any, ...]]] = defaultdict(list)

    def __getattr__(self, name: str) -> Any:
        function = getattr(CORE, name)

        def call(*args: Any) -> Any:
            if len(self.calls[name]) < self.MOST and random.Random(str(args)).random() < 0.2:
                self.calls[name].append(fresh(args))
            return function(*args)

        return call


def fresh(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Arguments of their own: what a call appends to or writes into is as it was."""
    return tuple(map(_fresh, args))


def _fresh(arg: Any) -> Any:
    if isinstance(arg, memoryview):
        return bytes(arg) if arg.readonly else bytearray(arg)
    if isinstance(arg, tuple):
        made = map(_fresh, arg)
        return type(arg)(*made) if hasattr(arg, "_fields") else tuple(made)
    if isinstance(arg, (list, dict, bytearray)) or type(arg).__module__ == "numpy":
        return copy.copy(arg)
    return _nothing if callable(arg) and not isinstance(arg, type) else arg


def _nothing(*_: object) -> None:
    """Stands for what a function of the core calls."""


FUNCTIONS = sorted(
    name for name, one in vars(CORE).items() if isinstance(one, BuiltinFunctionType)
) if CORE else []  # fmt: skip


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[Any, ...]]]:
    """Some of the calls that the checks make. Files are gone by then, but for one that stands for all."""
    recorder = Recorder()
    folder = tmp_path_factory.mktemp("calls") / "case"
    for name, check in CHECKS.items():
        for maker, data in archives().items():
            with_core(recorder, check, data, maker, folder)
        for number in range(8):
            with_core(recorder, check, mutant(f"{name}/{number}"), str(number), folder)
    return recorder.calls


@contextmanager
def descriptor_open(folder: Path) -> Iterator[int]:
    (folder / "open.tar").write_bytes(archives()["webdataset"])
    descriptor = os.open(folder / "open.tar", os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


HOSTILE = [None, -1, 0, 1 << 62, 1 << 80, b"", b"\0" * 12, "text", [], [None], (), bytearray(), object(), 1.5]


def made_hostile(args: tuple[Any, ...], rng: random.Random) -> tuple[Any, ...]:
    """One or two arguments of another kind, or one too few or too many."""
    changed = list(args)
    if not rng.randrange(10):
        return tuple(changed[:-1]) if rng.random() < 0.5 else (*changed, None)
    for _ in range(rng.choice((1, 1, 2))):
        at = rng.randrange(len(changed))
        # A number of another size is the caller's to keep away: it would say where memory is.
        if not isinstance(changed[at], int):
            changed[at] = rng.choice(HOSTILE)
    return tuple(changed)


def quietly(function: Callable[..., object], args: tuple[Any, ...]) -> None:
    try:
        function(*args)
    except (
        TypeError,
        ValueError,
        IndexError,
        OverflowError,
        SystemError,
        AttributeError,
        BufferError,
        OSError,
    ):
        pass
    except WdsError:
        pass


def resident() -> int:
    with open("/proc/self/statm") as told:
        return int(told.read().split()[1]) * resource.getpagesize()


@pytest.mark.exhaustive(sample=False)
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("how", ["good", "hostile"])
def test_nothing_grows(name: str, how: str, calls: dict[str, list[tuple[Any, ...]]], tmp_path: Path) -> None:
    """And nothing is held: an argument has as many owners as before."""
    if not calls.get(name):
        pytest.skip(f"no check calls _core.{name}")
    function = getattr(CORE, name)
    rng = random.Random(name)
    with descriptor_open(tmp_path) as descriptor:
        given = [_with_open_files(name, args, descriptor) for args in calls[name]]
        if how == "hostile":
            given = [made_hostile(args, rng) for args in given for _ in range(8)]

        def some(times: int) -> None:
            for number in range(times):
                quietly(function, fresh(given[number % len(given)]))

        some(REPEATS // 5)
        gc.collect()
        held = [[sys.getrefcount(arg) for arg in args] for args in given]
        before = resident()
        some(REPEATS)
        gc.collect()
        grown = resident() - before
        now = [[sys.getrefcount(arg) for arg in args] for args in given]
    # The address sanitizer holds what was given back.
    assert grown < 2 << 20 or UNDER_SANITIZER
    # None, small numbers and the like have owners that come and go.
    assert all(
        abs(one - other) < REPEATS // 50 for row, later in zip(held, now) for one, other in zip(row, later)
    )


def _with_open_files(name: str, args: tuple[Any, ...], descriptor: int) -> tuple[Any, ...]:
    """The arguments with an open descriptor, by the names in the function's signature: ``descriptor``, and the files of
    the dictionary ``files``."""
    words = (getattr(CORE, name).__doc__ or "").partition("(")[2].partition(")")[0]
    text = getattr(CORE, name).__text_signature__ or f"({words})"
    names = [word.strip() for word in text.strip("()").split(",") if word.strip() not in ("$module", "/")]
    opened = list(args)
    for place, (word, arg) in enumerate(zip(names, args)):
        if word == "descriptor":
            opened[place] = descriptor
        elif word == "files" and isinstance(arg, dict):
            opened[place] = {file: arg[file] if isinstance(arg[file], bytes) else descriptor for file in arg}
    return tuple(opened)
