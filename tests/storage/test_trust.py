"""Which addresses downloaded documents may name, and where a command may be named."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Command
from shard_cases import numbered, write_shards
from storage_servers import Web, web_server
from stored_plans import header_of, write_header

import wdscli.loader as wds
from wdscli.errors import InputError, UsageError, WdsError
from wdscli.shards import open_set
from wdscli.storage import expand, open_sink, open_source
from wdscli.storage.addresses import listed_address, shard_address

COMMAND: list[str] = []


def manifest_of(*names: str) -> bytes:
    shards = [{"url": name, "nsamples": 5} for name in names]
    return json.dumps({"__kind__": "wids-shard-index-v1", "wids_version": 1, "shardlist": shards}).encode()


@pytest.fixture
def web(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    """d/a.tar and d/e/b.tar on a server; here.tar and below/c.tar here."""
    monkeypatch.chdir(tmp_path)
    one, two = write_shards(tmp_path / "made", [numbered(5, "a"), numbered(5, "b")])
    Path("here.tar").write_bytes(Path(one).read_bytes())
    Path("below").mkdir()
    Path("below/c.tar").write_bytes(Path(two).read_bytes())
    with web_server("ranges") as server:
        server.files = {"d/a.tar": Path(one).read_bytes(), "d/e/b.tar": Path(two).read_bytes()}
        yield server


def host(web: Web) -> str:
    return web.url("").rstrip("/")


REFUSED = [
    "pipe:touch ran; cat here.tar", "-", "../x.tar", "d/../../x.tar", "/etc/passwd", "file:here.tar",
    "file:///etc/passwd", "local:///etc/passwd", "http://elsewhere.invalid/x.tar", "s3://bucket/x.tar",
    "memory://x/a.tar", "x::file:///etc/passwd", "https://127.0.0.1/a.tar", "a.tar::pipe:touch ran",
]  # fmt: skip


ELSEWHERE = [name for name in REFUSED if name.startswith(("../", "d/..", "http", "s3:", "memory:"))]
"""What a manifest of this machine may name: `wds index -o` writes such."""


class TestRules:
    @pytest.mark.parametrize("name", REFUSED)
    def test_a_manifest_may_not_name(self, name: str) -> None:
        manifests = ["http://127.0.0.1/d/m.json", "s3://other/d/m.json"]
        for manifest in [*manifests, *([] if name in ELSEWHERE else ["m.json", "d/m.json"])]:
            with pytest.raises(InputError, match="must not contain") as caught:
                shard_address(manifest, name)
            assert manifest in str(caught.value)
            assert caught.value.hint

    def test_a_manifest_here_may_name_shards_elsewhere(self) -> None:
        assert shard_address("d/m.json", "../x.tar") == "d/../x.tar"
        assert shard_address("d/m.json", "s3://b/x.tar") == "s3://b/x.tar"

    def test_a_manifest_may_name_what_is_beside_and_below(self) -> None:
        assert shard_address("d/m.json", "a.tar") == "d/a.tar"
        assert shard_address("http://h/d/m.json?token=1", "e/a b..tar") == "http://h/d/e/a b..tar"
        assert shard_address("s3://b/m.json", "s3://b/other/a.tar") == "s3://b/other/a.tar"
        assert shard_address("http://u:p@H:80/m.json", "http://h/a.tar") == "http://h/a.tar"
        for manifest, name in (
            ("http://h/m.json", "http://h:81/a.tar"),
            ("http://h/m.json", "http://h@evil/a.tar"),
            ("http://h/m.json", "http://h.evil/a.tar"),
            ("http://h/m.json", r"http://h\@evil/a.tar"),
            ("http://h/m.json", "http://evil?h/a.tar"),
            ("http://h/d/m.json", "%2e%2e/a.tar"),
            ("http://h/d/m.json", "http://h/d/%2E./a.tar"),
        ):
            with pytest.raises(InputError, match="must not contain"):
                shard_address(manifest, name)

    def test_trust_allows_all_but_commands(self) -> None:
        assert shard_address("d/m.json", "../x.tar", trusted=True) == "d/../x.tar"
        assert shard_address("s3://b/d/e/m.json", "../../f/x.tar", trusted=True) == "s3://b/f/x.tar"
        assert shard_address("s3://b/d/m.json", "../../x.tar", trusted=True) == "s3://b/../x.tar"
        assert shard_address("http://h/m.json", "../x.tar", trusted=True) == "http://h/../x.tar"
        assert shard_address("http://h/m.json", "/data/x.tar", trusted=True) == "/data/x.tar"
        assert shard_address("http://h/m.json", "s3://b/x.tar", trusted=True) == "s3://b/x.tar"
        for document in ("m.json", "http://h/m.json"):
            with pytest.raises(InputError, match="must not contain a command"):
                shard_address(document, "pipe:true", trusted=True)

    def test_a_list_of_this_machine_is_as_good_as_typed(self) -> None:
        for name in REFUSED:
            assert listed_address("list.txt", name) == name
            if not name.startswith("pipe:"):
                assert listed_address("-", name) == name
        with pytest.raises(InputError, match="must not contain a command"):
            listed_address("-", "pipe:true")
        with pytest.raises(InputError, match="must not contain a command"):
            listed_address("pipe:cat list.txt", "pipe:true")


class TestLists:
    @pytest.mark.parametrize("name", [*REFUSED, "{pipe:touch ran,x}", "{a,pipe:touch ran}.tar"])
    def test_fetched(self, web: Web, name: str) -> None:
        web.files["d/list.txt"] = f"a.tar\n{name}\n".encode()
        try:
            found = expand("@" + web.url("d/list.txt"))
        except InputError as error:
            assert web.url("d/list.txt") in str(error)
        else:
            assert all(one.startswith(web.url("d/")) for one in found)
        assert not Path("ran").exists()

    def test_what_is_relative_is_beside_the_list(self, web: Web) -> None:
        web.files["d/list.txt"] = f"a.tar\ne/{{b,c}}.tar\n{web.url('x.tar')}\n".encode()
        names = ["d/a.tar", "d/e/b.tar", "d/e/c.tar", "x.tar"]
        assert expand("@" + web.url("d/list.txt")) == [web.url(name) for name in names]

    def test_a_list_here_may_name_a_command(self, web: Web, run: Command) -> None:
        Path("list.txt").write_text("pipe:cat here.tar\nbelow/c.tar\n")
        assert len(run("ls", "@list.txt").out.splitlines()) == 10

    def test_a_manifest_that_a_list_names_has_its_own_rule(self, web: Web) -> None:
        Path("list.txt").write_text(web.url("d/m.json") + "\n")
        web.files["d/m.json"] = manifest_of("a.tar", "/etc/passwd")
        with pytest.raises(InputError, match="must not contain a path of this machine: /etc/passwd"):
            open_set(["@list.txt"])


READERS = [
    "ls {}", "ls --epoch 0 --batch-size 3 {}", "cat {} -o o.tar", "cat {} --to jsonl",
    "split {} -o o-%d.tar --max-count 1", "merge {} -o o-%d.tar",
    "merge {} here.tar --join left --on-conflict left -o o.tar", "shuffle {} -o o.tar", "sort {} -o o.tar", "verify {}",
    "repair {} -o o-%d.tar", "index {} --no-index -o n.json", "bench {} --seconds 0.1",
]  # fmt: skip


@pytest.mark.parametrize("command", READERS)
def test_every_reader_refuses_and_every_reader_can_be_told_to_trust(
    command: str, web: Web, run: Command, tmp_path: Path
) -> None:
    web.files["evil.json"] = manifest_of("d/a.tar", "pipe:touch ran; cat here.tar")
    web.files["far.json"] = manifest_of("d/a.tar", str(tmp_path / "below" / "c.tar"))
    Path("evil.json").write_bytes(manifest_of("here.tar", "pipe:touch ran; cat here.tar"))
    Path("far.json").write_bytes(manifest_of("here.tar", str(tmp_path / "below" / "c.tar")))
    for document in (web.url("evil.json"), "evil.json"):
        for words in ([], ["--trust-addresses"]):
            ran = run(*shlex.split(command.replace("{}", document)), *words)
            assert ran.code == 4
            assert "must not contain a command" in ran.err
            assert not Path("ran").exists()
    for number, document in enumerate((web.url("far.json"), "far.json")):
        ran = run(*shlex.split(command.replace("{}", document)))
        assert ran.code == 4
        assert "must not contain a path of this machine" in ran.err
        assert "--trust-addresses" in ran.err
        words = shlex.split(
            command.replace("{}", document)
            .replace("-o o", f"-o o{number}")
            .replace("n.json", f"n{number}.json")
        )
        ran = run(*words, "--trust-addresses")
        assert ran.code == 0 or "must not contain" not in ran.err, ran.err
        assert ran.code in (0, 2), ran.err  # a manifest at n.json cannot name what lies here and there


class TestTables:
    """Rows of a fetched table or list of files are no better."""

    @pytest.mark.parametrize("name", ["/etc/passwd", "pipe:touch ran", "file:here.tar"])
    def test_create(self, web: Web, run: Command, name: str) -> None:
        web.files["t.csv"] = f"id,path\nk,{name}\n".encode()
        web.files["l.txt"] = f"k.bin\t{name}\n".encode()
        table = ["--from", web.url("t.csv"), "--key-column", "id", "--column", "bin=@path"]
        for number, words in enumerate((table, ["--from", "list:" + str(web.url("l.txt"))])):
            ran = run("create", *words, "-o", f"o{number}.tar")
            assert ran.code == 4, ran.err
            assert "must not contain" in ran.err
        ran = run("merge", "here.tar", "--table", web.url("t.csv"), "--key-column", "id", "--column", "bin=@path",
                  "--join", "outer", "-o", "p.tar")  # fmt: skip
        assert ran.code == 4
        assert "must not contain" in ran.err
        assert not Path("ran").exists()
        assert not list(Path().glob("[op]*.tar"))

    def test_trusted(self, web: Web, run: Command, tmp_path: Path) -> None:
        web.files["t.csv"] = f"id,path\nk,{tmp_path}/here.tar\n".encode()
        words = [web.url("t.csv"), "--key-column", "id", "--column", "bin=@path", "--trust-addresses", "-o"]
        assert run("create", "--from", *words, "o.tar").code == 0
        assert run("merge", "here.tar", "--join", "outer", "--table", *words, "p.tar").code == 0

    @pytest.mark.parametrize(
        ("name", "content", "options"),
        [
            ("t.csv", "id,path\nk,pipe:touch ran\n", ["--from", "t.csv", "--column", "bin=@path"]),
            ("t.jsonl", '{"id":"k","path":"pipe:touch ran"}', ["--from", "t.jsonl", "--column", "bin=@path"]),
            ("t.csv", "id,cmd\nk,touch ran\n", ["--from", "t.csv", "--column", "bin=@pipe:{cmd}"]),
            ("t.txt", "pipe:touch ran\n", ["--from", "lines:t.txt", "--column", "bin=@line"]),
            ("t.json",
             '{"images":[{"file_name":"here.tar"},{"file_name":"pipe:touch ran"}]}',
             ["--from", "coco:t.json", "--column", "jpg=@image"]),
        ],
    )  # fmt: skip
    def test_a_cell_of_a_table_here_runs_nothing(
        self, web: Web, run: Command, name: str, content: str, options: list[str]
    ) -> None:
        Path(name).write_text(content)
        is_table, is_coco = ":" not in options[1], options[1].startswith("coco:")
        key = ["--key-column", "id"] if is_table else []
        ran = run("create", *options, *key, "-o", "o.tar", "--on-error", "skip")
        assert not Path("ran").exists()
        assert ran.code == (0 if is_coco else 4), ran.err
        ran = run("create", *options, *key, "-o", "o.tar", "--force")
        assert ran.code == 4
        assert "must not contain a command: pipe:touch ran" in ran.err
        assert "--trust-addresses" in ran.err
        if is_table:
            words = ["merge", "here.tar", "--table", *options[1:], *key, "--join", "outer", "-o", "p.tar"]
            ran = run(*words)
            assert (ran.code, "must not contain" in ran.err, Path("ran").exists()) == (4, True, False), (
                ran.err
            )
            assert run(*words, "--trust-addresses").code == 0
            assert Path("ran").exists()
            Path("ran").unlink()
        if not is_coco:
            ran = run("create", *options, *key, "-o", "o.tar", "--trust-addresses")
            assert (ran.code, Path("ran").exists()) == (0, True), ran.err

    def test_a_list_here_still_runs_commands(self, web: Web, run: Command) -> None:
        Path("l.txt").write_text("k.bin\tpipe:touch ran\n")
        assert run("create", "--from", "list:l.txt", "-o", "o.tar").code == 0
        assert Path("ran").exists()

    def test_beside(self, web: Web, run: Command) -> None:
        web.files["d/t.csv"] = f"id,path\nk,a.tar\nl,{web.url('d/e/b.tar')}\n".encode()
        ran = run(
            "create",
            "--from",
            web.url("d/t.csv"),
            "--key-column",
            "id",
            "--column",
            "bin=@path",
            "-o",
            "o.tar",
        )
        assert ran.code == 0, ran.err


class TestNoPipe:
    def test_the_environment(self, web: Web, run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
        Path("list.txt").write_text("pipe:touch ran; cat here.tar\n")
        Path("keys.txt").write_text("k.txt\tpipe:touch ran\n")
        monkeypatch.setenv("WDSCLI_NO_PIPE", "1")
        for words in (
            ["ls", "pipe:touch ran; cat here.tar"],
            ["ls", "@list.txt"],
            ["ls", "@pipe:touch ran; echo here.tar"],
            ["ls", "here.tar", "--keys-from", "pipe:touch ran"],
            ["cat", "here.tar", "-o", "pipe:touch ran"],
            ["split", "here.tar", "--max-count", "1", "-o", "pipe:touch ran %d"],
            ["create", "--from", "list:keys.txt", "-o", "o.tar"],
            [
                "merge",
                "here.tar",
                "--table",
                "pipe:touch ran",
                "--key-column",
                "id",
                "--column",
                "t=c",
                "-o",
                "o.tar",
            ],
            ["shuffle", "pipe:touch ran; cat here.tar", "-o", "o.tar", "-j", "2"],
        ):
            ran = run(*words)
            assert ran.code == 2, (words, ran.err)
            assert "is not run: WDSCLI_NO_PIPE is set" in ran.err
            assert not Path("ran").exists(), words
        for opened in (open_source, open_sink):
            with pytest.raises(UsageError, match="WDSCLI_NO_PIPE"):
                opened("pipe:touch ran")
        with pytest.raises(UsageError, match="WDSCLI_NO_PIPE"):
            list(wds.WebDataset("pipe:touch ran; cat here.tar"))
        monkeypatch.setenv("WDSCLI_NO_PIPE", "0")
        assert run("ls", "pipe:cat here.tar").code == 0

    def test_the_hook_after_a_shard_is_no_pipe(
        self, web: Web, run: Command, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("WDSCLI_NO_PIPE", "1")
        assert run("split", "here.tar", "-o", "o-%d.tar", "--max-count", "9", "--post", "touch ran").code == 0

    def test_the_loader(self, web: Web) -> None:
        Path("list.txt").write_text("here.tar\npipe:touch ran\n")
        for urls in (
            "pipe:touch ran; cat here.tar",
            ["here.tar", "pipe:touch ran"],
            "@list.txt",
            "@pipe:touch ran",
        ):
            for kind in (wds.WebDataset, wds.IndexedDataset):
                with pytest.raises(UsageError, match="pipes=False"):
                    kind(urls, pipes=False)
        with pytest.raises(UsageError, match="pipes=False"):
            wds.WebDataset("here.tar", keys_from="pipe:touch ran", pipes=False)
        assert not Path("ran").exists()
        assert len(list(wds.WebDataset("here.tar", pipes=False))) == 5
        assert len(list(wds.WebDataset("pipe:cat here.tar"))) == 5

    def test_the_loader_trusts_when_it_is_told_to(self, web: Web, tmp_path: Path) -> None:
        web.files["far.json"] = manifest_of("d/a.tar", str(tmp_path / "below" / "c.tar"))
        web.files["evil.json"] = manifest_of("d/a.tar", "pipe:touch ran; cat here.tar")
        for kind in (wds.WebDataset, wds.IndexedDataset):
            with pytest.raises(InputError, match="must not contain a path of this machine"):
                kind(web.url("far.json"))
            assert len(list(kind(web.url("far.json"), trust_addresses=True))) == 10  # type: ignore[call-overload]
            with pytest.raises(WdsError, match="must not contain a command"):
                kind(web.url("evil.json"), trust_addresses=True)
        with pytest.raises(InputError):
            wds.DataPipeline(wds.SimpleShardList(web.url("evil.json")), wds.tarfile_to_samples())
        assert not Path("ran").exists()


class TestPlans:
    def plan(self, run: Command, source: str, **changes: Any) -> bytes:
        assert (
            run("shuffle", source, "-o", "o-%d.tar", "--max-count", "2", "--plan", "p.plan", "--force").code
            == 0
        )
        plan = Path("p.plan")
        header = header_of(plan)
        for name, value in changes.items():
            if name == "base":
                header["bases"][0]["url"] = value
            else:
                header["run"][name] = value
        write_header(plan, header)
        return plan.read_bytes()

    def test_one_that_was_fetched_orders_nothing_here(self, web: Web, run: Command, tmp_path: Path) -> None:
        """It is a command that somebody else wrote: inputs, outputs and hooks are held to the rule of manifests."""
        web.files["local.plan"] = self.plan(run, "here.tar")
        there = self.plan(run, web.url("d/a.tar"))
        web.files["out.plan"] = there
        web.files["out.plan.rows"] = Path("p.plan.rows").read_bytes()
        web.files["post.plan"] = self.plan(
            run, web.url("d/a.tar"), output=web.url("o-%d.tar"), post="touch ran"
        )
        here = "a path of this machine"
        for name, said in (("local", here), ("out", here), ("post", "touch ran")):
            ran = run("run", web.url(f"{name}.plan"))
            assert ran.code == 4, ran.err
            assert said in ran.err
            assert "--trust-addresses" in ran.err
        assert not Path("ran").exists()
        assert not list(tmp_path.glob("o-*"))
        assert run("run", web.url("out.plan"), "--trust-addresses").code == 0
        assert Path("o-manifest.json").exists()

    def test_no_plan_names_a_command(self, web: Web, run: Command) -> None:
        """None that this program writes does."""
        for changes in (
            {"output": "pipe:touch ran"},
            {"base": "pipe:touch ran; cat here.tar"},
        ):
            data = self.plan(run, "here.tar", **changes)
            Path("evil.plan").write_bytes(data)
            web.files["evil.plan"] = data
            for address in ("evil.plan", web.url("evil.plan")):
                for words in ([], ["--trust-addresses"]):
                    ran = run("run", address, *words)
                    assert ran.code == 3, ran.err
                    assert "it names a command" in ran.err
        assert not Path("ran").exists()

    def test_one_of_this_machine_runs_what_it_says(self, web: Web, run: Command) -> None:
        self.plan(run, "here.tar", post="touch ran")
        assert run("run", "p.plan").code == 0
        assert Path("ran").exists()

    def test_one_that_was_fetched_is_a_set_of_shards_there(self, web: Web, run: Command) -> None:
        for name, source in (("there", web.url("d/a.tar")), ("here", str(Path("here.tar").resolve()))):
            web.files[f"d/{name}.json"] = self.plan(
                run, source, **({"base": source} if name == "here" else {})
            )
            web.files[f"d/{name}.rows"] = Path("p.plan.rows").read_bytes()
        assert len(run("ls", web.url("d/there.json")).out.splitlines()) == 5
        ran = run("ls", web.url("d/here.json"))
        assert (ran.code, "must not contain a path of this machine" in ran.err) == (4, True), ran.err
