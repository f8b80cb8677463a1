"""What training code catches: our errors are the errors of Python that they are like, and nothing in here
takes one of ours for one of the system's."""

from __future__ import annotations

import copy
import errno
import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from shard_cases import numbered, tar_of, wds, write_shards

import wdscli.loader as loader
from wdscli.errors import (
    DataError,
    EngineError,
    InputError,
    InputIsFolderError,
    InputNotFoundError,
    OutputError,
    OutputExistsError,
    StorageError,
    UsageError,
    WdsError,
)
from wdscli.shards import open_set
from wdscli.storage import list_folder, open_sink, open_source


def read_all(address: object) -> bytes:
    with open_source(str(address)) as source:
        return source.read_at(0, 1)


class TestLikeTheSystems:
    def test_a_file_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError) as caught:
            read_all(tmp_path / "no.tar")
        error = caught.value
        assert isinstance(error, InputError)
        assert isinstance(error, InputNotFoundError)
        assert (error.errno, error.filename) == (errno.ENOENT, str(tmp_path / "no.tar"))
        assert error.strerror == os.strerror(errno.ENOENT)
        assert str(error) == f"cannot read {tmp_path}/no.tar: no such file"

    def test_a_file_that_may_not_be_read(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(path: Any, *_: Any, **__: Any) -> Any:
            raise PermissionError(errno.EACCES, "Permission denied", path)

        monkeypatch.setattr(os, "open", refuse)
        with pytest.raises(PermissionError) as caught:
            read_all("a.tar")
        assert isinstance(caught.value, InputError)
        with pytest.raises(PermissionError) as refused, open_sink(str(tmp_path / "b.tar")):
            pass
        assert isinstance(refused.value, OutputError)

    def test_a_folder(self, tmp_path: Path) -> None:
        with pytest.raises(IsADirectoryError) as caught:
            read_all(tmp_path)
        assert isinstance(caught.value, InputIsFolderError)
        with pytest.raises(IsADirectoryError), open_sink(str(tmp_path), force=True):
            pass

    def test_an_output_that_is_there(self, tmp_path: Path) -> None:
        (tmp_path / "a.tar").touch()
        with pytest.raises(FileExistsError) as caught, open_sink(str(tmp_path / "a.tar")):
            pass
        assert caught.value.errno == errno.EEXIST

    def test_nothing_that_matches(self, tmp_path: Path) -> None:
        for name in ("x-*.tar", ""):
            with pytest.raises(FileNotFoundError):
                open_set([f"{tmp_path}/{name}"])
        with pytest.raises(FileNotFoundError):
            list_folder(str(tmp_path / "no"))

    def test_an_object_that_is_not_there(self) -> None:
        with pytest.raises(FileNotFoundError) as caught:
            read_all("memory://bucket/no.tar")
        assert isinstance(caught.value, InputNotFoundError)
        assert caught.value.errno == errno.ENOENT

    def test_bad_data_is_a_value_error(self, tmp_path: Path) -> None:
        (tmp_path / "a.tar").write_bytes(b"no tar" * 1000)
        with pytest.raises(ValueError, match="tar") as caught:
            list(loader.WebDataset(str(tmp_path / "a.tar")))
        assert isinstance(caught.value, DataError)

    def test_the_loader(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            list(loader.WebDataset(str(tmp_path / "a.tar")))

    def test_others_are_what_they_were(self) -> None:
        for kind in (UsageError, EngineError):
            assert not isinstance(kind("x"), (OSError, ValueError))
        assert not isinstance(DataError("x"), OSError)
        assert type(InputError("x")) is InputError
        assert InputError("x").errno is None


@pytest.mark.parametrize(
    "again",
    [lambda error: pickle.loads(pickle.dumps(error)), copy.copy, copy.deepcopy],
    ids=("pickle", "copy", "deepcopy"),
)
@pytest.mark.parametrize(
    "error",
    [
        InputError("one", hint="two"),
        InputError("one", hint="two", cause=FileNotFoundError(2, "No such file or directory", "a.tar")),
        OutputError("one", cause=OSError(errno.ENOSPC, "No space left on device")),
        OutputExistsError("one"),
        DataError("one", code="truncated", shard="a.tar", offset=3, member="m", hint="h"),
    ],
    ids=repr,
)
def test_they_survive_pickling(error: WdsError, again: Callable[[WdsError], WdsError]) -> None:
    back = again(error)
    assert type(back) is type(error)
    assert (str(back), repr(back), back.hint, back.args) == (str(error), repr(error), error.hint, error.args)
    assert back.__dict__ == error.__dict__
    if isinstance(error, StorageError):
        assert isinstance(back, StorageError)
        assert (back.errno, back.strerror, back.filename) == (error.errno, error.strerror, error.filename)


def fails(*_: object) -> Iterator[Any]:
    raise InputError("the input is gone")
    yield


class TestNotTakenForTheSystems:
    """Where an OSError of a write is told as such, an error of the input that is read meanwhile stays what it is."""

    @pytest.mark.parametrize(
        "command",
        ["cat {} -o out.tar", "cat {} --to d/", "shuffle {} -o out-%d.tar", "sort {} -o out-%d.tar"],
    )
    def test_a_pipe_that_fails_in_mid_payload(self, tmp_path: Path, command: str) -> None:
        (tmp_path / "a.tar").write_bytes(tar_of([("k.bin", b"x" * (9 << 20)), ("l.bin", b"y")]))
        pipe = "pipe:head -c 7000000 a.tar; exit 3"
        ran = wds(*[pipe if word == "{}" else word for word in command.split()], cwd=tmp_path)
        assert ran.code == 4
        assert f"error: {pipe} failed: exit status 3" in ran.err

    def test_a_stretch_of_a_shard(self, tmp_path: Path) -> None:
        from wdscli.copy.spill import _write_to_file

        class Chunk:
            def write(self, *_: Any) -> None:
                raise InputError("the input is gone")

        with pytest.raises(InputError, match="the input is gone"):
            _write_to_file(str(tmp_path / "a"), 0, Chunk(), None)  # type: ignore[arg-type]

    def test_an_unpacked_file(self, tmp_path: Path) -> None:
        from wdscli.look.unpack import SelectedMember, _Folder

        part = SelectedMember(b"jpg", 1, SimpleNamespace(pieces=fails))  # type: ignore[arg-type]
        with pytest.raises(InputError, match="the input is gone"):
            _Folder(str(tmp_path), False).write(b"a.jpg", part)

    def test_a_payload_that_cannot_be_had_is_not_taken_for_one_that_is_no_text(self) -> None:
        from wdscli.look.unpack import SelectedMember, _json_value

        def cut(_: int) -> bytes:
            raise DataError("archive ends inside a member", code="truncated")

        with pytest.raises(DataError, match="archive ends"):
            part = SelectedMember(b"txt", 1, SimpleNamespace(payload=cut))  # type: ignore[arg-type]
            _json_value(part, base64=True)

    def test_a_payload_at_an_address(self) -> None:
        from wdscli.create.payloads import read_pieces

        with pytest.raises(InputError, match=r"^cannot read memory://b/no: no such object$"):
            list(read_pieces("memory://b/no", 3, memoryview(bytearray(4))))

    def test_a_special_file_among_those_that_are_packed(self, tmp_path: Path) -> None:
        (tmp_path / "in").mkdir()
        os.mkfifo(tmp_path / "in/a.jpg")
        ran = wds("create", "in", "-o", "out-%d.tar", cwd=tmp_path)
        assert ran.code == 4
        assert ran.err.count("cannot read") == 1
        assert "it is a device, a socket or a named pipe" in ran.err

    def test_a_value_that_is_looked_into(self, tmp_path: Path) -> None:
        write_shards(tmp_path / "in", [numbered(1)])
        (tmp_path / "in/in-0.tar").write_bytes(tar_of([("a.json", b"{nope")]))
        ran = wds("cat", "in/in-0.tar", "-o", "out.tar", "--where", "json['a'] == 1", cwd=tmp_path)
        assert ran.code == 3
        assert ran.err.count("error:") == 1
        assert "cannot be evaluated" not in ran.err
