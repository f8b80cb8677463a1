"""wds create: every source and option seen in the shards, and the same bytes from the same files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from wdscli.cli.main import main
from wdscli.ordering import rank

Tree = dict[str, bytes | str]

PHOTOS: Tree = {
    "cats/1.jpg": b"\xff\xd8" + b"c" * 700,
    "cats/1.json": b'{"n": 1}',
    "cats/2.jpg": b"\xff\xd8" + b"d" * 10,
    "dogs/a.b.jpg": b"second dot",
    "dogs/a-b.jpg": b"hyphen sorts before the dot",
    "dogs/a.cls": b"0",
    "dogs/a.jpg": b"dog",
    "empty.txt": b"",
}
MEMBERS = [
    "cats/1.jpg",
    "cats/1.json",
    "cats/2.jpg",
    "dogs/a.b.jpg",
    "dogs/a.cls",
    "dogs/a.jpg",
    "dogs/a-b.jpg",
    "empty.txt",
]


def plant(root: Path, tree: Tree) -> Path:
    for name, content in tree.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return root


def read(path: Path) -> list[tuple[str, bytes]]:
    with tarfile.open(path) as tar:
        return [(member.name, tar.extractfile(member).read()) for member in tar]  # type: ignore[union-attr]


def names(path: Path) -> list[str]:
    return [name for name, _ in read(path)]


def shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.tar"))


def manifest(folder: Path, name: str = "o") -> dict[str, Any]:
    return json.loads((folder / f"{name}-manifest.json").read_text())  # type: ignore[no-any-return]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return plant(tmp_path / "photos", PHOTOS)


Create = Callable[..., Path]


@pytest.fixture
def create(tmp_path: Path) -> Create:
    """Runs ``wds create``, which must end well; the folder of the shards ``o-%06d.tar``."""
    count = 0

    def run(*args: object, pattern: str = "o-%06d.tar", code: int = 0) -> Path:
        nonlocal count
        count += 1
        out = tmp_path / f"out{count}"
        assert main(["create", *map(str, args), "-o", f"{out}/{pattern}"]) == code
        return out

    return run


def fails(capsys: pytest.CaptureFixture[str], code: int, *args: object) -> str:
    """What a command that must end with ``code`` says."""
    capsys.readouterr()
    assert main(["create", *map(str, args)]) == code
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert said.startswith("error: ")
    return said


# What comes out


def test_a_folder_becomes_samples_in_the_order_of_their_keys(photos: Path, create: Create) -> None:
    out = create(photos)
    assert names(out / "o-000000.tar") == MEMBERS
    assert dict(read(out / "o-000000.tar")) == PHOTOS
    told = manifest(out)
    assert told["shardlist"][0]["nsamples"] == 5
    assert told["shardlist"][0]["filesize"] == (out / "o-000000.tar").stat().st_size
    assert told["wdscli"]["made"]["operation"] == "create"
    assert str(photos) not in json.dumps(told)
    assert (out / ".wds" / "o-000000.tar.wdx").is_file()


def test_gnu_tar_writes_the_same_bytes(photos: Path, create: Create, tmp_path: Path) -> None:
    out = create(photos)
    form = [
        "--format=ustar",
        "--mtime=@0",
        "--owner=0",
        "--group=0",
        "--numeric-owner",
        "--mode=0644",
        "-b",
        "1",
    ]
    subprocess.run(
        ["tar", *form, "--no-recursion", "-cf", tmp_path / "gnu.tar", "-C", photos, *MEMBERS], check=True
    )
    assert (out / "o-000000.tar").read_bytes() == (tmp_path / "gnu.tar").read_bytes()


def test_webdataset_reads_it(photos: Path, create: Create) -> None:
    webdataset = pytest.importorskip("webdataset")
    out = create(photos)
    samples = list(webdataset.WebDataset(str(out / "o-000000.tar"), shardshuffle=False))
    assert [sample["__key__"] for sample in samples] == ["cats/1", "cats/2", "dogs/a", "dogs/a-b", "empty"]
    assert samples[2]["b.jpg"] == b"second dot"


def test_verify_finds_nothing(photos: Path, create: Create, capsys: pytest.CaptureFixture[str]) -> None:
    out = create(photos)
    assert main(["verify", "--checksums", str(out / "o-manifest.json")]) == 0


def test_files_and_several_folders(photos: Path, create: Create, tmp_path: Path) -> None:
    more = plant(tmp_path / "more", {"z.txt": b"z", "cats/1.txt": b"joined"})
    single = tmp_path / "deep" / "alone.png"
    plant(tmp_path, {"deep/alone.png": b"p"})
    out = create(photos, single, more)
    found = names(out / "o-000000.tar")
    assert found[:4] == ["alone.png", "cats/1.jpg", "cats/1.json", "cats/1.txt"]
    assert found[-1] == "z.txt"


def test_a_trailing_slash_and_a_dot_change_nothing(
    photos: Path, create: Create, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(photos)
    whole = create(photos) / "o-000000.tar"
    for source in (f"{photos}/", ".", "./", "../photos"):
        assert (create(source) / "o-000000.tar").read_bytes() == whole.read_bytes()


def test_names_that_are_not_utf8_survive(create: Create, tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path / "raw")
    os.mkdir(folder)
    with open(folder + b"/caf\xe9.txt", "wb") as file:
        file.write(b"x")
    out = create(tmp_path / "raw")
    assert (out / "o-000000.tar").read_bytes().startswith(b"caf\xe9.txt\0")


def test_a_file_of_several_pieces(create: Create, tmp_path: Path) -> None:
    sizes = {
        f"{size}.bin": os.urandom(size) for size in (0, 1, 511, 512, 32768, 32769, 1 << 20, (5 << 19) + 3)
    }
    out = create(plant(tmp_path / "big", dict(sizes)))
    assert dict(read(out / "o-000000.tar")) == sizes


# The same bytes


def digest(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.exhaustive
def test_the_same_bytes_whatever_the_surroundings(photos: Path, tmp_path: Path) -> None:
    """Umask, time zone, locale, times, owner, order of creation, hash seed, number of jobs, current folder."""
    other = tmp_path / "other"
    umask = os.umask(0o077)
    try:
        plant(other, dict(reversed(PHOTOS.items())))
    finally:
        os.umask(umask)
    for path in other.rglob("*"):
        os.utime(path, (1, 1))
        if os.geteuid() == 0:
            os.chown(path, 1234, 4321)
    runs = []
    for number, (source, mask, extra, env) in enumerate(
        [
            (photos, "022", ["-j", "1"], {"TZ": "UTC", "LC_ALL": "C", "PYTHONHASHSEED": "1"}),
            (other, "077", ["-j", "3"], {"TZ": "Asia/Tokyo", "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "2"}),
        ]
    ):
        out = tmp_path / f"run{number}"
        words = [
            sys.executable,
            "-m",
            "wdscli",
            "create",
            str(source),
            "-o",
            f"{out}/o-%06d.tar",
            "--max-count",
            "2",
        ]
        surroundings = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), **env}
        surroundings.pop("SOURCE_DATE_EPOCH", None)
        script = f'umask {mask}; exec "$@"'
        subprocess.run(["sh", "-c", script, "sh", *words, *extra], check=True, env=surroundings, cwd=source)
        runs.append(digest(out))
    assert len(runs[0]) == 7
    assert runs[0] == runs[1]


# Which files


def test_what_is_no_sample_is_counted(
    photos: Path, create: Create, capsys: pytest.CaptureFixture[str]
) -> None:
    plant(
        photos,
        {
            "README": b"",
            "cats/.hidden.jpg": b"",
            "cats/._1.jpg": b"",
            ".DS_Store": b"",
            ".git/config.x": b"",
            "__MACOSX__/1.jpg": b"",
            "cats/ends.": b"",
        },
    )
    capsys.readouterr()
    out = create(photos, "--json", "-v")
    said = capsys.readouterr()
    assert names(out / "o-000000.tar") == MEMBERS
    told = json.loads(said.out)
    assert told["skipped"] == {
        "appledouble": 1,
        "ds-store": 1,
        "dunder": 1,
        "hidden": 1,
        "hidden-folder": 1,
        "no-field": 2,
    }
    assert f"skipped {photos}/README: no-field" in said.err
    assert "no-field 2" in said.err


def test_include_and_exclude(photos: Path, create: Create) -> None:
    def kept(*args: str) -> list[str]:
        return names(create(photos, *args) / "o-000000.tar")

    assert kept("--include", "*.jpg") == [name for name in MEMBERS if name.endswith(".jpg")]
    assert kept("--include", "cats/*.json", "--include", "*.txt") == ["cats/1.json", "empty.txt"]
    assert kept("--exclude", "dogs") == ["cats/1.jpg", "cats/1.json", "cats/2.jpg", "empty.txt"]
    assert kept("--exclude", "**/*.jpg") == ["cats/1.json", "dogs/a.cls", "empty.txt"]
    assert kept("--include", "cats/**", "--exclude", "*.json") == ["cats/1.jpg", "cats/2.jpg"]


def test_what_globs_take_is_counted_and_nothing_is_an_error(
    photos: Path, create: Create, capsys: pytest.CaptureFixture[str]
) -> None:
    plant(photos, {"cats/deep/3.jpg": b"3", ".git/x.txt": b""})
    out = create(photos, "--include", "cats/**.jpg", "--exclude", "*/1.*", "--exclude", ".git/")
    assert names(out / "o-000000.tar") == ["cats/2.jpg", "cats/deep/3.jpg"]
    err = capsys.readouterr().err
    assert "--include cats/**.jpg took 3 files" in err
    assert "--exclude */1.* left out 2 paths" in err
    said = fails(
        capsys, 4, photos, "-o", photos.parent / "x.tar", "--include", "*.jpg", "--include", "cats/x*"
    )
    assert "--include cats/x* matches no file" in said
    # Scripts exclude names that clean folders do not have.
    create(photos, "--exclude", "cats/x*")
    assert "warning: --exclude cats/x* matches no file" in capsys.readouterr().err
    create(photos, "--exclude", "cats/", "--exclude", "1.*")
    assert "warning: --exclude 1.* matches no file outside the excluded folders" in capsys.readouterr().err


def test_braces_that_the_shell_expanded(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shards = [str(tmp_path / f"t-00000{number}.tar") for number in range(3)]
    for shard in shards:
        Path(shard).write_bytes(b"old")
    for sources in ([photos, *shards[1:]], shards[1:]):
        for force in ([], ["--force"]):
            said = fails(capsys, 2, *sources, "-o", shards[0], *force)
            assert f"{shards[1]} is a shard, not a source of samples" in said
            assert "quote the braces" in said
    for shard in shards[1:]:
        Path(shard).unlink()
    said = fails(capsys, 2, photos, *shards[1:], "-o", tmp_path / "new.tar")
    assert "quote the braces" in said
    assert "--on-error skip" not in said


@pytest.mark.parametrize(
    ("output", "hint"),
    [
        ("s3:/bucket/x.tar", "did you mean s3://bucket/x.tar?"),
        ("htps:/host/x.tar", "did you mean https://host/x.tar?"),
        ("pip:cat x", "did you mean pipe:cat x?"),
        ("x-%6d.tar", "use %06d"),
    ],
)
def test_outputs_that_mean_something_else(
    output: str, hint: str, photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(photos)
    assert hint in fails(capsys, 2, "cats", "-o", output)
    assert sorted(os.listdir(photos)) == ["cats", "dogs", "empty.txt"]


def test_sources_that_mean_something_else(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "x.tar"
    assert "use --from list:FILE" in fails(capsys, 4, "nothere", "-o", out)
    assert "use --from list:py.txt" in fails(capsys, 4, "@py.txt", "-o", out)
    assert "did you mean -o?" in fails(capsys, 2, photos, "--out", out)
    (tmp_path / "a.zip").write_bytes(b"PK")
    assert main(["create", str(tmp_path / "a.zip"), "-o", str(out)]) == 0
    assert "unpack it first" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["ls", "-"], ["create", "--from", "list:-", "-o", "{}"]])
def test_an_empty_pipe(command: list[str], tmp_path: Path) -> None:
    words = [word.format(tmp_path / "o.tar") for word in command]
    ran = subprocess.run([sys.executable, "-m", "wdscli", *words], input=b"", capture_output=True)
    assert ran.returncode == 3
    assert b"standard input is empty\nhint: did the command before it fail?" in ran.stderr


def test_file_names_with_dots_warn(
    tmp_path: Path, create: Create, capsys: pytest.CaptureFixture[str]
) -> None:
    stamps = plant(tmp_path / "tum", {f"1305031102.{stamp}.png": b"" for stamp in (175304, 211214, 243211)})
    create(stamps)
    assert 'sample "1305031102" has 3 png files' in (err := capsys.readouterr().err)
    assert "--key-rule last-dot" in err
    views = plant(
        tmp_path / "views",
        {f"{n}.{f}": b"" for n in "ab" for f in ("0.jpg", "1.jpg", "cam10.jpg", "cam20.jpg")},
    )
    for more in ([stamps, "--key-rule", "last-dot"], [views], [views, "--include", "a.?.jpg"]):
        create(*more)
        assert "last-dot" not in capsys.readouterr().err


def test_links_are_followed_and_loops_are_not(
    photos: Path, create: Create, capsys: pytest.CaptureFixture[str]
) -> None:
    (photos / "link.jpg").symlink_to("cats/1.jpg")
    (photos / "again").symlink_to("cats")
    (photos / "cats" / "up").symlink_to("..")
    capsys.readouterr()
    out = create(photos, "--json")
    assert json.loads(capsys.readouterr().out)["skipped"] == {"folder-loop": 2}
    found = dict(read(out / "o-000000.tar"))
    assert found["link.jpg"] == found["again/1.jpg"] == PHOTOS["cats/1.jpg"]
    with tarfile.open(out / "o-000000.tar") as tar:
        assert all(member.isreg() for member in tar)


def test_what_cannot_be_read_is_an_error(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "o-%06d.tar"
    assert "no such file" in fails(capsys, 4, tmp_path / "nowhere", "-o", out)
    os.mkfifo(photos / "pipe.jpg")
    assert "pipe.jpg" in fails(capsys, 4, photos, "-o", out)
    (photos / "pipe.jpg").unlink()
    (photos / "gone.jpg").symlink_to("nowhere")
    assert "gone.jpg" in fails(capsys, 4, photos, "-o", out)
    assert not list(tmp_path.glob("*.tar"))


def test_nothing_to_do_is_an_error_with_a_hint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plant(tmp_path / "none", {"README": b""})
    said = fails(capsys, 4, tmp_path / "none", "-o", tmp_path / "o.tar")
    assert "no samples found (1 no-field)" in said
    assert "hint: " in said
    assert "hint: " in fails(capsys, 2, "-o", tmp_path / "o.tar")


def test_the_same_field_from_two_sources(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = plant(tmp_path / "more", {"cats/1.jpg": b"other"})
    said = fails(capsys, 3, photos, more, "-o", tmp_path / "o.tar")
    assert f"{photos}/cats/1.jpg" in said
    assert f"{more}/cats/1.jpg" in said


def test_a_table_without_from_is_packed_with_a_warning(
    create: Create, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t.csv").write_text("id,txt\na,b\n")
    (tmp_path / "t.jpg").write_bytes(b"")
    create(tmp_path / "t.csv")
    assert f"to make a sample of each row, use --from {tmp_path}/t.csv" in capsys.readouterr().err
    create(tmp_path / "t.csv", tmp_path / "t.jpg")
    assert "--from" not in capsys.readouterr().err


def test_outputs_are_never_inputs(photos: Path) -> None:
    pattern = f"{photos}/o-%06d.tar"
    assert main(["create", str(photos), "-o", pattern]) == 0
    first = (photos / "o-000000.tar").read_bytes()
    assert main(["create", str(photos), "-o", pattern, "--force"]) == 0
    assert (photos / "o-000000.tar").read_bytes() == first


# Keys and labels


def test_key_rule_last_dot(create: Create, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = plant(tmp_path / "dots", {"v1.0/img.v2.jpg": b"", "v1.0/img.v2.cls": b"", "b.txt": b""})
    out = create(folder, "--key-rule", "last-dot", "--json")
    assert names(out / "o-000000.tar") == ["b.txt", "v1.0/img_v2.cls", "v1.0/img_v2.jpg"]
    said = capsys.readouterr()
    assert json.loads(said.out)["renamed"] == {"v1.0/img_v2": "v1.0/img.v2"}
    assert "v1.0/img.v2 -> v1.0/img_v2" in said.err
    plant(folder, {"v1.0/img_v2.json": b""})
    said = capsys.readouterr()
    assert "img.v2" in fails(capsys, 3, folder, "--key-rule", "last-dot", "-o", tmp_path / "o.tar")


@pytest.mark.parametrize(
    "rule", [r"(?P<field>[a-z]+)/(?P<key>.*)\.png", r"[a-z]+/()()", r"([a-z]+)/(.*)\.png"]
)
def test_key_rule_regex(rule: str, create: Create, tmp_path: Path) -> None:
    folder = plant(tmp_path / "pairs", {"image/1.png": b"i", "mask/1.png": b"m", "other.txt": b""})
    if rule.startswith("(?P"):
        assert names(create(folder, "--key-rule", rule) / "o-000000.tar") == ["1.image", "1.mask"]
    elif "()" in rule:
        create(folder, "--key-rule", rule, code=4)
    else:
        assert names(create(folder, "--key-rule", rule) / "o-000000.tar") == ["image.1", "mask.1"]


def test_key_rules_that_mean_nothing(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rule in ("second-dot", "(", "(a)"):
        assert rule in fails(capsys, 2, photos, "--key-rule", rule, "-o", tmp_path / "o.tar")


def test_label_from_parent(create: Create, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = plant(tmp_path / "top", {"b/1.jpg": b"", "a/2.jpg": b"", "x/a/3.jpg": b"", "4.jpg": b""})
    out = create(folder, "--label-from", "parent")
    found = dict(read(out / "o-000000.tar"))
    assert manifest(out)["wdscli"]["classes"] == ["a", "b", "top"]
    assert {name: value for name, value in found.items() if name.endswith(".cls")} == {
        "4.cls": b"2",
        "a/2.cls": b"0",
        "b/1.cls": b"1",
        "x/a/3.cls": b"0",
    }
    assert names(out / "o-000000.tar")[:2] == ["4.cls", "4.jpg"]
    plant(folder, {"a/2.cls": b"9"})
    assert "a/2" in fails(capsys, 3, folder, "--label-from", "parent", "-o", tmp_path / "o.tar")


def test_label_from_top_is_the_class_of_an_imagefolder(create: Create, tmp_path: Path) -> None:
    files: Tree = {
        "train/dog/deep/cat/1.v2.png": "",
        "train/cat/2.png": "",
        "train/cat/notes.txt": "",
        "val/x.png": "",
    }
    plant(tmp_path, files)
    options = ["--label-from", "top", "--key-rule", "last-dot", "--include", "*.png"]
    out = create(tmp_path / "train", *options)
    assert [(name, data) for name, data in read(out / "o-000000.tar") if name.endswith("cls")] == [
        ("cat/2.cls", b"0"),
        ("dog/deep/cat/1_v2.cls", b"1"),
    ]
    assert manifest(out)["wdscli"]["classes"] == ["cat", "dog"]
    assert manifest(create(tmp_path / "val", *options))["wdscli"]["classes"] == ["val"]


def test_require(photos: Path, create: Create, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = fails(capsys, 3, photos, "--require", "jpg,json", "-o", tmp_path / "o.tar")
    assert '"cats/2" has no json' in said
    out = create(photos, "--require", "jpg,json", "--missing", "skip", "--json")
    assert names(out / "o-000000.tar") == ["cats/1.jpg", "cats/1.json"]
    told = json.loads(capsys.readouterr().out)
    assert (told["incomplete"], told["skipped"]) == (4, {"incomplete": 4})
    out = create(photos, "--require", "jpg", "--require", "json", "--missing", "keep", "--json")
    assert names(out / "o-000000.tar") == MEMBERS
    assert json.loads(capsys.readouterr().out)["incomplete"] == 4
    assert names(create(photos, "--require", "jpg;txt") / "o-000000.tar") == MEMBERS


def test_classes_are_those_of_the_samples_kept(create: Create, tmp_path: Path) -> None:
    folder = plant(tmp_path / "top", {"a/1.txt": b"", "b/1.jpg": b""})
    out = create(folder, "--label-from", "parent", "--require", "jpg,cls", "--missing", "skip")
    assert dict(read(out / "o-000000.tar")) == {"b/1.cls": b"0", "b/1.jpg": b""}
    assert manifest(out)["wdscli"]["classes"] == ["b"]


# Order and cuts


def test_shuffle_is_the_pinned_order(create: Create, tmp_path: Path) -> None:
    folder = plant(tmp_path / "many", {f"{number:02}.txt": b"" for number in range(20)})
    for seed in (0, 7):
        out = create(folder, "--order", "shuffle", "--seed", seed)
        expected = sorted(range(20), key=lambda number: rank(seed, 0, number))
        assert names(out / "o-000000.tar") == [f"{number:02}.txt" for number in expected]
        assert manifest(out)["wdscli"]["made"]["seed"] == seed


def test_a_selection_does_not_reorder_a_shuffle(create: Create, tmp_path: Path) -> None:
    tree: Tree = {f"{number:02}.txt": b"" for number in range(20)}
    tree |= {f"{number:02}.cls": b"" for number in range(0, 20, 2)}
    folder = plant(tmp_path / "many", tree)
    whole = [
        name for name in names(create(folder, "--order", "shuffle") / "o-000000.tar") if name.endswith("txt")
    ]
    some = create(folder, "--order", "shuffle", "--require", "cls", "--missing", "skip") / "o-000000.tar"
    kept = [name for name in names(some) if name.endswith("txt")]
    assert kept == [name for name in whole if int(name[:2]) % 2 == 0]


def test_max_count(photos: Path, create: Create) -> None:
    out = create(photos, "--max-count", 2)
    assert [len({name.partition(".")[0] for name in names(path)}) for path in shards(out)] == [2, 2, 1]


def test_max_size_is_exact(create: Create, tmp_path: Path) -> None:
    """One sample is 1 KiB of tar, two and the end of archive 3 KiB."""
    folder = plant(tmp_path / "many", {f"{number}.txt": b"x" for number in range(6)})
    for limit, counts in ((3072, [2, 2, 2]), (3071, [1] * 6), (4096, [3, 3])):
        out = create(folder, "--max-size", limit)
        assert [len(names(path)) for path in shards(out)] == counts
        assert all(path.stat().st_size <= limit for path in shards(out))


def test_a_sample_larger_than_max_size(
    create: Create, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = plant(tmp_path / "mixed", {"a.txt": b"", "b.txt": b"x" * 5000, "c.txt": b""})
    out = create(folder, "--max-size", "3kB", "--json")
    assert [names(path) for path in shards(out)] == [["a.txt"], ["b.txt"], ["c.txt"]]
    said = capsys.readouterr()
    assert "warning: 1 sample is larger than --max-size" in said.err
    assert json.loads(said.out)["oversized"] == 1


def test_long_names_count_in_max_size(create: Create, tmp_path: Path) -> None:
    folder = plant(tmp_path / "long", {f"{letter * 120}.txt": b"x" for letter in "ab"})
    for form in ("pax", "gnu"):
        assert len(shards(create(folder, "--max-size", 5119, "--long-names", form))) == 2
        one = create(folder, "--max-size", 5120, "--long-names", form)
        assert shards(one)[0].stat().st_size == 5120
        assert names(shards(one)[0]) == ["a" * 120 + ".txt", "b" * 120 + ".txt"]
        assert (b"././@LongLink" in shards(one)[0].read_bytes()) == (form == "gnu")


def test_a_number_of_shards(photos: Path, create: Create) -> None:
    def counts(out: Path) -> list[int]:
        return [len({name.partition(".")[0] for name in names(path)}) for path in shards(out)]

    assert counts(create(photos, "--shards", 3)) == [1, 2, 2]
    assert counts(create(photos, pattern="o-{00..03}.tar")) == [1, 1, 1, 2]
    create(photos, "--shards", 3, pattern="o-{00..03}.tar", code=2)
    create(photos, "--shards", 3, "--max-count", 1, code=2)
    create(photos, "--max-count", 1, pattern="one.tar", code=2)


def test_one_output(photos: Path, create: Create) -> None:
    out = create(photos, pattern="one.tar")
    assert names(out / "one.tar") == MEMBERS
    assert manifest(out, "one")["shardlist"][0]["url"] == "one.tar"


def test_standard_output(photos: Path, create: Create, tmp_path: Path) -> None:
    whole = create(photos) / "o-000000.tar"
    words = [sys.executable, "-m", "wdscli", "create", str(photos), "-o", "-"]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(words, check=True, capture_output=True, env=env, cwd=tmp_path)
    assert done.stdout == whole.read_bytes()


# How it is written


def test_mtime(photos: Path, create: Create, monkeypatch: pytest.MonkeyPatch) -> None:
    def times(*args: str) -> set[float]:
        with tarfile.open(create(photos, *args) / "o-000000.tar") as tar:
            return {member.mtime for member in tar}

    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    assert times() == {0}
    assert times("--mtime", "@77") == {77}
    assert times("--mtime", "2001-09-09T01:46:40Z") == {1_000_000_000}
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "99")
    assert times() == {99}
    assert times("--mtime", "5") == {5}
    create(photos, "--mtime", "yesterday", code=2)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "soon")
    create(photos, code=2)


def test_checksum_and_index(photos: Path, create: Create) -> None:
    import hashlib

    out = create(photos, "--hash", "sha256", "--no-index")
    told = manifest(out)
    found = hashlib.sha256((out / "o-000000.tar").read_bytes()).hexdigest()
    assert told["shardlist"][0]["checksum"] == f"sha256:{found}"
    assert told["wdscli"]["index"] is None
    assert not (out / ".wds").exists()
    assert "checksum" not in manifest(create(photos, "--hash", "none"))["shardlist"][0]


def test_dry_run(photos: Path, create: Create, capsys: pytest.CaptureFixture[str]) -> None:
    out = create(photos, "--max-count", 2, "-n")
    assert not out.exists()
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    real = create(photos, "--max-count", 2)
    sizes = [path.stat().st_size for path in shards(real)]
    assert [(int(row[1]), int(row[3])) for row in rows] == list(zip([2, 2, 1], sizes, strict=True))
    capsys.readouterr()
    create(photos, "-n", "--json")
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (lines[0]["members"], lines[1]["dry_run"]) == (8, True)


def test_force_replaces_a_set(photos: Path, create: Create, capsys: pytest.CaptureFixture[str]) -> None:
    out = create(photos, "--max-count", 1)
    assert len(shards(out)) == 5
    pattern = f"{out}/o-%06d.tar"
    assert "--force" in fails(capsys, 4, photos, "-o", pattern)
    assert main(["create", str(photos), "-o", pattern, "--max-count", "3", "--force"]) == 0
    assert [path.name for path in shards(out)] == ["o-000000.tar", "o-000001.tar"]
    assert len(manifest(out)["shardlist"]) == 2


def test_fsync_reaches_the_device(photos: Path, create: Create, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: (synced.append(descriptor), fsync(descriptor)))
    create(photos)
    assert not synced
    create(photos, "--fsync")
    assert len(synced) >= 6


@pytest.mark.exhaustive
def test_jobs_do_not_show(photos: Path, create: Create, monkeypatch: pytest.MonkeyPatch) -> None:
    from wdscli.copy import maker as module

    asked: list[int] = []
    make = module.make_executor
    monkeypatch.setattr(module, "make_executor", lambda jobs, _: (asked.append(jobs), make(jobs))[1])
    one = digest(create(photos, "--max-count", 1, "-j", 1))
    assert asked == [1]
    assert digest(create(photos, "--max-count", 1, "-j", 3)) == one
    assert asked == [1, 3]


def test_an_error_in_a_process_is_told_as_one(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (photos / "x.txt").symlink_to("/proc/self/mem")
    said = fails(
        capsys, 4, photos, "-o", tmp_path / "o-%06d.tar", "--max-count", 1, "-j", 2, "--include", "*.txt"
    )
    assert "x.txt" in said
    assert not (tmp_path / "o-manifest.json").exists()


def test_quiet_says_nothing(photos: Path, create: Create, capsys: pytest.CaptureFixture[str]) -> None:
    create(photos, "-q")
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "")
    create(photos)
    assert "wrote 5 samples (8 files) into 1 shard" in capsys.readouterr().err


# Lists


def test_from_list(photos: Path, create: Create, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(photos)
    recipe = tmp_path / "recipe"
    recipe.write_bytes(
        b"# tarp's recipe\n\n"
        b"b.jpg file:cats/1.jpg\n"
        b"b.txt   text:two  blanks \n"
        b"  # a comment\n"
        b"a name.cls\tpipe:printf 7\n"
        b"a name.jpg\tcats/2.jpg\n"
        b"b.json " + os.fsencode(photos / "cats/1.json") + b"\r\n"
    )
    out = create("--from", f"list:{recipe}")
    assert read(out / "o-000000.tar") == [
        ("b.jpg", PHOTOS["cats/1.jpg"]),
        ("b.json", PHOTOS["cats/1.json"]),
        ("b.txt", b"two  blanks "),
        ("a name.cls", b"7"),
        ("a name.jpg", PHOTOS["cats/2.jpg"]),
    ]
    assert names(create("--from", f"list:{recipe}", "--order", "path") / "o-000000.tar")[0] == "a name.cls"


def test_a_list_from_standard_input(create: Create, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"a.txt text:hello")
    os.close(writing)
    saved = os.dup(0)
    os.dup2(reading, 0)
    try:
        out = create("--from", "list:-")
    finally:
        os.dup2(saved, 0)
        os.close(saved)
        os.close(reading)
    assert read(out / "o-000000.tar") == [("a.txt", b"hello")]


def test_large_values_pass_through_a_scratch_file(
    create: Create, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    recipe = tmp_path / "recipe"
    recipe.write_text(
        "".join(
            f"{n}.txt text:{str(n) * 300}\n{n}.bin pipe:head -c {40000 + n} /dev/zero\n" for n in range(4)
        )
    )
    one = digest(create("--from", f"list:{recipe}", "--max-count", 1, "-j", 1))
    assert digest(create("--from", f"list:{recipe}", "--max-count", 1, "-j", 2)) == one
    assert one["o-000003.tar"][512:513] == b"\0"
    assert b"3" * 300 in one["o-000003.tar"]
    assert not list((tmp_path / "scratch").iterdir())


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("a.txt", 3, "line 2"),
        ("README text:x", 3, "line 2"),
        ("/etc/a.txt text:x", 3, "line 2"),
        ("../a.txt text:x", 3, "line 2"),
        ("a.txt nowhere", 4, "line 2"),
        ("a.txt pipe:exit 3", 4, "line 2"),
        ("a.txt -", 4, "line 2"),
        ("a.txt .", 4, "line 2"),
    ],
)
def test_lines_that_cannot_be_used(
    line: str, code: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "recipe"
    recipe.write_text(f"b.txt text:fine\n{line}\n")
    assert said in fails(capsys, code, "--from", f"list:{recipe}", "-o", tmp_path / "o.tar")
    assert not (tmp_path / "o.tar").exists()


# Tables

TABLE = ["--key-column", "id", "--column", "txt=caption", "--column", "jpg=@path", "--json-rest"]


def test_from_csv_and_tsv(
    photos: Path, create: Create, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(photos)
    expected = [
        ("z.jpg", PHOTOS["cats/1.jpg"]),
        ("z.json", '{"split":"träin"}'.encode()),
        ("z.txt", b"one, two"),
        ("a.json", b'{"split":null}'),
        ("a.txt", b'"x"'),
    ]
    csv = tmp_path / "t.csv"
    csv.write_text('\ufeffid,caption,path,split\r\nz,"one, two",cats/1.jpg,träin\r\na,"""x""",,\r\n', "utf-8")
    assert read(create("--from", csv, *TABLE, "--missing", "keep") / "o-000000.tar") == expected
    tsv = tmp_path / "t.tsv"
    tsv.write_text('id\tcaption\tpath\tsplit\nz\tone, two\tcats/1.jpg\tträin\na\t"""x"""\t\t\n', "utf-8")
    assert read(create("--from", tsv, *TABLE, "--missing", "keep") / "o-000000.tar") == expected
    unnamed = tmp_path / "table"
    unnamed.write_bytes(tsv.read_bytes())
    assert read(create("--from", unnamed, *TABLE, "--missing", "keep") / "o-000000.tar") == expected
    assert (
        names(create("--from", csv, *TABLE, "--missing", "keep", "--order", "path") / "o-000000.tar")[0]
        == "a.json"
    )


DIRTY = """id,path,cap
1,img/1.jpg,one
2,,two
3,img/3.jpg
4,img/9.jpg,vier
,img/2.jpg,x

6,img/2.jpg,"six
7,img/1.jpg,seven
1,img/1.jpg,again
"""


@pytest.fixture
def dirty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The options of a table with every kind of bad row."""
    plant(tmp_path / "img", {f"{number}.jpg": b"\xff\xd8" for number in (1, 2, 3)})
    (tmp_path / "d.csv").write_text(DIRTY)
    monkeypatch.chdir(tmp_path)
    return ["--from", "d.csv", "--key-column", "id", "--column", "jpg=@path", "--column", "txt=cap"]


@pytest.mark.parametrize("dry", [[], ["-n"]])
def test_all_bad_rows_of_a_table_are_one_error(
    dirty: list[str], dry: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert fails(capsys, 3, *dirty, "-o", "o.tar", *dry).splitlines() == [
        "error: 5 bad rows",
        '  d.csv, row 2 (line 3): column "path" is empty, so it names no file',
        "  d.csv, row 3 (line 4): 2 cells, but the header has 3",
        "  d.csv, row 4 (line 5): cannot read img/9.jpg: no such file",
        '  d.csv, row 5 (line 6): no key in column "id"',
        "  d.csv, row 6 (line 8): a quote has no closing quote",
        "hint: --on-error skip leaves it out, --missing skip also its sample",
    ]


def test_bad_rows_are_left_out_and_listed(
    dirty: list[str], create: Create, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["--on-error", "skip", "--on-duplicate", "skip", "--report", "r.jsonl", "-v"]
    out = create(*dirty, *more)
    assert names(out / "o-000000.tar") == ["1.jpg", "1.txt", "2.txt", "4.txt", "7.jpg", "7.txt"]
    err = capsys.readouterr().err
    assert (
        "3 rows left out: bad row; 1 row left out: key repeated; "
        "1 sample lacks jpg: empty cell; 1 sample lacks jpg: file missing, see r.jsonl"
    ) in err
    assert "skipped 1 (d.csv, row 8 (line 10)): key repeated" in err
    lines = [json.loads(line) for line in Path("r.jsonl").read_text().splitlines()]
    assert sorted((line["row"], line["line"], line["left_out"], line["key"]) for line in lines) == [
        (2, 3, "field", "2"),
        (3, 4, "row", ""),
        (4, 5, "field", "4"),
        (5, 6, "row", ""),
        (6, 8, "row", ""),
        (8, 10, "row", "1"),
    ]
    out = create(*dirty, *more, "--missing", "skip")
    assert names(out / "o-000000.tar") == ["1.jpg", "1.txt", "7.jpg", "7.txt"]
    assert "1 row left out: empty cell; 1 row left out: file missing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "t.jsonl",
            '{"id": 1, "path": ""}\n{"id": 2}\n{"id": 3, "path": null}\n{"id": 4, "path": "img/1.jpg"}',
        ),
        ("t.tsv", "id\tpath\n1\t\n2\t\n3\t\n4\timg/1.jpg\n"),
    ],
)
def test_an_empty_cell_names_no_file(
    name: str, text: str, dirty: list[str], create: Create, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(name).write_text(text)
    table = ["--from", name, "--key-column", "id", "--column", "jpg=@path", "--column", "txt=id"]
    assert '"path" is empty' in fails(capsys, 4, *table, "-o", "o.tar")
    assert names(create(*table, "--missing", "skip") / "o-000000.tar") == ["4.jpg", "4.txt"]
    kept = create(*table, "--missing", "keep")
    assert names(kept / "o-000000.tar") == ["1.txt", "2.txt", "3.txt", "4.jpg", "4.txt"]


def test_files_that_are_left_out_are_in_the_report(photos: Path, create: Create, tmp_path: Path) -> None:
    plant(photos, {".hidden/x.txt": b"", "README": b""})
    create(photos, "--exclude", "*.cls", "--report", tmp_path / "r.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "r.jsonl").read_text().splitlines()]
    assert sorted((line["source"], line["reason"]) for line in lines) == [
        (f"{photos}/.hidden", "hidden-folder"),
        (f"{photos}/README", "no-field"),
        (f"{photos}/dogs/a.cls", "excluded"),
    ]


def test_from_json_lines(create: Create, tmp_path: Path) -> None:
    table = tmp_path / "t.jsonl"
    table.write_text('{"id": 1, "n": 5, "tags": ["a", "b"]}\n\n{"id": 2, "n": null, "tags": {}}\n')
    out = create(
        "--from", table, "--rekey", "{n}/{index:03d}", "--column", "tags=tags", "--json-rest", code=0
    )
    assert read(out / "o-000000.tar") == [
        ("5/000.json", b'{"id":1}'),
        ("5/000.tags", b'["a","b"]'),
        ("None/001.json", b'{"id":2}'),
        ("None/001.tags", b"{}"),
    ]


def test_json_lines_may_leave_columns_out(
    create: Create, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "t.jsonl"
    table.write_text('{"id": "a", "x": "1"}\n{"id": "b", "y": "2"}\n')
    out = create("--from", table, "--key-column", "id", "--column", "x=x", "--column", "y=y", "--json")
    assert read(out / "o-000000.tar") == [("a.x", b"1"), ("b.y", b"2")]
    assert json.loads(capsys.readouterr().out)["skipped"] == {"no-value": 2}


def test_from_parquet(create: Create, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "t.parquet"
    table.write_bytes(b"PAR1")
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        said = fails(
            capsys, 2, "--from", table, "--key-column", "id", "--json-rest", "-o", tmp_path / "o.tar"
        )
        assert "wdscli[parquet]" in said
        return
    parquet.write_table(pyarrow.table({"id": ["a"], "image": [b"\xff\xd8"]}), table)
    out = create("--from", table, "--key-column", "id", "--column", "jpg=image")
    assert read(out / "o-000000.tar") == [("a.jpg", b"\xff\xd8")]


@pytest.mark.parametrize(
    ("text", "args", "code", "said"),
    [
        ("id,a\nx.y,1\n", ["--key-column", "id", "--column", "txt=a"], 3, "row 1"),
        ("id,a\n,1\n", ["--key-column", "id", "--column", "txt=a"], 3, "row 1"),
        ("id,a\nx,1,2\n", ["--key-column", "id", "--column", "txt=a"], 3, "line 2"),
        ("id,a\nx,1\n", ["--key-column", "no", "--column", "txt=a"], 2, '"no"'),
        ("id,a\nx,1\n", ["--key-column", "id", "--column", "txt=no"], 2, '"no"'),
        ("id,a\nx,1\n", ["--rekey", "{no}", "--column", "txt=a"], 2, 'there is no column "no"'),
        ("id,a\nx,1\n", ["--key-column", "id", "--column", "txt"], 2, "EXT=COLUMN"),
        ("id,a\nx,1\n", ["--key-column", "id"], 2, "--column"),
        ("id,a\nx,1\n", ["--column", "txt=a"], 2, "--key-column"),
        ("id,a\nx,1\n", ["--rekey", "{a.b}", "--column", "txt=a"], 2, "--rekey"),
        ("id,a\nx,1\nx,2\n", ["--key-column", "id", "--column", "txt=a"], 3, "twice"),
        ("", ["--key-column", "id", "--column", "txt=a"], 3, "header"),
    ],
)
def test_tables_that_cannot_be_used(
    text: str, args: list[str], code: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "t.csv"
    table.write_text(text)
    assert said in fails(capsys, code, "--from", table, *args, "-o", tmp_path / "o.tar")


def test_keys_of_a_table_with_dots(create: Create, tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text("id,a\nx.y,1\n")
    out = create("--from", table, "--key-column", "id", "--column", "txt=a", "--key-rule", "last-dot")
    assert names(out / "o-000000.tar") == ["x_y.txt"]


def test_table_options_without_a_table(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "--from" in fails(capsys, 2, photos, "--key-column", "id", "-o", tmp_path / "o.tar")


class TestLinks:
    """Broken links are errors; --no-follow leaves all links out."""

    @pytest.fixture
    def tree(self, tmp_path: Path) -> Path:
        plant(tmp_path / "in", {"a.txt": b"a", "a.cls": b"1", "sub/b.txt": b"b"})
        plant(tmp_path / "out", {"c.txt": b"c", "deep/d.txt": b"d"})
        tree = tmp_path / "in"
        (tree / "near.txt").symlink_to("a.txt")
        (tree / "far.txt").symlink_to("../out/c.txt")
        (tree / "folder").symlink_to("../out/deep")
        return tree

    @pytest.mark.parametrize("target", ["nowhere", "gone.cls"])
    def test_a_broken_link_is_a_source_that_cannot_be_read(
        self, tree: Path, create: Create, tmp_path: Path, capsys: pytest.CaptureFixture[str], target: str
    ) -> None:
        (tree / "gone.cls").symlink_to(target)
        said = fails(capsys, 4, tree, "-o", tmp_path / "x.tar")
        assert "in/gone.cls" in said
        assert "--on-error skip" in said
        assert "--no-follow" in said
        (tmp_path / "list").write_text(f"k.txt {tree}/gone.cls\n")
        assert "hint: --on-error skip" in fails(
            capsys, 4, "--from", "list:" + str(tmp_path / "list"), "-o", tmp_path / "x.tar"
        )
        report = tmp_path / "lost.jsonl"
        out = create(tree, "--on-error", "skip", "--report", report, "--json")
        told = json.loads(capsys.readouterr().out)
        assert (told["skipped"], told["unread"]) == ({"unreadable": 1}, 1)
        assert [json.loads(line)["source"] for line in report.read_text().splitlines()] == [
            str(tree / "gone.cls")
        ]
        (tree / "gone.cls").unlink()
        assert read(create(tree) / "o-000000.tar") == read(out / "o-000000.tar")

    def test_a_source_without_permission(
        self, tree: Path, create: Create, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(os, "access", lambda path, mode: not path.endswith(b"a.cls"))
        capsys.readouterr()
        out = create(tree, "--on-error", "skip", "--json")
        assert json.loads(capsys.readouterr().out)["skipped"] == {"unreadable": 1}
        assert names(out / "o-000000.tar") == ["a.txt", "far.txt", "folder/d.txt", "near.txt", "sub/b.txt"]

    def test_incomplete_samples_of_a_broken_link(self, tree: Path, create: Create) -> None:
        (tree / "a.json").symlink_to("nowhere")
        kept = names(create(tree, "--missing", "keep") / "o-000000.tar")
        assert kept == ["a.cls", "a.txt", "far.txt", "folder/d.txt", "near.txt", "sub/b.txt"]
        assert names(create(tree, "--missing", "skip") / "o-000000.tar") == kept[2:]

    def test_links_are_left_out(self, tree: Path, create: Create, capsys: pytest.CaptureFixture[str]) -> None:
        (tree / "gone.txt").symlink_to("nowhere")
        capsys.readouterr()
        out = create(tree, "--no-follow", "--json")
        told = json.loads(capsys.readouterr().out)
        assert (told["skipped"], told["links_outside"]) == ({"link": 4}, 0)
        assert names(out / "o-000000.tar") == ["a.cls", "a.txt", "sub/b.txt"]

    @pytest.mark.parametrize("pure", [False, True])
    def test_links_that_lead_out_are_counted(
        self,
        tree: Path,
        create: Create,
        capsys: pytest.CaptureFixture[str],
        pure: bool,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        if pure:
            monkeypatch.setattr("wdscli.tar.core.CORE", None)
        capsys.readouterr()
        create(tree, "--json")
        said = capsys.readouterr()
        assert json.loads(said.out)["links_outside"] == 2
        assert "2 links point outside the given folder; --no-follow leaves links out" in said.err
        create(tree, "--exclude", "f*")
        assert "lead out" not in capsys.readouterr().err
        (tree.parent / "alias").symlink_to("in")
        create(tree.parent / "alias", "-v")
        said = capsys.readouterr()
        assert "2 links point outside" in said.err
        assert "/out/c.txt" in said.err
