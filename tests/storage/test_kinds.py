"""A store is a row of one table: what a row says holds in every module, and no other module lists stores."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import _registry, known_implementations

from wdscli import storage
from wdscli.errors import InputError, OutputError, OutputExistsError
from wdscli.storage import kinds, open_sink, open_source, remote
from wdscli.storage.opening import has_temporaries
from wdscli.storage.ranges import version_at
from wdscli.storage.retry import Transient, is_passing

ROOM = Path(storage.__file__).parent


class Toys(MemoryFileSystem):  # type: ignore[misc]
    """A store that no module has heard of."""

    protocol = "toy"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = []

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.replace("toy://", "memory://")))

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        if path.endswith("denied"):
            raise ToyDeniedError("no")
        found: dict[str, Any] = super().info(path, **options)
        return {**found, "paint": "red"}


class ToyDeniedError(Exception):
    status = 403


class ToyBusyError(Exception):
    pass


@pytest.fixture
def row(monkeypatch: pytest.MonkeyPatch) -> Iterator[kinds.StoreKind]:
    fsspec.register_implementation("toy", Toys, clobber=True)
    kind = kinds.StoreKind(package="toyfs", container="box", login="ask Santa", versions=("paint",))
    monkeypatch.setitem(kinds.KINDS, "toy", kind)
    Toys.pseudo_dirs[:] = ["", "/box"]
    yield kind
    Toys.store.clear()
    remote._found.clear()


def put(name: str) -> None:
    with open_sink(f"toy://box/{name}") as sink:
        sink.write(b"x" * 100)


def test_its_word_for_what_objects_lie_in(row: kinds.StoreKind) -> None:
    with pytest.raises(InputError, match='there is no box "gone"'):
        open_source("toy://gone/a.tar")


def test_its_hint_for_an_account_that_is_refused(row: kinds.StoreKind) -> None:
    with pytest.raises(InputError, match="the server answered 403") as caught:
        open_source("toy://box/denied")
    assert caught.value.hint == "ask Santa"


def test_its_package(row: kinds.StoreKind, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = {"class": "no_such_package.Toys", "err": "install it"}
    monkeypatch.delitem(_registry, "toy")
    monkeypatch.setitem(known_implementations, "toy", missing)
    with pytest.raises(InputError, match="its backend is not installed") as caught:
        open_source("toy://box/a.tar")
    assert caught.value.hint == "pip install toyfs"


def test_its_versions(row: kinds.StoreKind) -> None:
    put("a.tar")
    assert version_at("toy://box/a.tar") == (100, "paint:red")


@pytest.mark.parametrize(("writes", "is_moved"), [("rename", True), ("upload", False)])
def test_how_a_write_ends(
    row: kinds.StoreKind, monkeypatch: pytest.MonkeyPatch, writes: Any, is_moved: bool
) -> None:
    monkeypatch.setitem(kinds.KINDS, "toy", row._replace(writes=writes))
    moved: list[str] = []
    original = Toys.mv
    monkeypatch.setattr(Toys, "mv", lambda fs, old, new: [moved.append(new), original(fs, old, new)])
    put("b.tar")
    assert (moved == ["/box/b.tar"], has_temporaries("toy://box/")) == (is_moved, is_moved)
    with pytest.raises(OutputExistsError):
        put("b.tar")
    monkeypatch.setitem(kinds.KINDS, "toy", row._replace(writes="never"))
    with pytest.raises(OutputError, match="cannot write"):
        put("c.tar")


def test_its_errors_that_may_pass() -> None:
    assert not is_passing(ToyBusyError())
    assert is_passing(Transient("busy"))
    for name in kinds.KINDS["az"].passing | kinds.KINDS["http"].passing:
        assert is_passing(type(name, (Exception,), {})())


def test_no_other_module_lists_stores() -> None:
    shared = {"http", "https"}  # addresses says what a web address is
    for path in sorted(ROOM.glob("*.py")):
        texts = {
            node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)
        }
        assert path.name == "kinds.py" or (texts & kinds.KINDS.keys()) - shared <= {"s3"}, path.name
