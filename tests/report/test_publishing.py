"""``wds report --card --croissant``: the documents for the Hub and for Croissant, read by what reads them."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from report_sets import EVIL, write_set
from shard_cases import wds, wds_here
from stores import hub

from wdscli.shards import ShardWriter

pytestmark = pytest.mark.usefixtures("shared_workers")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set of 4 shards with its card and its metadata."""
    folder = write_set(tmp_path_factory.mktemp("published"))
    ran = wds_here("report", folder, "--card", folder / "README.md", "--croissant", folder / "croissant.json")
    assert ran.code == 0, ran.err
    assert "40 samples in 4 shards" in ran.err
    return folder


def head_of(card: Path) -> dict[str, Any]:
    """The card's head, as the Hub reads it."""
    yaml = pytest.importorskip("yaml")
    head: dict[str, Any] = yaml.safe_load(card.read_text().split("---\n")[1])
    return head


def test_the_head_is_what_the_hub_reads(made: Path) -> None:
    head = head_of(made / "README.md")
    assert head["size_categories"] == ["n<1K"]
    assert head["tags"] == ["webdataset", "audio", "image", "text"]
    assert head["configs"] == [
        {"config_name": "default", "data_files": [{"split": "train", "path": ["train-*.tar"]}]}
    ]
    repocard = pytest.importorskip("huggingface_hub").DatasetCard.load(made / "README.md")
    assert repocard.data.size_categories == ["n<1K"]


def test_the_card_has_fields_classes_and_shards(made: Path) -> None:
    text = (made / "README.md").read_text()
    assert "40 samples in 4 shards" in text
    assert "| <code>png</code> | image | 40 |" in text
    assert "| <code>json</code> | <code>score</code> | number | 100% |" in text
    assert "| cat |  | 10 |" in text
    for shard in sorted(made.glob("*.tar")):
        digest = hashlib.sha256(shard.read_bytes()).hexdigest()
        assert f"| <code>{shard.name}</code> | 10 | {shard.stat().st_size:,} | {digest} |" in text


def test_texts_of_a_set_are_neither_html_nor_markdown(tmp_path: Path) -> None:
    with ShardWriter(f"{tmp_path}/train-%06d.tar") as writer:
        for number in range(4):
            labels = {"label": ["[a](http://b)", EVIL][number % 2], "<i>|`x": 1}
            writer.write(str(number), {"json": json.dumps(labels).encode()})
    assert wds_here("report", tmp_path, "--card", tmp_path / "README.md").code == 0
    text = (tmp_path / "README.md").read_text()
    assert "<script>" not in text
    assert "<i>" not in text
    assert r"\[a\](http\://b)" in text
    assert r"&lt;i&gt;\|\`x" in text


def test_the_hub_finds_the_splits_by_the_names_of_shards(tmp_path: Path) -> None:
    for name in ("train-000000.tar", "train-000001.tar", "val/a[1].tar", "test.tar"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        with tarfile.open(tmp_path / name, "w") as tar:
            tar.addfile(tarfile.TarInfo("k.txt"))
    args = [tmp_path / "train-{000000..000001}.tar", tmp_path / "val", tmp_path / "test.tar"]
    assert wds_here("report", *args, "--card", tmp_path / "README.md").code == 0
    files = {
        part["split"]: part["path"] for part in head_of(tmp_path / "README.md")["configs"][0]["data_files"]
    }
    assert files == {"train": ["train-*.tar"], "validation": ["val/a?*?.tar"], "test": ["test.tar"]}


@pytest.mark.parametrize(
    ("license", "head", "rows"),
    [
        ("cc-by-4.0", ["cc-by-4.0"], ["| cc-by-4.0 | all |"]),
        ("json.terms", ["cc-by-2.0", "mit", "other"], ["| none | 1 |", "| MIT | 1 |"]),
    ],
)
def test_licences(tmp_path: Path, license: str, head: list[str], rows: list[str]) -> None:
    terms = ["https://creativecommons.org/licenses/by/2.0/", "MIT", None, "ask *us*"]
    with ShardWriter(f"{tmp_path}/train-%06d.tar") as writer:
        for number, text in enumerate(terms):
            writer.write(str(number), {"json": json.dumps({"terms": text} if text else {}).encode()})
    card, croissant = tmp_path / "README.md", tmp_path / "croissant.json"
    ran = wds_here("report", tmp_path, "--card", card, "--croissant", croissant, "--license", license)
    assert ran.code == 0, ran.err
    assert head_of(card)["license"] == head
    assert [row for row in rows if row not in card.read_text()] == []
    licences = json.loads(croissant.read_text())["license"]
    assert sorted(licences) == (["cc-by-4.0"] if license == "cc-by-4.0" else sorted(filter(None, terms)))


@pytest.fixture
def mlcroissant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The package, with an own folder for what it extracts: it knows shards only by their names."""
    package = pytest.importorskip("mlcroissant")
    extract = import_module("mlcroissant._src.operation_graph.operations.extract")
    monkeypatch.setattr(extract, "EXTRACT_PATH", type(extract.EXTRACT_PATH)(tmp_path / "extracted"))
    return package


def test_croissant_reads_every_payload(made: Path, mlcroissant: Any) -> None:
    """By mlcroissant, which checks the document and reads the shards with it."""
    dataset = mlcroissant.Dataset(jsonld=str(made / "croissant.json"))
    assert dataset.metadata.ctx.issues.errors == set()
    payloads: dict[str, bytes] = {}
    for shard in made.glob("*.tar"):
        with tarfile.open(shard) as tar:
            payloads |= {name: tar.extractfile(name).read() for name in tar.getnames()}  # type: ignore[union-attr]
    for field in ("cls", "json", "npy", "txt", "wav"):
        records = list(dataset.records(field))
        contents = {f"{one[f'{field}/key'].decode()}.{field}": one[f"{field}/content"] for one in records}
        assert contents == {name: data for name, data in payloads.items() if name.endswith(f".{field}")}
    assert len([one for one in dataset.records("png") if one["png/content"].size[1] == 30]) == 40


def test_fields_with_a_common_end_are_told_apart(tmp_path: Path, mlcroissant: Any) -> None:
    with ShardWriter(f"{tmp_path}/train-%06d.tar") as writer:
        writer.write("f/1", {"a.txt": b"long", "txt": b"short"})
    assert wds_here("report", tmp_path, "--croissant", tmp_path / "c.json").code == 0
    dataset = mlcroissant.Dataset(jsonld=str(tmp_path / "c.json"))
    assert list(dataset.records("a.txt")) == [{"a.txt/key": b"f/1", "a.txt/content": b"long"}]
    # mlcroissant 1.1 reads what is excluded, but says that it will not: its issue 772.
    sets = {
        one.id: (one.includes, one.excludes) for one in dataset.metadata.distribution if one.id[:5] == "files"
    }
    assert sets == {"files-a.txt": (["*.a.txt"], None), "files-txt": (["*.txt"], ["*.a.txt"])}


def test_the_manifest_saves_a_read_of_the_shards(tmp_path: Path) -> None:
    """Its SHA-256 is taken unless the size differs."""
    with ShardWriter(f"{tmp_path}/train-%06d.tar", checksum="sha256") as writer:
        writer.write("1", {"txt": b"a"})
    shard, manifest = tmp_path / "train-000000.tar", tmp_path / "train-manifest.json"
    digest = hashlib.sha256(shard.read_bytes()).hexdigest()
    manifest.write_text(manifest.read_text().replace(digest, "0" * 64))
    assert wds_here("report", tmp_path, "--croissant", tmp_path / "c.json").code == 0
    assert json.loads((tmp_path / "c.json").read_text())["distribution"][0]["sha256"] == "0" * 64
    shard.write_bytes(shard.read_bytes() + bytes(512))
    assert wds_here("report", tmp_path, "--croissant", tmp_path / "c.json", "--force").code == 0
    changed = hashlib.sha256(shard.read_bytes()).hexdigest()
    assert json.loads((tmp_path / "c.json").read_text())["distribution"][0]["sha256"] == changed


def test_a_page_and_both_documents_in_one_run(made: Path, tmp_path: Path) -> None:
    outputs = [tmp_path / name for name in ("page.html", "README.md", "c.json")]
    args = ["-o", outputs[0], "--card", outputs[1], "--croissant", outputs[2]]
    assert wds_here("report", made, *args).code == 0
    assert "nothing wrong" in outputs[0].read_text()
    assert outputs[2].read_bytes() == (made / "croissant.json").read_bytes()
    assert wds_here("report", made, *args).code != 0
    assert wds_here("report", made, *args, "--force").code == 0


def test_a_card_for_the_standard_output(made: Path) -> None:
    ran = wds("report", made, "--card", "-")
    assert ran.code == 0
    assert ran.out == (made / "README.md").read_bytes()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "no output"),
        (["--card", "a", "--croissant", "a"], "two outputs have the same name"),
        (["-o", "page.html", "--license", "mit"], "--license is for --card and --croissant"),
        (["--card", "a", "--limit", "3"], "they allow no selection"),
    ],
)
def test_refusals(made: Path, tmp_path: Path, args: list[str], message: str) -> None:
    ran = wds("report", made, *args, cwd=tmp_path)
    assert ran.code == 2
    assert message in ran.err
    assert list(tmp_path.iterdir()) == []


def test_streams_have_no_name_to_publish(made: Path, tmp_path: Path) -> None:
    ran = wds_here("report", f"pipe:cat {made}/train-000000.tar", "--card", tmp_path / "README.md")
    assert ran.code == 2
    assert "no file that can be published" in ran.err


@pytest.mark.exhaustive
def test_one_hf_upload_puts_all_files_on_the_hub(made: Path, tmp_path: Path) -> None:
    """By Hugging Face's own program. The set can be read from there by its name."""
    program = shutil.which("hf", path=str(Path(sys.executable).parent))
    if program is None:
        pytest.skip("the program hf is not installed")
    with hub("ada/pets") as (server, environment):
        env = os.environ | environment | {"HF_HOME": str(tmp_path)}
        command = [program, "upload", "ada/pets", str(made), ".", "--type", "dataset"]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        files = {path.name: path.read_bytes() for path in made.iterdir() if path.is_file()}
        assert {name: data for name, data in server.files.items() if "/" not in name} == files
        listed = subprocess.run(
            [sys.executable, "-m", "wdscli", "ls", "hf://datasets/ada/pets"],
            env=env,
            capture_output=True,
            text=True,
        )
        assert len(re.findall("^n0", listed.stdout, re.MULTILINE)) == 40, listed.stderr
