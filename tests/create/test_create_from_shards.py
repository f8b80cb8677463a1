"""``create --from shards:SET``: samples of existing shards by another key rule, and with repeated keys (issue 39.4)."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from pathlib import Path

import pytest
from indexing import index
from shard_cases import samples_of, tar_of, wds_here

pytestmark = pytest.mark.usefixtures("shared_workers")
DOTS = ["22.05.png", "22.05.txt", "22.06.png", "22.06.txt", "d.e/x.1.jpg", "d.e/x.2.jpg", "d.e/y.cls"]
MASKS = ["a/s1-img.png", "a/s1-mask.png", "a/s2-img.png", "b.c/s2-mask.png"]
TWICE = ["a.jpg", "a.txt", "a.jpg", "a.txt", "b.txt"]
LAST_DOT = ["--key-rule", "last-dot"]


def write(path: Path, names: list[str]) -> Path:
    """A shard whose payloads are all different."""
    path.write_bytes(tar_of([(name, f"{number} {name}".encode()) for number, name in enumerate(names)]))
    return path


def created(folder: Path, *args: object) -> list[tuple[str, tuple[tuple[str, bytes], ...]]]:
    ran = wds_here("create", *args, "-o", folder / "out.tar", "--force")
    assert ran.code == 0, ran.err
    return samples_of(folder / "out.tar")


@pytest.mark.parametrize(
    ("names", "rule"),
    [
        (DOTS, "last-dot"),
        (DOTS, "first-dot"),
        (MASKS, r"(.*)-([a-z]+\.png)"),
        (MASKS, r"(?P<key>.*/s\d)-(?P<field>.*)"),
    ],
)
@pytest.mark.parametrize("has_index", [False, True])
def test_the_rule_means_the_same_as_for_files(
    tmp_path: Path, names: list[str], rule: str, has_index: bool
) -> None:
    """The oracle unpacks the shard, and makes samples of the files. An index by the usual rule changes nothing."""
    shard = write(tmp_path / "in.tar", names)
    if has_index:
        index([str(shard)])
    with tarfile.open(shard) as tar:
        tar.extractall(tmp_path / "files", filter="data")
    samples = created(tmp_path, "--from", f"shards:{shard}", "--key-rule", rule)
    unpacked = created(tmp_path, tmp_path / "files", "--key-rule", rule)
    assert sorted((key, sorted(fields)) for key, fields in samples) == sorted(
        (key, sorted(fields)) for key, fields in unpacked
    )
    by_pipe = created(tmp_path, "--from", f"shards:pipe:cat {shard}", "--key-rule", rule)
    assert by_pipe == samples


def test_order_and_fields_are_kept(tmp_path: Path) -> None:
    shard = write(tmp_path / "in.tar", ["z.1.txt", "z.1.jpg", "a.1.jpg", "a.1.txt"])
    (tmp_path / "in.tar.gz").write_bytes(gzip.compress(shard.read_bytes()))
    for address in (shard, tmp_path / "in.tar.gz"):
        samples = created(tmp_path, "--from", f"shards:{address}", *LAST_DOT)
        assert [(key, [field for field, _ in fields]) for key, fields in samples] == [
            ("z_1", ["txt", "jpg"]),
            ("a_1", ["jpg", "txt"]),
        ]


def test_neighbours_with_one_key_are_told_apart(tmp_path: Path) -> None:
    source = f"shards:{write(tmp_path / 'in.tar', TWICE)}"
    ran = wds_here("create", "--from", source, "-o", tmp_path / "out.tar")
    assert ran.code == 2 or ran.code == 3
    assert '"a.jpg" comes twice' in ran.err
    first = (("jpg", b"0 a.jpg"), ("txt", b"1 a.txt"))
    second = (("jpg", b"2 a.jpg"), ("txt", b"3 a.txt"))
    last = ("b", (("txt", b"4 b.txt"),))
    assert created(tmp_path, "--from", source, "--on-duplicate", "skip") == [("a", first), last]
    samples = created(tmp_path, "--from", source, "--on-duplicate", "rekey")
    assert [fields for _, fields in samples] == [first, second, last[1]]
    assert len({key for key, _ in samples}) == 3
    assert samples[0][0] == "a"


def test_two_keys_that_become_equal(tmp_path: Path) -> None:
    shard = write(tmp_path / "in.tar", ["a.b.png", "a_b.txt"])
    ran = wds_here("create", "--from", f"shards:{shard}", *LAST_DOT, "-o", tmp_path / "out.tar")
    assert ran.code
    assert 'the keys "a.b" and "a_b" would both be written as "a_b"' in ran.err


def test_members_of_no_sample_are_counted(tmp_path: Path) -> None:
    names = ["README", "a.1.txt", "._a.1.txt", "__x__/b.1.txt", "c/"]
    shard = tmp_path / "in.tar"
    with tarfile.open(shard, "w") as tar:
        for name in names:
            info = tarfile.TarInfo(name)
            info.type = tarfile.DIRTYPE if name.endswith("/") else tarfile.REGTYPE
            tar.addfile(info, io.BytesIO())
    ran = wds_here(
        "create",
        "--from",
        f"shards:{shard}",
        *LAST_DOT,
        "-o",
        tmp_path / "out.tar",
        "--report",
        tmp_path / "left",
    )
    assert ran.code == 0, ran.err
    assert [key for key, _ in samples_of(tmp_path / "out.tar")] == ["a_1"]
    left = {
        line["source"]: line["reason"]
        for line in map(json.loads, (tmp_path / "left").read_text().splitlines())
    }
    assert left == {"README": "no-field", "._a.1.txt": "appledouble", "__x__/b.1.txt": "dunder"}


def test_links_and_damage_are_errors(tmp_path: Path) -> None:
    shard = tmp_path / "in.tar"
    with tarfile.open(shard, "w") as tar:
        link = tarfile.TarInfo("a.txt")
        link.type, link.linkname = tarfile.SYMTYPE, "b"
        tar.addfile(link)
    ran = wds_here("create", "--from", f"shards:{shard}", "-o", tmp_path / "out.tar")
    assert ran.code == 3
    assert "samples consist of regular files" in ran.err
    shard.write_bytes(write(shard, DOTS).read_bytes()[:1500])
    ran = wds_here("create", "--from", f"shards:{shard}", *LAST_DOT, "-o", tmp_path / "out.tar")
    assert ran.code == 3
    assert not (tmp_path / "out.tar").exists()


def test_other_rules_make_other_runs(tmp_path: Path) -> None:
    """The rule and the shards decide the bytes, for --resume and --if-changed."""
    source = f"shards:{write(tmp_path / 'in.tar', DOTS)}"
    args = ["create", "--from", source, "-o", tmp_path / "out/%06d.tar", "--max-count", 2, "--if-changed"]
    assert wds_here(*args, *LAST_DOT).code == 0
    assert "nothing to do" in wds_here(*args, *LAST_DOT).err
    assert "nothing to do" not in wds_here(*args).err
    assert wds_here(*args, *LAST_DOT).code == 0
    write(tmp_path / "in.tar", DOTS[2:])
    assert "nothing to do" not in wds_here(*args, *LAST_DOT).err


@pytest.mark.parametrize("option", [["--column", "txt=a"], ["--key-column", "a"], ["--json-rest"]])
def test_options_of_columns_are_refused(tmp_path: Path, option: list[str]) -> None:
    shard = write(tmp_path / "in.tar", DOTS)
    ran = wds_here("create", "--from", f"shards:{shard}", *option, "-o", tmp_path / "out.tar")
    assert ran.code == 2
    assert "--from shards: takes whole samples" in ran.err


def test_class_names_are_kept(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / "files" / name).mkdir(parents=True)
        (tmp_path / "files" / name / "1.txt").write_text(name)
    ran = wds_here("create", tmp_path / "files", "--label-from", "parent", "-o", tmp_path / "in/%06d.tar")
    assert ran.code == 0, ran.err
    ran = wds_here("create", "--from", f"shards:{tmp_path / 'in'}", "-o", tmp_path / "out/%06d.tar")
    assert ran.code == 0, ran.err
    (manifest,) = (tmp_path / "out").glob("*manifest.json")
    assert json.loads(manifest.read_text())["wdscli"]["classes"] == ["cat", "dog"]


@pytest.mark.parametrize("command", ["split", "cat", "merge", "map", "shuffle", "sort"])
def test_other_commands_name_the_way(command: str) -> None:
    ran = wds_here(command, "in.tar", "-o", "out.tar", *LAST_DOT)
    assert ran.code == 2
    assert "wds create --from shards:SET --key-rule RULE -o OUT" in ran.err
