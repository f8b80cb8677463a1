"""What networks do, to what commands do, on each kind of store: right bytes, or a clear error and nothing left behind.

The table is printed at the end: ``pytest -rA tests/storage/test_faults.py``.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable, Iterator
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from conftest import Command
from fault_proxy import Fault, FaultProxy, fault_proxy
from shard_cases import Ran, tar_of
from storage_servers import forget_s3, s3_server, web_server

import wdscli.loader as wds
from wdscli.cli.main import main
from wdscli.errors import WdsError
from wdscli.shards import view_shards as views
from wdscli.storage import scatter
from wdscli.storage.retry import Network, using

COMMAND: list[str] = []
SHARDS = ("a-0.tar", "a-1.tar")
SAMPLES = 16


def shard(seed: int, letter: str) -> bytes:
    """about 100 kB."""
    noise = random.Random(seed)
    return tar_of([(f"{letter}{number:03d}.bin", noise.randbytes(6000)) for number in range(SAMPLES)])


OLD = {name: shard(number, letter) for number, (name, letter) in enumerate(zip(SHARDS, "xy"))}
NEW = {**OLD, SHARDS[1]: shard(7, "y")}
"""As many bytes, and one shard has others."""


PAGE = b"<html><body>Please log in to use this network.</body></html>" * 90
"""The page of a proxy or a balancer, which answers 200 to every request."""


def pages(times: float, skip: int = 0, where: str = "^GET ") -> Fault:
    """Answers that are a page."""
    headers = {"Content-Type": "text/html"}
    return Fault("status", times, where, status=200, headers=headers, body=PAGE, skip=skip)


class Case(NamedTuple):
    """Faults, how patient the command is, and what must come of it: ``right``, ``error`` or, where that is up to who
    comes first, ``either``; of a server without ranges it may be another."""

    faults: list[Fault]
    outcome: str
    without_ranges: str
    retries: int = 5
    timeout: float = 30.0


def cases(replace: Callable[[], object]) -> dict[str, Case]:
    """Anew for each cell: faults are used up."""
    return {
        "none": Case([], "right", "right"),
        "cut once": Case([Fault("cut", after=1000)], "right", "either"),
        "cut for ever": Case([Fault("cut", inf, after=35_000)], "right", "error"),
        "cut at once, 4 times": Case([Fault("cut", 4)], "right", "right"),
        "reset 3 times": Case([Fault("reset", 3, after=30_000)], "right", "either"),
        "reset for ever": Case([Fault("reset", inf)], "error", "error", retries=2),
        "stall once": Case([Fault("stall", after=5000)], "right", "either", retries=9, timeout=0.4),
        "stall for ever": Case([Fault("stall", inf)], "error", "error", retries=1, timeout=0.1),
        "slow": Case([Fault("slow", after=20_000, seconds=0.01)], "right", "right"),
        "500 once": Case([Fault("status", status=500)], "right", "right"),
        "503 4 times": Case([Fault("status", 4, headers={"Retry-After": "0"})], "right", "right"),
        "429 for ever": Case([Fault("status", inf, status=429)], "error", "error", retries=2),
        "403": Case([Fault("status", inf, status=403, skip=1)], "error", "error"),
        "404": Case([Fault("status", inf, status=404, skip=1)], "error", "error"),
        "416": Case([Fault("status", inf, status=416, skip=1)], "error", "error"),
        "replaced": Case([Fault("call", call=replace, skip=2)], "either", "either"),
        "length says more": Case([Fault("more", after=777)], "right", "either"),
        "length says less": Case([Fault("less", after=777)], "right", "either"),
        # The first answer of a web server cannot be told from a page.
        "a page twice": Case([pages(2, 1, r"^GET \S*/a-0\.tar[ ?]")], "right", "either"),
        "a page for ever": Case([pages(inf, 1, r"^GET \S*/a-0\.tar[ ?]")], "error", "either", retries=2),
        "length says less, for ever": Case([Fault("less", inf, after=777)], "error", "error"),
    }


CASES = tuple(cases(lambda: None))


class Store:
    """Two shards behind a proxy."""

    def __init__(self, kind: str, proxy: FaultProxy, base: str, put: Callable[[str, bytes], object]) -> None:
        self.kind, self.proxy, self._put = kind, proxy, put
        self.addresses = [f"{base}/{name}" for name in SHARDS]
        self.inputs = [f"{base}/v.json"] if kind == "view" else self.addresses

    def put(self, shards: dict[str, bytes]) -> None:
        for name, data in shards.items():
            self._put(name, data)


@pytest.fixture(scope="module")
def s3() -> Iterator[Store]:
    with s3_server() as server, fault_proxy(int(server.endpoint.rpartition(":")[2])) as proxy:
        server.bucket("faults")
        os.environ["AWS_ENDPOINT_URL"] = proxy.url
        forget_s3()
        put = lambda name, data: server.client.put_object(Bucket="faults", Key=name, Body=data)  # noqa: E731
        yield Store("s3", proxy, "s3://faults", put)


@pytest.fixture(scope="module")
def view(s3: Store, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """The same store, with a view of both shards."""
    for name, data in view_of(tmp_path_factory.mktemp("view"), OLD).items():
        s3.put({name: data})
    return Store("view", s3.proxy, "s3://faults", s3._put)


def view_of(folder: Path, shards: dict[str, bytes]) -> dict[str, bytes]:
    """The files of a view of shards in a folder, in which they are written."""
    for name, data in shards.items():
        (folder / name).write_bytes(data)
    assert main(["shuffle", *(str(folder / name) for name in SHARDS), "-o", f"{folder}/v.json", "-q"]) == 0
    return {path.name: path.read_bytes() for path in folder.glob("v.*")}


def web_store(mode: str) -> Iterator[Store]:
    with web_server(mode) as server, fault_proxy(server.server_address[1]) as proxy:
        server.validators = ("strong",)
        yield Store(mode, proxy, proxy.url, server.files.__setitem__)


@pytest.fixture(scope="module")
def ranges() -> Iterator[Store]:
    yield from web_store("ranges")


@pytest.fixture(scope="module")
def plain() -> Iterator[Store]:
    yield from web_store("plain")


OPERATIONS = {
    "ls": "ls {} --long",
    "cat": "cat {} -o OUT/o.tar",
    "verify": "verify {} -j 1",
    "gather": "shuffle {} -o OUT/%d.tar --max-count 20 --seed 1 -j 1 --tmp TMP --strategy gather",
    "spill": "shuffle {} -o OUT/%d.tar --max-count 20 --seed 1 -j 1 --tmp TMP --strategy spill",
    "split": "split {} -o OUT/%d.tar --max-count 20 -j 1 --tmp TMP",
    "loader": "",
}


class Result(NamedTuple):
    """What an operation gave: exit code, what it wrote or said, and its error."""

    code: int
    bytes: Any
    err: str


def operate(operation: str, addresses: list[str], run: Command, folder: Path, *words: str) -> Result:
    """Do it, with nothing around."""
    out, tmp = folder / "out", folder / "tmp"
    for one in (out, tmp):
        one.mkdir(parents=True, exist_ok=True)
        for path in sorted(one.rglob("*"), reverse=True):
            path.unlink() if path.is_file() else path.rmdir()
    if operation == "loader":
        try:
            return Result(0, [(one["__key__"], one["bin"]) for one in wds.WebDataset(addresses)], "")
        except WdsError as error:
            return Result(error.exit_code, None, f"{error}")
    command = OPERATIONS[operation].replace("OUT", str(out)).replace("TMP", str(tmp)).split()
    at = command.index("{}")
    ran: Ran = run(*command[:at], *addresses, *command[at + 1 :], *words)
    said = (
        b""
        if operation == "verify" and not ran.code
        else re.sub(rb"\S*\b(a-[01]|v-\d+)\.tar", rb"\1", ran.out)
    )
    wrote = {
        str(path.relative_to(out)): path.read_bytes()
        for path in sorted(out.rglob("*"))
        if path.is_file() and path.suffix == ".tar"
    }
    return Result(ran.code, (said, wrote), ran.err + ran.out.decode("utf-8", "replace"))


TABLE: dict[tuple[str, str], dict[str, str]] = {}


CELLS = [(kind, operation) for kind in ("s3", "ranges", "plain") for operation in OPERATIONS]
CELLS += [("obstore", operation) for operation in ("cat", "loader")]
CELLS += [("view", operation) for operation in OPERATIONS]


@pytest.mark.exhaustive(sample=False)
@pytest.mark.parametrize(("kind", "operation"), CELLS)
def test_cells(
    kind: str,
    operation: str,
    run: Command,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scatter, "REQUEST_BYTES", 60_000)
    if kind == "obstore":
        pytest.importorskip("obstore")
        monkeypatch.setenv("WDSCLI_STORE", "obstore")
    store: Store = request.getfixturevalue("s3" if kind == "obstore" else kind)
    right = []
    for number, shards in enumerate((OLD, NEW)):
        folder = tmp_path / f"local-{number}"
        folder.mkdir()
        view_of(folder, shards)
        names = ["v.json"] if kind == "view" else SHARDS
        result = operate(operation, [str(folder / name) for name in names], run, tmp_path)
        assert result.code == 0, result.err
        right.append(result.bytes)
    row = TABLE.setdefault((kind, operation), {})
    for name in CASES:
        store.put(OLD)
        views.forget()
        case = cases(lambda: store.put(NEW))[name]
        store.proxy.clear(*case.faults)
        words = ("--timeout", str(case.timeout))
        with using(Network(64 << 20, case.retries, case.timeout, 0.001)):
            result = operate(
                operation, store.inputs, run, tmp_path, *(() if operation == "loader" else words)
            )
        row[name] = check(store, name, case, result, right, tmp_path)


@pytest.mark.exhaustive(sample=False)
@pytest.mark.parametrize("operation", ["cat", "verify", "gather", "loader"])
@pytest.mark.parametrize("kind", ["s3", "obstore", "ranges", "view"])
def test_a_page_is_no_payload(
    kind: str,
    operation: str,
    run: Command,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """issue 35, 15: after a cut, some answers, or all, are a page with status 200."""
    monkeypatch.setattr(scatter, "REQUEST_BYTES", 60_000)
    if kind == "obstore":
        pytest.importorskip("obstore")
        monkeypatch.setenv("WDSCLI_STORE", "obstore")
    store: Store = request.getfixturevalue("s3" if kind == "obstore" else kind)
    store.put(OLD)
    view_of(tmp_path, OLD)
    names = ["v.json"] if kind == "view" else SHARDS
    right = operate(operation, [str(tmp_path / name) for name in names], run, tmp_path)
    for times, retries in ((2, 5), (inf, 2)):
        views.forget()
        store.proxy.clear(Fault("cut", 1, where=r"^GET .*a-1\.tar", after=30_000), pages(times, skip=2))
        with using(Network(64 << 20, retries, 30.0, 0.001)):
            result = operate(operation, store.inputs, run, tmp_path)
        context = f"{result.code} {result.err}\n{store.proxy.lines}"
        if times == 2:
            assert result.code == 0, context
            assert result.bytes == right.bytes, context
        else:
            assert result.code != 0, context
            assert "not the requested range (status 200)" in result.err, context


LISTING = """<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>faults</Name>
<Prefix></Prefix><KeyCount>1</KeyCount><MaxKeys>1000</MaxKeys><IsTruncated>false</IsTruncated><Contents><Key>a-0.tar</Key>
<LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>&quot;0cc175b9c0f1b6a831c399e269772661&quot;</ETag>
<Size>SIZE</Size><StorageClass>STANDARD</StorageClass></Contents></ListBucketResult>"""


@pytest.mark.parametrize("size", ["99999999999999999999", "9223372036854775808", "9223372036854775807", "-5"])
@pytest.mark.parametrize("store", ["fsspec", "obstore"])
def test_a_size_that_is_none(
    s3: Store, run: Command, monkeypatch: pytest.MonkeyPatch, store: str, size: str
) -> None:
    """issue 35, 17: nothing is planned for a size without end."""
    if store == "obstore":
        pytest.importorskip("obstore")
    monkeypatch.setenv("WDSCLI_STORE", store)
    s3.put(OLD)
    for operation in (lambda: run("ls", "s3://faults/"), lambda: run("verify", "s3://faults/", "-j", "1")):
        forget_s3()
        listing = LISTING.replace("SIZE", size).encode()
        headers = {"Content-Type": "application/xml"}
        s3.proxy.clear(
            Fault("status", inf, where=r"GET \S+list-type", status=200, headers=headers, body=listing)
        )
        ran = operation()
        assert "Traceback" not in ran.err
        if size == str(2**63 - 1):
            # The first answer has the real size.
            assert ran.code == 0 or "replaced or changed" in ran.err, ran.err
        else:
            assert ran.code == 4, ran.err
            assert f"cannot list s3://faults/: the store reports {size} bytes for faults/a-0.tar" in ran.err
    s3.proxy.clear()
    forget_s3()


def check(store: Store, name: str, case: Case, result: Result, right: list[Any], folder: Path) -> str:
    """The word for one cell."""
    context = f"{store.kind}, {name}: exit {result.code}\n{result.err}\n{store.proxy.lines}"
    expected = case.without_ranges if store.kind == "plain" else case.outcome
    assert "Traceback" not in result.err, context
    assert list((folder / "tmp").iterdir()) == [], context
    if result.code == 0:
        assert expected in ("right", "either"), context
        assert result.bytes in (right if name == "replaced" else right[:1]), context
        return "right"
    assert expected in ("error", "either"), context
    assert result.code in (1, 3, 4), context
    rows = [address.replace(".json", ".rows") for address in store.inputs]
    assert any(address in result.err for address in [*store.addresses, *store.inputs, *rows]), context
    if store.kind != "plain" or name != "none":
        left = [path.name for path in (folder / "out").rglob("*") if path.is_file()]
        assert not [one for one in left if not one.endswith((".tar", ".wdx"))], (left, context)
    return "error"


def test_the_table() -> None:
    """Prints what the cells found."""
    if not TABLE:
        pytest.skip("no cell was looked at")
    columns = list(TABLE)
    print()
    print(" " * 27 + " ".join(f"{kind[:6]:>6}" for kind, _ in columns))
    print(" " * 27 + " ".join(f"{operation:>6}" for _, operation in columns))
    for name in CASES:
        print(f"{name:27}" + " ".join(f"{TABLE[column].get(name, '-'):>6}" for column in columns))
    assert all(len(row) == len(CASES) for row in TABLE.values())
