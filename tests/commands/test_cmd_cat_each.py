"""``wds cat -o '{name}...'``: whole shards copied under their own names, compressed or not."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from packages import NEEDS_ZSTANDARD
from shard_cases import assert_true_set, content, numbered, outputs, tar_of, wds, write_shards
from storage_servers import S3

from wdscli.storage import open_source


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_shards(tmp_path / "in", [numbered(9, "a"), numbered(5, "b"), numbered(7, "c")])
    return tmp_path / "in"


def unpacked(shard: Path) -> bytes:
    with open_source(str(shard)) as source:
        return source.read_at(0, 1 << 30)


def each(folder: Path, output: object, *options: object) -> Any:
    return wds("cat", folder, "-o", output, *options)


@pytest.mark.parametrize("end", [pytest.param(".tar.zst", marks=NEEDS_ZSTANDARD), ".tgz", ".tar"])
def test_names_stay(folder: Path, end: str, tmp_path: Path) -> None:
    done = each(folder, f"{tmp_path}/out/{{name}}{end}")
    assert (done.code, done.err.startswith("wrote 21 samples in 3 shards")) == (0, True)
    shards = outputs(tmp_path / "out", f"*{end}")
    assert [shard.name.removesuffix(end) for shard in shards] == ["in-0", "in-1", "in-2"]
    assert [unpacked(shard) for shard in shards] == [tar.read_bytes() for tar in outputs(folder, "*.tar")]
    listed = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert [one["url"] for one in listed["shardlist"]] == [shard.name for shard in shards]
    assert wds("verify", "-q", "--checksums", tmp_path / "out").out == b""


def test_there_and_back(folder: Path, tmp_path: Path) -> None:
    assert each(folder, f"{tmp_path}/packed/{{name}}.tar.xz").code == 0
    assert each(tmp_path / "packed", f"{tmp_path}/back/{{name}}.tar").code == 0
    assert_true_set(tmp_path / "back", "")
    for one in outputs(folder, "*.tar"):
        assert (tmp_path / "back" / one.name).read_bytes() == one.read_bytes()


def test_words_around_the_name(folder: Path, tmp_path: Path) -> None:
    assert each(folder, f"{tmp_path}/out/new-{{name}}-v2.tar").code == 0
    assert [path.name for path in outputs(tmp_path / "out", "*.tar")] == [
        f"new-in-{n}-v2.tar" for n in range(3)
    ]
    assert (tmp_path / "out" / "new-manifest.json").exists()


def test_jobs_change_no_byte(folder: Path, tmp_path: Path, shared_workers: Any) -> None:
    for jobs in (1, 2):
        assert each(folder, f"{tmp_path}/{jobs}/{{name}}.tar.gz", "-j", jobs).code == 0
    assert content(tmp_path / "1") == content(tmp_path / "2")


def test_jobs_are_for_many_shards(folder: Path, tmp_path: Path) -> None:
    done = each(folder, tmp_path / "all.tar", "-j", 2)
    assert (done.code, "-j works only if each shard is copied to its own output" in done.err) == (2, True)
    assert wds("cat", folder, "--to", "raw", "--fields", "cls", "-j", 2).code == 2


def test_a_dry_run_writes_nothing(folder: Path, tmp_path: Path) -> None:
    done = each(folder, f"{tmp_path}/out/{{name}}.tar", "-n")
    assert (done.code, done.err.startswith("would write 21 samples")) == (0, True)
    assert not (tmp_path / "out").exists()


def test_two_inputs_of_one_name(folder: Path, tmp_path: Path) -> None:
    (folder / "in-1.tar.gz").write_bytes(gzip.compress(tar_of(numbered(2, "z")[0])))
    done = each(folder, f"{tmp_path}/out/{{name}}.tar")
    assert done.code == 2
    assert "in-1.tar" in done.err
    assert "in-1.tar.gz would both be written as in-1" in done.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("output", "options"),
    [
        ("{name}-%d.tar", ()),
        ("{name}-{name}.tar", ()),
        ("{name}-{0..2}.tar", ()),
        ("pipe:cat > {name}", ()),
        ("{name}.tar", ("--limit", 2)),
        ("{name}.tar", ("--keys", "a*")),
        ("{name}.tar", ("--on-duplicate", "skip")),
        ("{name}.tar", ("--rekey", "{index}")),
    ],
)
def test_what_cannot_be_meant(folder: Path, output: str, options: tuple[Any, ...], tmp_path: Path) -> None:
    prefix = "" if output.startswith("pipe:") else f"{tmp_path}/out/"
    done = each(folder, prefix + output, *options)
    assert (done.code, done.err.startswith("error: ")) == (2, True)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", ["create", "repair"])
def test_commands_without_input_names_refuse_the_field(command: str, folder: Path, tmp_path: Path) -> None:
    done = wds(command, folder, "-o", f"{tmp_path}/out/{{name}}.tar")
    assert (done.code, "{name} is the name of an input shard" in done.err) == (2, True)
    assert not (tmp_path / "out").exists()


def test_split_selects_and_keeps_the_names(folder: Path, tmp_path: Path) -> None:
    assert wds("split", folder, "-o", f"{tmp_path}/out/{{name}}.tar", "--drop", "cls").code == 0
    names = [{path.name for path in where.glob("*.tar")} for where in (folder, tmp_path / "out")]
    assert names[0] == names[1] != set()


def test_what_is_there_is_not_replaced_unasked(folder: Path, tmp_path: Path) -> None:
    target = f"{tmp_path}/out/{{name}}.tar"
    assert each(folder, target).code == 0
    before = content(tmp_path / "out")
    done = each(folder, target)
    assert (done.code, "output exists" in done.err) == (4, True)
    (tmp_path / "out" / "in-1.tar").write_bytes(b"other")
    assert each(folder, target, "--force").code == 0
    assert content(tmp_path / "out") == before
    assert each(folder, f"{folder}/{{name}}.tar", "--force").code == 2


def test_a_damaged_shard(folder: Path, tmp_path: Path, shared_workers: Any) -> None:
    shard = folder / "in-1.tar"
    shard.write_bytes(shard.read_bytes()[:3000])
    done = each(folder, f"{tmp_path}/out/{{name}}.tar", "-j", 2)
    assert (done.code, "in-1.tar" in done.err) == (3, True)
    assert not (tmp_path / "out" / "manifest.json").exists()
    done = each(folder, f"{tmp_path}/out/{{name}}.tar", "-j", 2, "--force", "--on-error", "skip")
    assert done.code == 0
    assert "warning: " in done.err
    assert "left out" in done.err
    assert len(outputs(tmp_path / "out", "*.tar")) == 3


def test_views_beside_a_set_are_carried(folder: Path, tmp_path: Path) -> None:
    """A view of the copied shards comes along. A view of other shards, or of shards with other bytes, does not."""
    assert wds("index", folder).code == 0
    assert wds("shuffle", folder, "--seed", 3, "-o", folder / "mixed.json").code == 0
    (folder / "notes.json").write_text("{}")
    assert (
        wds("cat", folder / "in-0.tar", folder / "in-1.tar", "-o", f"{tmp_path}/two/{{name}}.tar").code == 0
    )
    assert not outputs(tmp_path / "two", "mixed.*")
    assert each(folder, f"{tmp_path}/packed/{{name}}.tgz").code == 0
    assert not outputs(tmp_path / "packed", "mixed.*")
    assert each(folder, f"{tmp_path}/out/{{name}}.tar").code == 0
    for name in ("mixed.json", "mixed.rows"):
        assert (tmp_path / "out" / name).read_bytes() == (folder / name).read_bytes()
    assert not (tmp_path / "out" / "notes.json").exists()
    listed = wds("ls", tmp_path / "out" / "mixed.json")
    assert (listed.code, listed.out) == (0, wds("ls", folder / "mixed.json").out)


@pytest.mark.parametrize("options", [("-o", "all.tar"), ("--to", "all.jsonl"), ()])
def test_only_a_copy_of_each_shard_can_resume(folder: Path, options: tuple[str, ...], tmp_path: Path) -> None:
    options = tuple(f"{tmp_path}/{word}" if word.startswith("all") else word for word in options)
    refused = wds("cat", folder, *options, "--resume")
    assert refused.code == 2
    assert "--resume works only if each shard is copied to its own output" in refused.err


@pytest.mark.exhaustive
def test_an_upload_is_resumed(s3: S3, folder: Path, tmp_path: Path) -> None:
    """After a failure, finished shards are kept, and the result is the same as without the failure."""
    bucket, done = s3.bucket("cat-each"), tmp_path / "repaired"
    assert wds("index", folder, "--values", "int(cls)").code == 0
    post = f"case {{}} in *in-2.tar) test -e {done};; esac"
    words = ("-j", 1, "--post", post)
    assert each(folder, f"s3://{bucket}/set/{{name}}.tar", *words).code == 5
    assert "set/manifest.json" not in s3.names(bucket)
    done.touch()
    s3.seen.begin_anew()
    resumed = each(folder, f"s3://{bucket}/set/{{name}}.tar", "--resume", *words)
    assert (resumed.code, "kept 2 shards" in resumed.err) == (0, True), resumed.err
    written = {request.key for request in s3.seen.settled() if request.verb == "PUT"}
    assert {key for key in written if key.endswith(".tar")} == {"set/in-2.tar"}
    assert each(folder, f"s3://{bucket}/whole/{{name}}.tar", *words).code == 0
    names = [name.removeprefix("set/") for name in s3.names(bucket) if name.startswith("set/")]
    assert names == [name.removeprefix("whole/") for name in s3.names(bucket) if name.startswith("whole/")]
    assert {"in-0.tar", ".wds/in-0.tar.wdx", "manifest.json"} <= set(names)
    shards = [name for name in names if name.endswith(".tar")]
    assert all(s3.get(bucket, f"set/{name}") == (folder / name).read_bytes() for name in shards)
    s3.seen.begin_anew()
    assert wds("ls", f"s3://{bucket}/set/", "--where", "int(cls) >= 0").code == 0
    assert not [
        request for request in s3.seen.settled() if request.verb == "GET" and request.key.endswith(".tar")
    ]
