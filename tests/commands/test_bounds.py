"""What a person types, or an endless input gives, ends, and with a clear error."""

from __future__ import annotations

import os
import pickle
import re
from contextlib import suppress
from pathlib import Path

import pytest
from shard_cases import keys_of, write_shards

from wdscli.cli.main import main
from wdscli.create.files import KeyRule
from wdscli.create.walk import Globs
from wdscli.errors import DataError, InputError, UsageError
from wdscli.loader import WebDataset
from wdscli.plan.names import Rekey
from wdscli.samples.grouping import SampleAt
from wdscli.selection import expressions
from wdscli.selection.expressions import Expression
from wdscli.selection.where import Value
from wdscli.tar import END_OF_ARCHIVE, BytesSource, build_header
from wdscli.tar import reader as recover
from wdscli.tar.reader import scan_salvaging

ENDLESS = "(a|a)*$"
TEXT = "a" * 60 + "!"


@pytest.fixture
def shard(tmp_path: Path) -> str:
    (name,) = write_shards(tmp_path / "in", [[[(f"{'a' * 60}0.txt", TEXT.encode())], [("n1.txt", b"1")]]])
    return name


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expressions, "MATCH_SECONDS", 0.2)


def fails(code: int, *line: object) -> None:
    assert main([str(word) for word in line]) == code


@pytest.mark.usefixtures("impatient")
class TestExpressions:
    @pytest.mark.exhaustive
    @pytest.mark.parametrize(
        "options",
        [
            ["ls", "{}", "--where", f"search('{ENDLESS}', txt)"],
            ["ls", "{}", "--where", f"search('{ENDLESS}', key)"],
            ["cat", "{}", "-o", "o.tar", "--where", f"search('{ENDLESS}', txt)"],
            ["shuffle", "{}", "-o", "o-%d.tar", "--where", f"search('{ENDLESS}', txt)"],
            ["split", "{}", "-o", "o-{part}-%d.tar", "--ratio", "a=0.5,b=0.5", "--group-by", ENDLESS],
        ],
    )
    def test_commands(self, options: list[str], shard: str, tmp_path: Path, capsys: object) -> None:
        os.chdir(tmp_path)
        fails(2, *(word.format(shard) if word == "{}" else word for word in options))
        said = capsys.readouterr().err  # type: ignore[attr-defined]
        assert "takes more than 0.2 seconds" in said
        assert "hint:" in said
        assert not list(tmp_path.glob("o*.tar"))

    def test_create(self, tmp_path: Path, capsys: object) -> None:
        (tmp_path / "files").mkdir()
        (tmp_path / "files" / ("a" * 60 + "!.jpg")).write_bytes(b"x")
        rule = r"((?:a|a)*)$(.*)"
        fails(2, "create", tmp_path / "files", "--key-rule", rule, "-o", tmp_path / "o-%d.tar")
        assert "--key-rule" in capsys.readouterr().err  # type: ignore[attr-defined]
        # Polynomial, and enough of it: a star is as bad as any repeat.
        with suppress(UsageError):
            assert not Globs(["*a" * 20 + "*b"], "--include").match(b"a" * 240 + b"bc")

    def test_the_loader(self, shard: str) -> None:
        with pytest.raises(UsageError, match="takes more than"):
            list(WebDataset(shard, where=f"search('{ENDLESS}', txt)"))

    def test_what_is_right_stays(self, shard: str) -> None:
        cases = [
            (r"(?i)^N\d+/a", "n01/a"),
            (r"(?<=x)y(?!z)", "xy"),
            (r"(a)\1", "aa"),
            (r"(?P<n>\d{4})-(?P=n)", "2024-2024"),
            (r"[^\W\d_]+", "Straße"),
            (r"\bdog\b|cat$", "a cat"),
            (r"^(?:[a-z]+/)*x{2,300}\Z", "ab/cd/xx"),
            (r"é+", "éé"),
            (r"(a+)+$", "aaaa"),
            (r"no", "yes"),
        ]
        for pattern, text in cases:
            ours, theirs = Expression(pattern, "x").search(text), re.search(pattern, text)
            assert (ours and (ours.span(), ours.groups())) == (theirs and (theirs.span(), theirs.groups()))
        assert KeyRule(r"(?P<key>.*)-(?P<field>[^-]*\.png)").split(b"a-b-c.png") == (b"a-b", b"c.png")
        assert pickle.loads(pickle.dumps(Expression("a", "x", re.DOTALL))).search("a")

    @pytest.mark.parametrize(
        "pattern", ["(", "[z-a]", "a{2}{3}", "(?:a{60000}){60000}", "a{4294967294}", "(?P<a>"]
    )
    def test_what_is_none(self, pattern: str) -> None:
        with pytest.raises(UsageError, match="not a regular expression"):
            Expression(pattern, "--where")


@pytest.mark.parametrize(
    "text",
    [
        "'a'*10**10 == key",
        "10**10**10 > 1",
        "'a'*100000*10 == key",
        "len(str([[[1]*99999]*99999]*99999)) > 1",
        "[key]*10**10 == key",
        "(10**1000)**1000 > 1",
        "float(10**1000) > 1",
        "sum([1]*99999*99999) > 1",
    ],
)
def test_where_makes_no_giants(text: str, shard: str) -> None:
    from wdscli.samples import iter_batches
    from wdscli.storage import open_source

    with open_source(shard) as source:
        batch = next(iter(iter_batches(source)))
        with pytest.raises((UsageError, DataError)):
            Value(text).holds(SampleAt(batch, 0, shard))


class TestNames:
    @pytest.mark.parametrize(
        "text",
        [
            "{index:>999999999}",
            "{key:999999999}",
            "{index:.99999f}",
            "{index:{key}}",
            "{shard:0>4097}",
            "a{key:١٠٠٠٠٠}",
        ],
    )
    def test_a_width(self, text: str, shard: str, tmp_path: Path) -> None:
        fails(2, "cat", shard, "--rekey", text, "-o", tmp_path / "o.tar")
        fails(2, "shuffle", shard, "--rekey", text, "-o", tmp_path / "o-%d.tar")
        assert not list(tmp_path.glob("o*"))

    def test_a_width_that_is_meant(self, shard: str, tmp_path: Path) -> None:
        assert main(["cat", shard, "--rekey", "{index:>012}", "-o", str(tmp_path / "o.tar")]) == 0
        assert keys_of(tmp_path / "o.tar") == ["0" * 12, "0" * 11 + "1"]

    def test_a_name_made_of_many(self) -> None:
        rekey = Rekey.parse("-".join(["{shard:>4000}"] * 16) + "{index}")
        with pytest.raises(UsageError, match="65536"):
            rekey.key(b"a" * 10, "s" * 4090, 10**2000)

    @pytest.mark.parametrize(
        ("line", "code"),
        [
            (["split", "{}", "-o", "o-%0999999999d.tar", "--max-count", "1"], 2),
            (["split", "{}", "-o", "o-{{0..99999999999}}.tar"], 2),
            (["split", "{}", "-o", "o-%d.tar", "--shards", "99999999999"], 2),
            (["split", "{}", "-o", "o-%d.tar", "--divisible-by", "99999999999"], 2),
            (["ls", "x-{{0..99999999999}}.tar"], 4),
            (["ls", "x-{{0..99999}}-{{0..99999}}.tar"], 4),
            (["ls", "pipe:cat x-{{0..99999999999}}.tar"], 2),
        ],
    )
    def test_as_many_shards_as_there_are_none(
        self, line: list[str], code: int, shard: str, tmp_path: Path
    ) -> None:
        os.chdir(tmp_path)
        fails(code, *(word.format(shard) for word in line))
        assert not list(tmp_path.glob("o*"))


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="no /dev/zero")
class TestEndless:
    """Zeros end an archive, and may follow it: not for ever."""

    @pytest.mark.parametrize(
        "line",
        [
            ["ls", "/dev/zero"],
            ["ls", "pipe:cat /dev/zero"],
            ["cat", "/dev/zero", "-o", "o.tar"],
            ["cat", "/dev/zero", "--on-error", "skip", "-o", "o.tar"],
            ["shuffle", "/dev/zero", "-o", "o-%d.tar"],
            ["shuffle", "/dev/zero", "--on-error", "skip", "-o", "o-%d.tar"],
            ["verify", "/dev/zero"],
            ["repair", "/dev/zero", "-o", "o-%d.tar"],
        ],
    )
    def test_zeros(self, line: list[str], tmp_path: Path, capsys: object) -> None:
        os.chdir(tmp_path)
        fails(4, *line)
        captured = capsys.readouterr()  # type: ignore[attr-defined]
        assert "64 MiB of zeros" in captured.err + captured.out
        assert not list(tmp_path.glob("o*.tar"))

    def test_the_loader(self) -> None:
        with pytest.raises(InputError, match="64 MiB of zeros"):
            list(WebDataset("/dev/zero"))

    @pytest.mark.parametrize("name", ["/dev/urandom", "pipe:yes"])
    def test_what_is_no_tar_fails_at_once(self, name: str, tmp_path: Path) -> None:
        os.chdir(tmp_path)
        for line in (["ls", name], ["shuffle", name, "-o", "o-%d.tar"]):
            fails(3, *line)
        with pytest.raises(DataError):
            list(WebDataset(name))

    def test_zeros_that_fill_a_tape_are_legal(self, tmp_path: Path) -> None:
        data = build_header(b"a.txt", 0) + END_OF_ARCHIVE
        # As a stream some MiB, as a file any number.
        for zeros, stream in ((20 << 20, True), (100 << 20, False)):
            path = tmp_path / "x.tar"
            path.write_bytes(data)
            os.truncate(path, len(data) + zeros)
            assert main(["ls", f"pipe:cat {path}" if stream else str(path)]) == 0

    def test_lists_are_not_read_for_ever(self, shard: str, monkeypatch: pytest.MonkeyPatch) -> None:
        from wdscli.storage import opening

        monkeypatch.setattr(opening, "MAX_READ_WHOLE_BYTES", 1 << 22)
        fails(4, "ls", "@/dev/zero")
        fails(4, "ls", shard, "--keys-from", "/dev/zero")

    def test_a_search_behind_damage_ends(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(recover, "MAX_SEARCHED_BYTES", 1 << 20)

        class Endless(BytesSource):
            seekable = False
            size = None  # type: ignore[assignment]

            def read_at(self, offset: int, length: int) -> bytes:
                return b"?" * length

            read_some = read_at

        troubles: list[DataError] = []
        with pytest.raises(InputError, match="no header in"):
            list(scan_salvaging(Endless(b""), troubles.append))
        assert [error.code for error in troubles] == ["not-a-tar"]
