"""What a person meets who comes from tar: files that are no shards, archives that GNU tar made with other options, a
folder as the output; and that a hint, pasted, does what it says."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from shard_cases import keys_of, numbered, tar_of, wds, wds_here, write_shards

import wdscli

GNU_TAR = ["tar", "--format=gnu", "--sort=name"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def hint_of(text: str) -> str:
    return text.partition("hint: ")[2]


class TestNoTarAtAll:
    def test_empty(self) -> None:
        Path("a.tar").touch()
        assert "copy or create the shard again" in hint_of(wds("ls", "a.tar").err)
        ran = wds("ls", "-", stdin=b"")
        assert "standard input is empty" in ran.err
        assert hint_of(ran.err) == "did the command before it fail?\n"

    @pytest.mark.parametrize(
        ("begin", "hint"),
        [
            (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "`git lfs pull`"),
            (b"PK\3\4" + bytes(600), "it is a zip archive"),
            (b"PAR1" + b"x" * 600, "`wds create --from`"),
            (b"<!DOCTYPE html>" + b"x" * 600, "it is a web page"),
            (b"some text", "copy or create the shard again"),
        ],
    )
    def test_says_what_the_file_is(self, begin: bytes, hint: str) -> None:
        Path("a.tar").write_bytes(begin)
        for ran in (wds("ls", "a.tar"), wds("ls", "-", stdin=begin)):
            assert (ran.code, hint in hint_of(ran.err)) == (3, True), ran.err
        assert (
            f"hint: {hint}" in wds("verify", "a.tar").out.decode()
            or hint in wds("verify", "a.tar").out.decode()
        )


class TestOtherKindsOfMembers:
    def test_hard_links_are_gone_with_the_options_of_the_hint(self, here: Path) -> None:
        files = here / "files"
        files.mkdir()
        (files / "a.txt").write_text("text")
        os.link(files / "a.txt", files / "b.txt")
        subprocess.run([*GNU_TAR, "-cf", "a.tar", "-C", "files", "."], check=True)
        ran = wds("cat", "a.tar", "-o", "b.tar")
        assert (ran.code, "GNU tar: --dereference --hard-dereference" in ran.err) == (3, True)
        assert "--dereference --hard-dereference" in wds("verify", "a.tar").out.decode()
        options = ["--dereference", "--hard-dereference"]
        subprocess.run([*GNU_TAR, *options, "-cf", "a.tar", "-C", "files", "."], check=True)
        assert wds("cat", "a.tar", "-o", "b.tar").code == 0
        assert keys_of("b.tar") == ["./a", "./b"]

    def test_a_label(self) -> None:
        Path("a.txt").write_text("text")
        subprocess.run([*GNU_TAR, "--label=mine", "-cf", "a.tar", "a.txt"], check=True)
        assert "without --label" in hint_of(wds("cat", "a.tar", "-o", "b.tar").err)
        assert "--label" in wds("verify", "a.tar").out.decode()
        assert "warning: members that are not regular files: 1 special" in wds("ls", "a.tar").err

    def test_files_of_macos(self) -> None:
        Path("a.tar").write_bytes(tar_of([("._a.txt", b"attributes"), ("a.txt", b"text"), ("b", b"")]))
        found = [json.loads(line) for line in wds("verify", "--json", "a.tar").out.splitlines()]
        messages = {one["member"]: one["message"] for one in found if one.get("code") == "no-field"}
        assert "macOS keeps" in messages["._a.txt"]
        assert "no dot after" in messages["b"]


class TestHintsThatHelp:
    def test_archives_joined_with_cat(self) -> None:
        both = [tar_of([(f"{name}{number}.txt", b"text") for number in range(3)]) for name in "ab"]
        Path("joined.tar").write_bytes(b"".join(both))
        ran = wds("cat", "joined.tar", "-o", "new.tar")
        assert (ran.code, "`wds repair SHARDS -o OUT`" in hint_of(ran.err)) == (3, True)
        wds("repair", "joined.tar", "-o", "saved-%d.tar")
        assert keys_of("saved-0.tar") == ["a0", "a1", "a2", "b0", "b1", "b2"]

    @pytest.mark.parametrize("command", ["cat", "sort"])
    def test_files_of_a_sample_that_lie_apart(self, command: str) -> None:
        Path("a.tar").write_bytes(
            tar_of([("a.jpg", b"1"), ("b.jpg", b"2"), ("a.txt", b"3"), ("b.txt", b"4")])
        )
        ran = wds(command, "a.tar", "-o", "new.tar")
        assert (ran.code, "wds repair SHARDS -o OUT" in hint_of(ran.err)) == (3, True)
        wds("repair", "a.tar", "-o", "saved-%d.tar")
        assert [line.split("\t")[1] for line in wds("ls", "saved-0.tar").out.decode().splitlines()] == [
            "jpg,txt"
        ] * 2

    def test_a_manifest_of_other_shards(self) -> None:
        write_shards(Path("set"), [numbered(3)])
        assert wds("index", "set").code == 0
        write_shards(Path("set"), [numbered(4)])
        ran = wds("index", "--check", "set")
        names = sorted(os.path.basename(line.split(":")[0]) for line in ran.out.decode().splitlines())
        assert (ran.code, len(names), names[-1].endswith("-manifest.json")) == (1, 2, True), ran.err
        assert ran.out.decode().count(": stale") == 2
        assert "`wds index --force`" in wds("verify", "set").out.decode()
        assert wds("index", "--force", "set").code == 0
        assert wds("verify", "set").code == 0

    def test_a_manifest_and_a_shard_more(self) -> None:
        write_shards(Path("set"), [numbered(3)])
        assert wds("index", "set").code == 0
        write_shards(Path("set"), [numbered(3), numbered(3, "m")])
        assert wds("index", "--check", "set").code == 1
        assert wds("index", "set").code == 4

    def test_a_folder_as_the_output(self) -> None:
        write_shards(Path("set"), [numbered(3)])
        Path("out").mkdir()
        for more in ([], ["--force"]):
            ran = wds("shuffle", "set", "-o", "out", *more)
            assert (ran.code, hint_of(ran.err)) == (4, "out/%06d.tar names shards in it\n")
        assert wds("shuffle", "set", "-o", "out/%06d.tar").code == 0

    def test_a_shard_whose_name_begins_like_a_list(self) -> None:
        Path("@a.tar").write_bytes(tar_of([("a.txt", b"text")]))
        assert "./@a.tar" in hint_of(wds("ls", "@a.tar").err)
        assert wds("ls", "./@a.tar").code == 0

    def test_a_list_that_windows_wrote(self) -> None:
        Path("a.tar").write_bytes(tar_of([("a.txt", b"text")]))
        Path("list").write_bytes(b"\xef\xbb\xbfa.tar\r\n")
        assert wds("ls", "@list").out.startswith(b"a\t")

    def test_a_list_of_paths_alone(self) -> None:
        Path("a.txt").write_text("text")
        ran = wds("create", "--from", "list:-", "-o", "new.tar", stdin=b"a.txt\n")
        assert (ran.code, ran.err.count("line 1")) == (3, 1)
        assert r"sed 's/.*/&\t&/'" in hint_of(ran.err)
        lines = subprocess.run(
            ["sed", r"s/.*/&\t&/"], input=b"a.txt\n", capture_output=True, check=True
        ).stdout
        assert wds("create", "--from", "list:-", "-o", "new.tar", stdin=lines).code == 0

    def test_rows_with_one_key(self) -> None:
        Path("a.csv").write_text("id,text\n1,a\n1,b\n")
        ran = wds("create", "--from", "a.csv", "--key-column", "id", "--column", "txt=text", "-o", "a.tar")
        assert '"1.txt" comes twice in the lists and tables' in ran.err
        assert "folder" not in hint_of(ran.err)

    @pytest.mark.parametrize("text", ["key ==", "cls > ", "not"])
    def test_a_condition_without_its_end(self, text: str) -> None:
        assert f'at the end of "{text}"' in wds("ls", ".", "--where", text).err

    def test_standard_input_twice(self) -> None:
        ran = wds("ls", "-", "-", stdin=tar_of([("a.txt", b"text")]))
        assert (ran.code, ran.out, ran.err.partition("\n")[0]) == (
            2,
            b"",
            "error: standard input is named twice",
        )

    def test_a_bench_of_nothing(self) -> None:
        Path("a.tar").write_bytes(tar_of([]))
        assert "`wds ls --summary`" in hint_of(wds("bench", "--seconds", "0.05", "a.tar").err)


class TestPlaces:
    def test_a_link_that_leads_nowhere(self) -> None:
        Path("set").mkdir()
        Path("set/a.txt").symlink_to("gone")
        for args in (["ls", "set/a.txt"], ["create", "set", "-o", "a.tar"]):
            ran = wds(*args)
            assert (ran.code, "broken symlink" in ran.err) == (4, True), ran.err
            assert "did you mean" not in ran.err

    def test_a_current_folder_that_is_gone(self, here: Path) -> None:
        Path("a.tar").write_bytes(tar_of([("a.txt", b"text")]))
        script = 'mkdir gone && cd gone && rmdir ../gone && exec "$@"'
        command = [sys.executable, "-m", "wdscli", "cat", str(here / "a.tar"), "-o", "b.tar"]
        # A relative path in PYTHONPATH would lead elsewhere from there.
        paths = {"PYTHONPATH": str(Path(wdscli.__file__).parents[1])}
        ran = subprocess.run(
            ["sh", "-c", script, "sh", *command],
            env={**os.environ, **paths},
            capture_output=True,
            check=False,
        )
        assert (ran.returncode, b"the current folder does not exist any more" in ran.stderr) == (4, True)

    def test_few_descriptors(self, here: Path) -> None:
        write_shards(Path("set"), [numbered(1, f"n{number:02d}") for number in range(60)])
        script = 'ulimit -n 40 && exec "$@"'
        command = [sys.executable, "-m", "wdscli", "shuffle", "set", "-o", "out.tar", "--strategy", "spill"]
        paths = {"PYTHONPATH": str(Path(wdscli.__file__).parents[1])}
        ran = subprocess.run(
            ["sh", "-c", script, "sh", *command],
            env={**os.environ, **paths},
            capture_output=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        assert len(keys_of("out.tar")) == 60

    def test_unpacking_into_a_file(self) -> None:
        Path("a.tar").write_bytes(tar_of([("a.txt", b"text")]))
        for more in ([], ["--force"]):
            ran = wds("cat", "a.tar", "--to", "a.tar/", *more)
            assert (ran.code, ran.err) == (4, "error: cannot unpack into a.tar: it is not a folder\n")

    @pytest.mark.parametrize("name", ["a.zip", "a-%06d.7z"])
    def test_another_archive(self, name: str) -> None:
        write_shards(Path("set"), [numbered(1)])
        ran = wds("split", "set", "-o", name)
        assert (ran.code, "shards are tar archives" in ran.err, os.listdir()) == (2, True, ["set"])


class TestNumbersOfThings:
    def test_one_and_many(self) -> None:
        Path("a.tar").write_bytes(tar_of([("x", b"1"), ("a.txt", b"1")]))
        Path("b.tar").write_bytes(tar_of([("x", b"1"), ("y", b"1"), ("a.txt", b"2")]))
        assert "skipped 1 member that belongs to no sample" in wds("cat", "a.tar", "-o", "c.tar").err
        assert "skipped 2 members that belong to no sample" in wds("cat", "b.tar", "-o", "d.tar").err
        assert "1 sample in both: 1 differs;" in wds("diff", "a.tar", "b.tar").err
        write_shards(Path("one"), [[*numbered(1), *numbered(1, "m")]])
        write_shards(Path("two"), [numbered(1), numbered(1, "m")])
        assert "shards: 1 shard in A, 2 in B" in wds("diff", "one", "two").err
        ran = wds("ls", "two", "--fields", "cls,none", "--limit", "1")
        assert "no sample has none for --fields in the one that was read" in ran.err


MANY = "9" * 5000


class TestNumbersOfManyDigits:
    """Python reads no number of more than 4300 digits."""

    @pytest.mark.exhaustive
    @pytest.mark.parametrize(
        ("args", "code"),
        [
            (["ls", "--slice", f"0:{MANY}", "a.tar"], 0),
            (["ls", "--slice", f"{MANY}:{MANY}:{MANY}", "a.tar"], 0),
            (["ls", "--slice", f"::{'0' * 5000}", "a.tar"], 2),
            (["ls", f"a-{{0..{MANY}}}.tar"], 4),
            (["ls", f"a-{{1..1..{MANY}}}.tar"], 4),
            (["ls", f"pipe:cat {{0..{MANY}}}"], 2),
            (["ls", "--where", f"json.a[{MANY}] > {MANY}", "a.tar"], 2),
            (["ls", "--where", f"index > {MANY}", "a.tar"], 2),
            (["sort", "--by", f"json.a[{MANY}]", "a.tar", "-o", "o.tar", "--missing", "last"], 2),
            (["split", "a.tar", "-o", "o-%d.tar", "--max-size", MANY], 2),
            (["split", "a.tar", "-o", "o-%d.tar", "--max-size", "0" * 5000 + "1"], 0),
            (["cat", "a.tar", "-o", "o.tar", "--mtime", MANY], 2),
            (["cat", "a.tar", "-o", f"/dev/fd/{MANY}"], 4),
            (["create", "a", "-o", "o.tar", "--key-rule", f"x{{{MANY}}}"], 2),
            (["run", "a.plan", "--task", MANY], 2),
            (["run", "a.plan", "--task", f"0/{MANY}"], 0),
        ],
        ids=lambda one: " ".join(one)[:30] if isinstance(one, list) else str(one),
    )
    def test_are_no_mistake_of_ours(self, args: list[str], code: int) -> None:
        write_shards(Path(), [numbered(3, "a")])
        Path("in-0.tar").rename("a.tar")
        Path("a").mkdir()
        Path("a/x.txt").write_text("x")
        assert wds("shuffle", "a.tar", "-o", "p-%d.tar", "--plan", "a.plan").code == 0
        ran = wds(*args)
        assert "internal error" not in ran.err
        assert ran.code == code, ran.err

    def test_of_the_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        Path("a.tar").write_bytes(tar_of([("a.txt", b"")]))
        monkeypatch.setenv("SOURCE_DATE_EPOCH", MANY)
        ran = wds("cat", "a.tar", "-o", "o.tar")
        assert (ran.code, "SOURCE_DATE_EPOCH must be" in ran.err) == (2, True), ran.err

    def test_in_names(self) -> None:
        from wdscli.storage.addresses import natural

        assert sorted([f"x{MANY}", "x10", "x9"], key=natural) == ["x9", "x10", f"x{MANY}"]


class TestNames:
    def test_of_shards_that_are_not_there(self) -> None:
        ran = wds("verify", "--checksums", "nosuchdir")
        assert (ran.code, "cannot read nosuchdir: no such file" in ran.err) == (4, True), ran.err

    @pytest.mark.parametrize("line", ["/a.txt text:a", "../a.txt text:a"])
    def test_that_are_unsafe_are_called_so_once(self, line: str) -> None:
        Path("list").write_text(line)
        Path("t.csv").write_text(f"id,t\n{line.partition('.txt')[0]},x\n")
        table = ["--from", "t.csv", "--key-column", "id", "--column", "txt=t"]
        for words in (["--from", "list:list"], table):
            ran = wds("create", *words, "-o", "o.tar")
            assert (ran.code, ran.err.count("unsafe name")) == (3, 1), ran.err


class TestFirstTries:
    """What a newcomer types first; the hint must lead further."""

    @pytest.fixture(autouse=True)
    def a_set(self, here: Path) -> None:
        documents = [b'{"class": "cat", "license": "cc0"}', b'{"class": "owl", "license": null}']
        samples = [[(f"a/{n}.jpg", b"x"), (f"a/{n}.json", text)] for n, text in enumerate(documents)]
        write_shards(here / "set", [samples])

    def test_where_with_a_keyword_of_python(self) -> None:
        for text in ("json.class == 'cat'", "  'cat' in json.class"):
            ran = wds("ls", "set", "--where", text)
            assert (ran.code, "write json['class'] for json.class" in hint_of(ran.err)) == (2, True), ran.err
        assert wds("ls", "set", "--where", "json['class'] == 'cat'").out.startswith(b"a/0\t")

    def test_where_with_text_without_quotes(self) -> None:
        ran = wds("ls", "set", "--where", "json.license == cc0")
        assert "warning: no sample has cc0 for --where: text is 'cc0'" in ran.err

    def test_where_with_is_none(self) -> None:
        assert wds("ls", "set", "--where", "json.license is not None").out.startswith(b"a/0\t")

    @pytest.mark.parametrize(
        "words",
        [
            ["ls", "set", "--count", "license"],
            ["sort", "set", "-o", "o.tar", "--by", "license"],
            ["split", "set", "-o", "{part}.tar", "--by", "license"],
            ["split", "set", "-o", "{part}.tar", "--ratio", "a=1,b=1", "--stratify", "license"],
        ],
    )
    def test_a_value_of_the_json_without_json(self, words: list[str]) -> None:
        assert "a value in JSON is json.license" in wds(*words).err

    def test_no_number(self) -> None:
        assert "'x' is not a valid int\n" in wds("ls", "set", "--limit", "x").err

    def test_a_proof_without_a_list(self) -> None:
        ran = wds("verify", "set", "--report", "proof.json")
        assert (ran.code, "--report needs --absent" in ran.err) == (2, True), ran.err

    def test_an_empty_list_of_keys(self) -> None:
        Path("none.txt").write_text("\n")
        ran = wds("verify", "set", "--absent", "none.txt")
        assert (ran.code, "warning: the list of --absent has no keys" in ran.err) == (0, True), ran.err

    def test_a_success_says_how_many_keys_were_looked_for(self) -> None:
        Path("two.txt").write_text("gone/1\ngone/2\n")
        assert (
            "nothing wrong, none of 2 keys found; checked" in wds("verify", "set", "--absent", "two.txt").err
        )

    def test_a_table_with_one_value_of_the_json(self) -> None:
        ran = wds("ls", "set", "--to", "csv", "--column", "json.license")
        assert [line.rpartition(b",")[2] for line in ran.out.splitlines()] == [b"json.license", b"cc0", b""]
        assert b"license" in wds("ls", "set", "--to", "csv", "--column", "json").out

    def test_a_view_that_was_moved(self, here: Path) -> None:
        assert wds("split", "set", "-o", "v.json").code == 0
        (here / "far").mkdir()
        Path("v.json").rename("far/v.json")
        ran = wds("ls", "far/v.json")
        assert (ran.code, "the view far/v.json names this shard" in hint_of(ran.err)) == (4, True), ran.err

    def test_a_view_that_was_moved_without_its_rows(self) -> None:
        assert wds("shuffle", "set", "-o", "v.json", "--rekey", "n{n}").code == 0
        Path("v.rows").unlink()
        ran = wds("ls", "v.json")
        assert (ran.code, "copy both files of the view" in hint_of(ran.err)) == (4, True), ran.err

    def test_a_folder_of_views(self) -> None:
        assert wds("split", "set", "-o", "views/{part}.json", "--by", "json.class").code == 0
        ran = wds("ls", "views")
        assert (ran.code, "name its file: views/cat.json" in hint_of(ran.err)) == (4, True), ran.err

    def test_a_full_disc_when_unpacking(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr("wdscli.look.unpack.write_all", full)
        ran = wds_here("cat", "set", "--to", "files/")
        assert (ran.code, "no space left" in ran.err) == (4, True), ran.err
        assert "free some space" in hint_of(ran.err)

    def test_a_table_of_cat_with_a_key_column(self) -> None:
        assert wds("cat", "set", "--drop", "jpg", "--to", "t.jsonl").code == 0
        ran = wds("create", "--from", "t.jsonl", "--key-column", "key", "-o", "o.tar")
        assert (ran.code, "a table that wds cat wrote needs no --column" in hint_of(ran.err)) == (2, True), (
            ran.err
        )
        assert wds("create", "--from", "t.jsonl", "-o", "o.tar").code == 0

    @pytest.mark.parametrize(
        ("name", "hint"), [("reshard", "--max-count"), ("rm", "--not-keys-from"), ("head", "ls")]
    )
    def test_commands_of_other_tools(self, name: str, hint: str) -> None:
        ran = wds(name, "set")
        assert (ran.code, hint in hint_of(ran.err)) == (2, True), ran.err

    def test_the_short_help_shows_opt_out(self) -> None:
        assert b"--not-keys-from" in wds("split", "--help").out
        assert b"--report" in wds("verify", "--help").out


@pytest.mark.parametrize("words", [["shuffle", "-o", "out-%d.tar"], ["merge", "-o", "out.tar", "-j1"]])
def test_a_library_for_which_there_is_no_memory(words: list[str], tmp_path: Path) -> None:
    """What the loader of shared libraries says under `ulimit -v`, as numpy passes it on."""
    (tmp_path / "numpy").mkdir()
    text = "PLEASE READ THIS\\n\\nOriginal error was: libblas.so: failed to map segment from shared object"
    (tmp_path / "numpy" / "__init__.py").write_text(f'raise ImportError("{text}")\n')
    [name] = write_shards(tmp_path / "in", [numbered(3)])
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    ran = wds(*words, name, cwd=tmp_path, env=os.environ | {"PYTHONPATH": path})
    assert ran.code == 5
    assert "out of memory" in ran.err
    assert "hint: try fewer" in ran.err
    assert "ulimit -v" in ran.err
    assert "mistake in wdscli" not in ran.err
