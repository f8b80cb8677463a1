"""What a user writes for an input, and the shards it stands for."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from storage_servers import s3_server, web_server

from wdscli.errors import InputError, UsageError
from wdscli.storage import base_name, expand, is_local, list_folder, open_source, same_file, sibling


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def touch(*names: str) -> None:
    for name in names:
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")


SIDE = [
    "a-manifest.json",
    "img1.tar.idx",
    "img1.tar.wdx",
    "x.index",
    ".wds/img1.tar.wdx",
    ".hidden.tar",
    "img1.tar.md5",
]


class TestPlain:
    @pytest.mark.parametrize(
        "address",
        ["a.tar", "no/such/a.tar", "-", "pipe:cat a.tar b.tar", "s3://b/a.tar", "http://[::1]:80/a.tar", "a-{part}.tar",
         "https://x.org/a.tar?token=a[b]*c", "/dev/null"],
    )  # fmt: skip
    def test_stands_for_itself(self, here: Path, address: str) -> None:
        assert expand(address) == [address]

    def test_nothing(self) -> None:
        with pytest.raises(UsageError, match="needs a name"):
            expand("")


class TestBraces:
    @pytest.mark.parametrize(
        ("address", "shards"),
        [
            ("x-{000..002}.tar", ["x-000.tar", "x-001.tar", "x-002.tar"]),
            ("x-{2..0}.tar", ["x-2.tar", "x-1.tar", "x-0.tar"]),
            ("{train,val}-{0..1}.tar", ["train-0.tar", "train-1.tar", "val-0.tar", "val-1.tar"]),
            ("s3://b/{a,b}.tar", ["s3://b/a.tar", "s3://b/b.tar"]),
            (r"a\b-{0..1}.tar", [r"a\b-0.tar", r"a\b-1.tar"]),
            ("pipe:cat {08..10}.tar", ["pipe:cat 08.tar", "pipe:cat 09.tar", "pipe:cat 10.tar"]),
            ("pipe:cat {0..1}{0..1}", ["pipe:cat 00", "pipe:cat 01", "pipe:cat 10", "pipe:cat 11"]),
            ("pipe:cat x | awk '{print $1, $2}'", ["pipe:cat x | awk '{print $1, $2}'"]),
            ("pipe:cat a::b", ["pipe:cat a::b"]),
        ],
    )
    def test_expanded(self, here: Path, address: str, shards: list[str]) -> None:
        assert expand(address) == shards

    def test_all_forty_two(self, here: Path) -> None:
        assert expand("{000000..000041}") == [f"{n:06d}" for n in range(42)]

    def test_that_do_not_pair(self, here: Path) -> None:
        with pytest.raises(InputError, match="do not pair"):
            expand("{a,b}-{0..1.tar")

    def test_a_file_of_that_name_is_taken_literally(self, here: Path) -> None:
        touch("x-{0..1}.tar", "a[0-9]*.tar", "a::b.tar")
        for name in ("x-{0..1}.tar", "a[0-9]*.tar", "a::b.tar"):
            assert expand(name) == [name]

    def test_with_globs(self, here: Path) -> None:
        touch("a1.tar", "a2.tar", "b1.tar")
        assert expand("{b,a}*.tar") == ["b1.tar", "a1.tar", "a2.tar"]
        with pytest.raises(InputError, match=r"no shard matches c\*\.tar"):
            expand("{a,c}*.tar")


class TestJoined:
    def test_parts_in_order(self, here: Path) -> None:
        touch("b1.tar", "b2.tar")
        assert expand("z.tar::b*.tar::x{0..1}") == ["z.tar", "b1.tar", "b2.tar", "x0", "x1"]
        assert expand("http://[::1]/a::http://[fe80::2]:80/b") == ["http://[::1]/a", "http://[fe80::2]:80/b"]


class TestGlobs:
    def test_natural_order_without_side_files(self, here: Path) -> None:
        touch("img10.tar", "img2.tar", "img1.tar", *SIDE)
        assert expand("img*") == ["img1.tar", "img2.tar", "img10.tar"]
        assert expand("img?.tar") == ["img1.tar", "img2.tar"]
        assert expand("img[0-9]*") == ["img1.tar", "img2.tar", "img10.tar"]
        assert expand("*.json") == ["a-manifest.json"]

    def test_stars_inside_a_name_cross_slashes(self, here: Path) -> None:
        for name in ("s/a.tar", "s/x/b.tar", "s/x/y/c.tar"):
            (here / name).parent.mkdir(parents=True, exist_ok=True)
            (here / name).touch()
        assert expand("s/**.tar") == ["s/a.tar", "s/x/b.tar", "s/x/y/c.tar"]
        assert expand("s/x**.tar") == ["s/x/b.tar", "s/x/y/c.tar"]

    def test_folders_below(self, here: Path) -> None:
        touch("d2/a.tar", "d10/a.tar", "d10/deep/b.tar")
        assert expand("d*/*.tar") == ["d2/a.tar", "d10/a.tar"]
        assert expand("**/*.tar") == ["d2/a.tar", "d10/a.tar", "d10/deep/b.tar"]
        with pytest.raises(InputError, match="no shard matches"):
            expand("d*")

    def test_nothing_matches(self, here: Path) -> None:
        with pytest.raises(InputError, match=r"no shard matches train-\*\.tar") as caught:
            expand("train-*.tar")
        assert caught.value.hint is None
        with pytest.raises(InputError) as caught:
            expand("no/such/*.tar")
        assert caught.value.hint == "there is no folder no/such"

    @pytest.mark.parametrize(
        "wrong",
        [
            *(
                "{00000.00004}",
                "{0-4}",
                "{00000...00004}",
                "{00000..00004",
                "00000..00004}",
                "[00000..00004]",
            ),
            *("(0..4)", "{ 0 .. 4 }", "{0:4}", "{0\u20264}"),
        ],
    )
    @pytest.mark.parametrize("before", ["train-", "memory://bucket/train-"])
    def test_a_range_that_was_meant(self, here: Path, wrong: str, before: str) -> None:
        """Wrong braces get a hint when no file has exactly that name."""
        name = f"{before}{wrong}.tar"
        low, high = re.findall("[0-9]+", wrong)
        with pytest.raises(InputError) as caught:
            [open_source(one) for one in expand(name)]
        assert caught.value.hint == f"did you mean '{before}{{{low}..{high}}}.tar'?"
        if before == "train-" and "[" not in wrong:
            touch(name)
            assert expand(name) == [name]
            open_source(name).close()

    def test_digits_in_brackets_are_one_character(self, here: Path) -> None:
        for name in ("t-000000.tar", "t-000001.tar", "t-000010.tar"):
            touch(name)
        with pytest.raises(InputError) as caught:
            expand("t-[0-2].tar")
        assert caught.value.hint == "the folder has t-000000.tar to t-000010.tar"

    def test_a_range_with_one_end(self, here: Path) -> None:
        for wrong in ("t-{0..}.tar", "t-{..4}.tar"):
            with pytest.raises(InputError) as caught:
                [open_source(one) for one in expand(wrong)]
            assert caught.value.hint == "a range in braces has two ends: {00000..00041}"

    def test_names_that_only_have_numbers_get_no_such_hint(self, here: Path) -> None:
        for name in ("train-0-4.tar", "cc-2024-05(1)-0..4.tar", "a.1.2.tar", "x{part}.tar"):
            with pytest.raises(InputError) as caught:
                open_source(name)
            assert caught.value.hint is None

    def test_file_url(self, here: Path) -> None:
        touch("a1.tar", "a2.tar")
        assert expand(f"file://{here}/a*.tar") == [f"file://{here}/a1.tar", f"file://{here}/a2.tar"]


class TestFolders:
    def test_natural_order_without_side_files(self, here: Path) -> None:
        touch(
            "d/img10.tar",
            "d/img2.tar",
            "d/img1.tar.gz",
            "d/notes.txt",
            "d/sub.tar/x.tar",
            *[f"d/{n}" for n in SIDE],
        )
        # A folder with the name of a shard is not left out in silence: to open it is an error.
        assert expand("d") == ["d/img1.tar.gz", "d/img2.tar", "d/img10.tar", "d/sub.tar"]
        assert expand("d/") == expand("d")

    def test_by_braces(self, here: Path) -> None:
        touch("d1/a.tar", "d2/b.tar")
        assert expand("d{1,2}") == ["d1/a.tar", "d2/b.tar"]

    def test_current(self, here: Path) -> None:
        touch("a.tar")
        assert expand(".") == ["./a.tar"]

    def test_parts(self, here: Path) -> None:
        touch("d/deep/a.tar", "d/deep/e/f/b2.tar", "d/deep/e/f/b10.tar", "d/.git/c.tar", "e/readme")
        parts = ["d/deep/a.tar", "d/deep/e/f/b2.tar", "d/deep/e/f/b10.tar"]
        assert expand("d") == expand("d/") == parts
        assert expand("{d,d/deep/e}") == [*parts, *parts[1:]]
        with pytest.raises(InputError, match=r"no shard matches e: no \*\.tar") as caught:
            expand("e")
        assert caught.value.hint == "make shards of its files with `wds create`"


class TestLists:
    def test_lines(self, here: Path) -> None:
        touch("d/a1.tar", "d/a2.tar")
        Path("d/list.txt").write_text("# a comment\n\nz.tar\r\n  d/a*.tar\ns3://b/{0..1}.tar\n-\n")
        assert expand("@d/list.txt") == ["z.tar", "d/a1.tar", "d/a2.tar", "s3://b/0.tar", "s3://b/1.tar", "-"]

    def test_a_list_in_json(self, here: Path) -> None:
        """As programs write it; a text file may begin with a bracket too."""
        touch("d/a1.tar", "d/a2.tar")
        Path("list.json").write_text('\ufeff["z.tar",\n "d/a*.tar", "#1.tar"]')
        assert expand("@list.json") == ["z.tar", "d/a1.tar", "d/a2.tar", "#1.tar"]
        Path("list").write_text('["z.tar"]')
        assert expand("@list") == ["z.tar"]
        Path("list").write_text("[1]")
        touch("[1]")
        assert expand("@list") == ["[1]"]
        for text in ('{"shardlist": []}', '["a", 1]', '["a"', '[["a"]]', '[""]', "[" * 100_000):
            Path("list.json").write_text(text)
            with pytest.raises(InputError, match=r"list\.json is no JSON list of addresses"):
                expand("@list.json")
        Path("list.json").write_text("[]")
        with pytest.raises(InputError, match="the list is empty"):
            expand("@list.json")
        Path("list.json").write_text('["@other"]')
        with pytest.raises(InputError, match="names another list"):
            expand("@list.json")

    def test_names_that_are_not_utf8(self, here: Path) -> None:
        Path("list").write_bytes(b"\xff.tar\n")
        assert expand("@list") == [os.fsdecode(b"\xff.tar")]

    def test_of_standard_input(self, here: Path) -> None:
        script = "from wdscli.storage import expand; print(expand('@-'))"
        done = subprocess.run(
            [sys.executable, "-c", script], input=b"a\nb\n", capture_output=True, check=True
        )
        assert done.stdout == b"['a', 'b']\n"

    def test_errors(self, here: Path) -> None:
        Path("empty").write_text("# nothing\n")
        Path("nested").write_text("@empty\n")
        with pytest.raises(InputError, match="the list is empty"):
            expand("@empty")
        with pytest.raises(InputError, match="names another list"):
            expand("@nested")
        with pytest.raises(InputError, match="cannot read gone: no such file"):
            expand("@gone")
        with pytest.raises(UsageError):
            expand("@")


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with s3_server() as server:
        server.bucket("shards")
        for name in [
            "d/img10.tar",
            "d/img2.tar",
            "d/img2.tar.idx",
            "d/m-manifest.json",
            "d/sub/x.tar",
            "e/",
        ]:
            server.client.put_object(Bucket="shards", Key=name, Body=b"x")
        yield "s3://shards"


class TestRemote:
    def test_globs(self, bucket: str) -> None:
        assert expand(f"{bucket}/d/img*") == [f"{bucket}/d/img2.tar", f"{bucket}/d/img10.tar"]
        assert expand(f"{bucket}/**/*.tar") == [
            f"{bucket}/d/img2.tar", f"{bucket}/d/img10.tar", f"{bucket}/d/sub/x.tar",
        ]  # fmt: skip
        with pytest.raises(InputError, match="no shard matches"):
            expand(f"{bucket}/nothing*")

    def test_folders(self, bucket: str) -> None:
        assert expand(f"{bucket}/d/") == [f"{bucket}/d/img2.tar", f"{bucket}/d/img10.tar"]
        with pytest.raises(InputError, match="no shard matches"):
            expand(f"{bucket}/e/")
        with pytest.raises(InputError, match="no such object"):
            expand(f"{bucket}/gone/")

    def test_folders_without_their_slash(self, bucket: str, tmp_path: Path) -> None:
        """As on this machine; names of shards are not asked about."""
        import fsspec

        assert expand(f"{bucket}/d") == [f"{bucket}/d/img2.tar", f"{bucket}/d/img10.tar"]
        assert expand(f"{bucket}/{{d/sub,d}}")[:2] == [f"{bucket}/d/sub/x.tar", f"{bucket}/d/img2.tar"]
        assert expand(f"{bucket}/gone") == [f"{bucket}/gone"]
        with pytest.raises(InputError, match='there is no bucket "no-such-bucket"'):
            expand("s3://no-such-bucket/d")
        assert expand(bucket) == expand(f"{bucket}/**/*.tar")
        fsspec.filesystem("memory").pipe_file(f"{tmp_path}/m/a1.tar", b"")
        assert expand(f"memory://{tmp_path}/m") == [f"memory://{tmp_path}/m/a1.tar"]

    def test_listing(self, bucket: str) -> None:
        assert list_folder(f"{bucket}/d") == [
            "img10.tar",
            "img2.tar",
            "img2.tar.idx",
            "m-manifest.json",
            "sub",
        ]

    def test_memory_globs(self, tmp_path: Path) -> None:
        import fsspec

        fsspec.filesystem("memory").pipe_file(f"{tmp_path}/a1.tar", b"")
        assert expand(f"memory://{tmp_path}/a*.tar") == [f"memory://{tmp_path}/a1.tar"]

    def test_web_pages(self) -> None:
        with web_server("plain") as server:
            server.files["d/"] = b'<a href="a2.tar">a2</a> <a href="a10.tar">a10</a> <a href="b.txt">b</a>'
            assert expand(server.url("d/a*.tar")) == [server.url("d/a2.tar"), server.url("d/a10.tar")]


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("a.tar", "a.tar"), ("d/a.tar", "a.tar"), ("d/", "d"), ("s3://b/d/a.tar", "a.tar"), ("-", "stdin"),
        ("https://x.org/d/a.tar?sig=a/b#c", "a.tar"), ("file:///d/a.tar", "a.tar"), ("a?b.tar", "a?b.tar"),
    ],
)  # fmt: skip
def test_base_name(address: str, name: str) -> None:
    assert base_name(address) == name


def test_base_names_of_streams() -> None:
    assert base_name("-") == "stdin"
    assert base_name("pipe:cat /a/b") == base_name("pipe:cat /a/b")
    assert base_name("pipe:cat a") != base_name("pipe:cat b")
    assert "/" not in base_name("pipe:cat /a/b")


@pytest.mark.parametrize(
    ("address", "wanted"),
    [
        ("a.tar", ".wds/x"), ("d/a.tar", "d/.wds/x"), ("/a.tar", "/.wds/x"), ("s3://b/d/a.tar", "s3://b/d/.wds/x"),
        ("https://x.org/d/a.tar?sig=a/b", "https://x.org/d/.wds/x"), ("memory://a.tar", "memory://.wds/x"),
    ],
)  # fmt: skip
def test_sibling(address: str, wanted: str) -> None:
    assert sibling(address, ".wds/x") == wanted


def test_streams_have_no_siblings() -> None:
    for address in ("-", "pipe:cat a"):
        with pytest.raises(UsageError, match="no folder"):
            sibling(address, "x")


def test_is_local() -> None:
    assert [is_local(a) for a in ("a", "file:///a", "FILE:///a", "-", "pipe:a", "s3://a", "c:a")] == [
        True, True, True, False, False, False, True,
    ]  # fmt: skip


def test_same_file(here: Path) -> None:
    touch("a")
    os.link("a", "b")
    assert same_file("a", f"file://{here}/b")
    assert same_file("gone", "./gone")
    assert not same_file("a", "gone")
    assert same_file("s3://b/a", "s3://b/a")
    assert not same_file("-", "-")


def test_list_folder(here: Path) -> None:
    touch("b", "a", ".c/d")
    assert list_folder("") == list_folder(str(here)) == list_folder(f"file://{here}/") == [".c", "a", "b"]
    with pytest.raises(InputError, match="cannot list gone"):
        list_folder("gone")
