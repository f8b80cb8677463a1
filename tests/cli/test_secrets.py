"""Passwords, tokens and signatures of addresses reach no screen, log or file."""

from __future__ import annotations

import json
import pickle
import shlex
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from shard_cases import Ran, numbered, write_shards
from storage_servers import Web, web_server

import wdscli.loader as wds
from wdscli.errors import DataError, InputError, WdsError
from wdscli.shown import cause_of, shown, shown_command
from wdscli.storage import open_sink, open_source

COMMAND: list[str] = []
SECRET = "Hunter2SeCrEt"


@pytest.fixture(scope="module")
def web() -> Iterator[Web]:
    with web_server("ranges") as server:
        yield server


@pytest.fixture
def files(web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Web:
    """good.tar, cut.tar, odd.tar (no tar), broken (500), and gone.tar, which is not there."""
    [good] = write_shards(tmp_path / "made", [numbered(5, "a")])
    data = Path(good).read_bytes()
    web.files = {"good.tar": data, "cut.tar": data[:1500], "odd.tar": b"x" * 2048, "keys.txt": b"a001\n"}
    web.status = {"broken.tar": 500, "closed.tar": 403}
    for path in (tmp_path / "made").iterdir():
        if path.is_file():
            path.unlink()
    (tmp_path / "here.tar").write_bytes(data)
    monkeypatch.chdir(tmp_path)
    return web


FORMS: dict[str, Callable[[str], str]] = {
    "password": lambda url: url.replace("http://", f"http://user:{SECRET}@"),
    "token": lambda url: f"{url}?part=1&access_token={SECRET}",
    "signed": lambda url: (
        f"{url}?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIA{SECRET}%2Fs3&X-Amz-Security-Token={SECRET}"
        f"&X-Amz-Signature={SECRET}"
    ),
    "google": lambda url: f"{url}?X-Goog-Signature={SECRET}",
    "azure": lambda url: f"{url}?sv=2022&sp=r&sig={SECRET}",
    "user": lambda url: url.replace("http://", f"http://{SECRET}@"),
}


def addresses(web: Web) -> list[str]:
    found = [form(web.url(name)) for form in FORMS.values() for name in ("gone.tar", "cut.tar")]
    found += [FORMS["token"](web.url(name)) for name in ("odd.tar", "broken.tar", "closed.tar")]
    found += [form("http://127.0.0.1:1/a.tar") for form in FORMS.values()]
    return [
        *found,
        f"sftp://user:{SECRET}@127.0.0.1:1/a.tar",
        f"nonsense://user:{SECRET}@host/a.tar",
        f"pipe:false --token {SECRET} -H 'Authorization: Bearer {SECRET}' -u me:{SECRET}",
        f"pipe:PASSWORD={SECRET} no-such-command 'http://u:{SECRET}@h/x?sig={SECRET}' 2>/dev/null",
    ]


COMMANDS = [
    "ls {}",
    "ls -l --json {}",
    "ls --by shard {}",
    "ls --summary --on-error skip {}",
    "cat {} -o out.tar",
    "cat {} --to jsonl --on-error skip",
    "verify {}",
    "verify --json {}",
    "repair {} -o rep-%d.tar",
    "index {} --no-index -o m.json",
    "split {} -o out-%d.tar --max-count 1",
    "merge {} here.tar -o out-%d.tar --max-count 1",
    "merge --join left here.tar {} -o out-%d.tar --max-count 1",
    "merge here.tar --table {} --key-column id --column txt=t -o out.tar",
    "shuffle {} -o out-%d.tar --max-count 1 -j 2",
    "shuffle {} -o out-%d.tar --max-count 1 --plan p.plan",
    "sort {} -o out-%d.tar --max-count 1 --on-error skip",
    "shuffle here.tar -o {}",
    "cat here.tar -o {}",
    "ls here.tar --keys-from {}",
    "create --from list:{} -o out.tar",
    "create --from {} --key-column a --column txt=b -o out.tar",
    "run {}",
    "bench --seconds 0.1 {}",
]


def everything(folder: Path) -> bytes:
    return b"".join(path.name.encode() + path.read_bytes() for path in folder.rglob("*") if path.is_file())


@pytest.mark.exhaustive
@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_tells(command: str, files: Web, run: Any, tmp_path: Path) -> None:
    """Whatever fails, with a traceback and without."""
    failed = 0
    for number, address in enumerate(addresses(files)):
        words = shlex.split(command.replace("{}", shlex.quote(address)))
        if number % 3 == 0:
            words.append("-v")
        if number % 3 == 1:
            words.append("--debug")
        ran: Ran = run(*words)
        assert SECRET not in ran.out.decode() + ran.err, (address, ran.out, ran.err)
        failed += ran.code != 0
    assert failed > len(addresses(files)) // 2
    assert SECRET.encode() not in everything(tmp_path)


def test_what_succeeds_does_not_tell_either(files: Web, run: Any, tmp_path: Path) -> None:
    good, keys = FORMS["signed"](files.url("good.tar")), FORMS["password"](files.url("keys.txt"))
    Path("list.txt").write_text(f"{good}\n{good}\n")
    lists = tmp_path / "list.txt"
    try:
        for command in (
            f"ls -l {shlex.quote(good)}",
            f"ls -l --json {shlex.quote(good)}",
            f"ls --by member -l --json {shlex.quote(good)}",
            f"ls --shards {shlex.quote(good)}",
            f"ls --shards @{lists}",
            f"verify -v --json {shlex.quote(good)} {shlex.quote(good)}",
            f"shuffle {shlex.quote(good)} --keys-from {shlex.quote(keys)} -o a-%d.tar --max-count 2",
            f"merge @{lists} --on-duplicate skip -o b-%d.tar --max-count 2 -v",
            f"merge {shlex.quote(good)} here.tar --dedup key -o c.tar --json -v --report dups.jsonl",
            f"shuffle {shlex.quote(good)} -o {shlex.quote(good + '%d')} -n",
        ):
            ran: Ran = run(*shlex.split(command))
            assert SECRET not in ran.out.decode() + ran.err, (command, ran.out, ran.err)
        assert json.loads(Path("a-manifest.json").read_text())["wdscli"]["samples"] == 1
        shown_address = next(
            json.loads(line)["shard"] for line in run("ls", "-l", "--json", good).out.splitlines()
        )
        assert shown_address.startswith(files.url("good.tar") + "?X-Amz-Algorithm=")
    finally:
        lists.unlink()
    assert SECRET.encode() not in everything(tmp_path)


def test_a_plan_or_a_manifest_that_would_hold_one_is_refused(files: Web, run: Any, tmp_path: Path) -> None:
    good = FORMS["token"](files.url("good.tar"))
    refused = [
        run("shuffle", good, "-o", "o-%d.tar", "--max-count", "2", "--plan", "p.plan"),
        run(
            "shuffle", "here.tar", "-o", "o-%d.tar", "--shards", "2", "--plan", "p.plan",
            "--post", f"curl -H 'X-Token: {SECRET}' -T {{}} http://h/",
        ),
        run("index", good, "--no-index", "-o", "m.json"),
    ]  # fmt: skip
    for ran in refused:
        assert ran.code == 2
        assert "password, token or signature" in ran.err
        assert "hint: " in ran.err
        assert SECRET not in ran.out.decode() + ran.err
    assert not Path("p.plan").exists()
    assert SECRET.encode() not in everything(tmp_path)


def test_post(run: Any, files: Web) -> None:
    ran = run("cat", "here.tar", "-o", "o.tar")
    assert ran.code == 0
    ran = run(
        "split", "here.tar", "-o", "p-%d.tar", "--max-count", "2", "--post", f"false --password {SECRET}"
    )
    assert ran.code == 5
    assert SECRET not in ran.err


class TestLibrary:
    def told(self, error: BaseException) -> str:
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        if isinstance(error, WdsError):
            # As at an engine's boundary: once distributed is loaded, what was being handled is pickled too.
            error.__context__ = None
            text += str(pickle.loads(pickle.dumps(error)))
        return text + str(error) + repr(error) + repr(getattr(error, "shard", "")) + repr(error.args)

    def test_sources_and_sinks(self, files: Web) -> None:
        for address in addresses(files):
            for opened in (open_source, open_sink):
                try:
                    with opened(address) as end:
                        end.read_at(0, 1 << 20) if opened is open_source else end.write(b"x")
                except WdsError as error:
                    assert SECRET not in self.told(error), address

    @pytest.mark.exhaustive(sample=False)
    @pytest.mark.parametrize("on_error", ["raise", "skip"])
    def test_the_loader(self, files: Web, on_error: Any) -> None:
        for address in addresses(files):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                try:
                    data = wds.WebDataset(address, on_error=on_error)
                    list(data)
                    assert SECRET not in repr(data.stats())
                except WdsError as error:
                    assert SECRET not in self.told(error), address
                with pytest.raises(WdsError) as failed:
                    wds.IndexedDataset(address)[0]
                assert SECRET not in self.told(failed.value), address
            assert not [one for one in caught if SECRET in str(one.message)]

    def test_the_workers_of_a_dataloader(self, files: Web) -> None:
        torch = pytest.importorskip("torch")
        address = FORMS["token"](files.url("good.tar"))
        data = wds.WebDataset(address)
        files.files["good.tar"] = files.files["good.tar"][:1500]
        with pytest.raises(Exception) as failed:
            list(torch.utils.data.DataLoader(data, batch_size=None, num_workers=1))
        assert SECRET not in self.told(failed.value)

    def test_samples_keep_the_address_that_was_given(self, files: Web) -> None:
        """Training code may open it again, and what it shows is its own affair."""
        address = FORMS["token"](files.url("good.tar"))
        assert {sample["__url__"] for sample in wds.WebDataset(address)} == {address}

    def test_an_error_travels_with_its_cause(self, files: Web) -> None:
        """distributed pickles causes too; those of an HTTP client hold the whole request."""
        with pytest.raises(InputError) as caught:
            open_source(files.url("broken.tar"))
        cause = caught.value.__cause__
        assert "500" in str(pickle.loads(pickle.dumps(cause)))
        assert type(cause).__module__ == "builtins"
        assert cause is not None
        assert cause.__traceback__ is not None

    def test_an_error_of_ours_is_clean_when_it_is_made(self) -> None:
        error = DataError(
            "odd", shard=f"http://u:{SECRET}@h/a.tar", offset=3, hint=f"see http://h?sig={SECRET}"
        )
        assert error.shard == "http://***@h/a.tar"
        assert SECRET not in self.told(error)
        assert error.hint == "see http://h?sig=***"

    def test_a_cause_keeps_its_kind(self) -> None:
        plain, odd = FileNotFoundError("a.tar"), FileNotFoundError(f"http://h/a?token={SECRET}")
        assert cause_of(plain) is plain
        try:
            try:
                raise ValueError(f"http://h/a?token={SECRET}")
            except ValueError:
                raise odd  # noqa: B904
        except FileNotFoundError as error:
            clean = cause_of(error)
        assert isinstance(clean, FileNotFoundError)
        assert SECRET not in self.told(clean)
        assert isinstance(clean.__cause__, ValueError)
        with pytest.raises(InputError) as caught:
            raise InputError("x") from clean
        assert SECRET not in self.told(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://me:pw@host/a.tar", "https://***@host/a.tar"),
        ("https://me:p@w@host/a.tar", "https://***@host/a.tar"),
        ("https://me:p/w@host/a.tar", "https://***@host/a.tar"),
        ("https://me:p#w@host/a.tar", "https://***@host/a.tar"),
        ("https://ghp_0@host/a.tar", "https://***@host/a.tar"),
        ("https://me:pw@[::1]:80/a.tar", "https://***@[::1]:80/a.tar"),
        ("a.tar::s3://k:s@b/c.tar::https://u:p@h/d", "a.tar::s3://***@b/c.tar::https://***@h/d"),
        ("cannot read https://h/x?token=a: no such object", "cannot read https://h/x?token=***: no such object"),
        ("URL('https://h/x?a=1&sig=0%2B0')", "URL('https://h/x?a=1&sig=***')"),
        ("https://h/x?a=1;sig=00", "https://h/x?a=***"),
        ("https://h/x#access_token=0", "https://h/x#access_token=***"),
        ("https://h/x?k=0123456789abcdef0123", "https://h/x?k=***"),
        ("https://h/x?0123456789abcdef0123", "https://h/x?***"),
        # What is no secret stays.
        ("https://h:8080/train-{000000..000004}.tar?part=12&name=train-000000-of-000128.tar", None),
        ("https://h/user/@tag/x.tar", None),
        ("sftp://me@host/x", None),
        ("abfs://container@account.dfs.core.windows.net/x", None),
        ("hf://datasets/me/set@v2/x.tar", None),
        ("s3://bucket/key@2/x?y", None),
        ("pipe:cat 'a b.tar' | gzip -dc failed: exit status 1", None),
        ("repeated key in a.tar at byte 512", None),
    ],
)  # fmt: skip
def test_shown(text: str, expected: str | None) -> None:
    assert shown(text) == (text if expected is None else expected)
    assert shown(shown(text)) == shown(text)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("curl -H 'Authorization: Bearer 0' u", "curl -H 'Authorization: ***' u"),
        ('curl --header="X-Api-Key: 0" u', 'curl --header="X-Api-Key: ***" u'),
        ("curl -u me:pw u", "curl -u me:*** u"),
        ("curl --user 'me:p w' u", "curl --user 'me:***' u"),
        ("AWS_SECRET_ACCESS_KEY=0 aws s3 cp s3://b/x -", "AWS_SECRET_ACCESS_KEY=*** aws s3 cp s3://b/x -"),
        ("tool --api-key 0 --token='a b' x", "tool --api-key *** --token=*** x"),
        ("sshpass -p 0 ssh host cat x", "sshpass -p *** ssh host cat x"),
        ("gzip -dc a.tar.gz", "gzip -dc a.tar.gz"),
    ],
)
def test_shown_command(command: str, expected: str) -> None:
    assert shown_command(command) == expected
    assert shown(f"pipe:{command}") == f"pipe:{expected}"
