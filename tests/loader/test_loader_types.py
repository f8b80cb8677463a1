"""What the annotations of the loader say is what comes; mypy reads the same program with scripts/check."""

from __future__ import annotations

from pathlib import Path

import pytest
import typed_training

import wdscli.loader as wds
from wdscli.shards import ShardWriter


@pytest.fixture
def urls(tmp_path: Path) -> str:
    with ShardWriter(f"{tmp_path}/in-%06d.tar", max_count=4) as writer:
        for number in range(10):
            writer.write(f"n{number}", {"cls": b"%d" % number, "txt": b"text"})
    return str(tmp_path)


def test_the_typed_program_gives_what_its_types_say(urls: str) -> None:
    pytest.importorskip("torch")
    key, text, keys, columns, first, batches = typed_training.main(urls)
    assert (key, text, first) == ("n9", b"text", 0)
    assert keys == ["N1", "N3", "N5", "N7", "N9"]
    assert columns == batches == [4, 4, 2]


def test_what_mypy_refuses_python_refuses_with_the_nearest_name(urls: str) -> None:
    with pytest.raises(AttributeError, match="did you mean shuffle"):
        wds.shufle(100)
    for refused in (
        lambda: wds.WebDataset(urls, shufle="window"),
        lambda: wds.WebDataset(urls).decode("pil", hander=print),
        lambda: wds.shuffle(bufsiz=100),
    ):
        with pytest.raises(TypeError, match="unexpected keyword argument"):
            refused()


def test_classes_take_types_when_they_run(urls: str) -> None:
    data: wds.WebDataset[wds.Sample] = wds.WebDataset(urls).decode()
    assert wds.WebDataset[wds.Sample] is not None
    assert type(next(iter(data))) is wds.RawSample is dict
