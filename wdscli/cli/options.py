"""Groups of options. An option that several commands take is defined once, here.

An option is an :class:`Option` in an annotation; :func:`panel` makes the options of one heading of ``--help``. A group
is a ``NamedTuple`` of options, or of other groups. A command takes a group as one argument, and :func:`grouped` spreads
its fields over the command's parameters, so that the command line has plain options and the command sees one value::

    @grouped
    def ls(shards: Shards, selection: SelectionOptions, common: CommonOptions, long: Long = False) -> None: ...

A command or a group may leave out some options of a group: ``Annotated[EngineOptions, "without strategy tmp"]``.

:func:`read_plain` reads a plain command line, and gives up on all others. Then ``wdscli.cli.group`` makes Typer's
options from the same parameters, and Typer reads the line, prints help, or explains what is wrong. Typer is not loaded
for a plain line, because loading it takes longer than listing a shard.

The fields of a group are plain values: text, numbers, lists. ``wdscli.selection`` and the operations interpret them, so
that this module imports only the parser of sizes from the library.

Its annotations are real objects, not text (no ``from __future__ import annotations``), because they are read at every
start.
"""

import os
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, get_args, get_origin

from wdscli.cli import MORE
from wdscli.errors import UsageError, WdsError
from wdscli.units import parse_size, parse_time

if TYPE_CHECKING:
    from wdscli.create.delimited import TextReading
    from wdscli.plan.cut import Cuts
    from wdscli.selection import Selection
    from wdscli.selection.where import Value
    from wdscli.shards.writing import ShardSettings


Text = str | None
Texts = list[str] | None
Number = int | None
Natural = Annotated[Number, 0]
Positive = Annotated[Number, 1]
"""Integer options with a minimum."""
_PARSERS: dict[str | None, Any] = {"SIZE": parse_size, "TIME": parse_time}
"""Parsers for the values of options, by the value's name in the help."""
WORDS: dict[str, Collection[str]] = {}
"""Known values of options, by field, for completion."""
_Decorator = Callable[[Any], Any]
_ENTRY = re.compile(r"\n {4}(?! )")
REQUIRED = ...
"""The default of a parameter that has none."""


class Option(NamedTuple):
    """How an option is typed, and what ``--help`` says about it. An argument has no ``names``. Numbers are at least
    ``min``. ``parser`` converts the typed text."""

    names: tuple[str, ...]
    metavar: str | None
    help: str
    panel: str | None = None
    min: int | None = None
    parser: Callable[[str], Any] | None = None


class Parameter(NamedTuple):
    """One option or argument of a command. ``kind`` is the type of a value on the command line: never None. An option
    of the kind ``bool`` takes no value, and one of the kind ``list[str]`` takes several values."""

    name: str
    kind: Any
    option: Option
    default: Any

    def read(self, text: str) -> Any:
        """Return the value of ``text``. Raises ValueError or WdsError if Typer must read or explain the text."""
        kind = self.kind
        if self.option.parser is not None:
            return self.option.parser(text)
        if kind is str or (get_origin(kind) is Literal and text in get_args(kind)):
            return text
        number = kind(text) if kind in (int, float) else None
        if number is None or (self.option.min is not None and number < self.option.min):
            raise ValueError(text)
        return number


def panel(title: str) -> Callable[[str], _Decorator]:
    """Describe the options under one heading of ``--help`` by a table.

    An entry has the option's names, the name of its value and, after two blanks, its help. The help may continue in
    lines that are indented more. Each option belongs to a field of the decorated group. If the field has another name
    than the option, the entry begins with the field's name. An entry that begins with ``+`` is shown only by
    ``--help-all``. The type of a field may be annotated: with a least number, or with known words for completion.
    The table is read when a command of the group is called.

    >>> @panel("Output")("-o, --output OUT  Shards to write.")
    ... class Group(NamedTuple):
    ...     output: str
    >>> list(parameters_of(Group))[0].option
    Option(names=('-o', '--output'), metavar='OUT', help='Shards to write.', panel='Output', min=None, parser=None)
    """

    def describe(table: str) -> _Decorator:
        def decorate(group: Any) -> Any:
            group.option_tables = (*getattr(group, "option_tables", ()), (title, table))
            return group

        return decorate

    return describe


def _described(group: Any) -> dict[str, Option]:
    """Return the options that the tables of a group describe, by field."""
    tables = getattr(group, "option_tables", ())
    return dict(_option(title, entry) for title, table in tables for entry in _ENTRY.split(table.strip()))


def _option(title: str, entry: str) -> tuple[str, Option]:
    """Return the field and the option of one entry of a table."""
    spelling, _, text = entry.partition("  ")
    field, _, spelling = spelling.rpartition(": ")
    prefix = MORE if entry.startswith(MORE) else ""
    words = spelling.removeprefix(MORE).split()
    names = tuple(word.rstrip(",") for word in words if word[0] == "-")
    field = field.removeprefix(MORE) or names[-1][2:].partition("/")[0].replace("-", "_")
    metavar = " ".join(word for word in words if word[0] != "-") or None
    return field, Option(names, metavar, " ".join(text.split()), prefix + title)


SEED = "seed"
_MAY_REPEAT = (SEED, "on_duplicate")
"""Options that a command may define with other values than a group, before this group."""
_select = panel("Selection")
_output = panel("Output")
_common = panel("General")

_shards = "Shards to read: paths, folders, globs, URLs, -. Also braces, a::b, a manifest, @LIST and pipe:CMD."
Shards = Annotated[list[str], Option((), "SHARDS...", _shards)]
Json = Annotated[bool, Option(("--json",), None, "Print JSON Lines.", "Output")]
OnError = Annotated[
    Literal["error", "skip"],
    Option(("--on-error",), None, "Damaged shard: fail, or skip damaged samples.", "Errors"),
]
_values = (
    "Also store these numbers of each sample in the index: json.tokens, len(txt), width(jpg), seconds(wav). Then "
    "--where, sort, ls --count and the loader need not read payloads. Repeatable."
)
Values = Annotated[Texts, Option(("--values",), "EXPR,...", _values, f"{MORE}Output")]
_column = (
    "Write a value of the sample as a field, in the format of its extension: txt=json.caption. It replaces a field of "
    "this name. A sample without the value stays as it is. Repeatable."
)
Column = Annotated[Texts, Option(("--column",), "FIELD=EXPR", _column, f"{MORE}Selection")]


@_common("""
    -q, --quiet  Print only warnings and errors.
    -v, --verbose  Print more: inputs, strategy, time and memory.
    +--progress/--no-progress  Show progress. Default: a bar on a terminal; otherwise a line every 30 seconds, or
        every 5 seconds with --progress.
    +--debug  Print a traceback with an error.
    """)
class CommonOptions(NamedTuple):
    """Options of every command."""

    quiet: bool = False
    verbose: bool = False
    progress: bool | None = None
    debug: bool = False


@panel("Network")("""
    +--timeout SECONDS  Fail a request after SECONDS without data. Default: 60.
    +--cache DIR  Keep copies of remote shards in DIR. A copy is used as long as its remote shard is unchanged.
    """)
class NetworkOptions(NamedTuple):
    """The options about reading remote shards. Environment variables set the defaults."""

    timeout: float | None = None
    cache: Text = None

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Use these options in the block and in the tasks that it submits. Raises UsageError."""
        if self == NetworkOptions():
            yield
            return
        from wdscli.storage.retry import changed, using

        with using(changed(self.timeout, self.cache)):
            yield


@_common("""
    +--trust-addresses  Follow addresses in downloaded manifests, lists and tables even if they point to another host
        or folder. On this machine, also run the pipe: commands that tables contain.
    """)
class GeneralOptions(NamedTuple):
    """Options of every command that reads shards."""

    json: Json = False
    trust_addresses: bool = False
    network: NetworkOptions = NetworkOptions()
    common: CommonOptions = CommonOptions()


@_select("""
    --fields EXT,...  Keep only these fields. Globs are allowed. Repeatable.
    --drop EXT,...  Leave these fields out. Globs are allowed. Repeatable.
    +--rename NEW=OLD  Rename a field. OLD may list alternatives: 'jpg;png'. Repeatable.
    --keys GLOB  Keep samples whose key matches GLOB. Repeatable.
    --keys-from FILE  Keep samples whose key is listed in FILE. FILE has a key on each line, or is a table with a
        column key: Parquet, .csv, .tsv, .jsonl. FILE may also be a set. Repeatable.
    --not-keys-from FILE  Keep samples whose key is not listed in FILE. Repeatable.
    +--on EXPR  With --keys-from and --not-keys-from: compare this value instead of the key: json.url, 'dhash(jpg)'.
        COLUMN=EXPR names the column of a table. With --join: join two sets by it. OTHER=EXPR is for different places.
    +--near N  Hashes are the same if at most N bits differ, from 1 to 3: --dedup 'dhash(jpg)' --near 3.
    --where EXPR  Keep samples for which EXPR is true. EXPR is a Python expression. Names: key, shard, index,
        fields, cls, txt, json.a.b[0] (a place in JSON) and size.jpg (bytes). Compare with ==, !=, <, <=, >, >= and
        in; combine with and, or, not; compute with + - * / // % **. Functions of a payload: len(txt), lines(py),
        width(jpg), height(mp4), seconds(wav), shape(npy)[0]. Functions of the key: search('^n01/', key),
        key.startswith('n01'), rand(7), hash(key). Functions of values: abs, min, max, sum, round, int, float, str,
        any, all, get(json, 'name', 0). Examples: json.width > 512 and cls == 3; 'png' in fields; sum(size) < 1e6.
        wdscli(1) explains all of them. If the option is repeated, all expressions must be true.
    +--slice A:B:STEP  Keep the selected samples with numbers from A to B-1, in steps of STEP. The first sample has
        number 0.
    --sample N|P  Keep a random subset: N samples, or 10%. A share may also be written as 0.1. The subset does not
        depend on the order of shards.
    +--seed N  Seed of --sample.
    --limit N  Keep the first N samples of the output.
    """)
class SelectionOptions(NamedTuple):
    """The options that select samples and fields, as typed."""

    fields: Texts = None
    drop: Texts = None
    rename: Texts = None
    keys: Texts = None
    keys_from: Texts = None
    not_keys_from: Texts = None
    on: Text = None
    near: Natural = None
    where: Texts = None
    slice: Text = None
    sample: Text = None
    seed: Number = None
    limit: Natural = None

    def parse(self, *, own_seed: bool = False, has_dedup: bool = False, column: Texts = None) -> "Selection":
        """Return the library's selection. ``own_seed`` is true if the command uses the seed not only for --sample, and
        ``has_dedup`` if it compares samples with each other. ``column`` has new fields.
        Raises UsageError for options that have no effect together."""
        from wdscli.selection import Selection

        if self.seed is not None and self.sample is None and not own_seed:
            raise UsageError("--seed needs --sample", hint="--sample 1000, or --sample 10%")
        if self.near is not None and self.on is None and not has_dedup:
            raise UsageError(
                "--near needs a hash", hint="--dedup 'dhash(jpg)', or --not-keys-from SET --on 'dhash(jpg)'"
            )
        return Selection.parse(**self._asdict(), column=column, read_set=_read_set)


def _read_set(address: str, value: "Value | None") -> "Iterator[bytes]":
    from wdscli.look.picking import set_values

    return set_values(address, value)


def decode_limit() -> int:
    """Return the limit of decoding in bytes, from the environment. Raises UsageError."""
    from wdscli.codecs.handlers import MAX_DECODED_BYTES

    text = os.environ.get("WDSCLI_MAX_DECODED", "").strip()
    try:
        return parse_size(text) if text else MAX_DECODED_BYTES
    except UsageError as error:
        raise UsageError(f"WDSCLI_MAX_DECODED={text}: {error.message}", hint=error.hint) from None


@panel("Tables")("""
    +text_columns: --text COLUMN  Keep a column of CSV or TSV as text in JSON. Default: a column is read as
        numbers if all its cells are numbers. Repeatable.
    +--encoding NAME  Encoding of CSV, TSV and JSON Lines. Default: UTF-8.
    """)
class CellOptions(NamedTuple):
    """The options about how text becomes the cells of a table."""

    text_columns: Texts = None
    encoding: Text = None

    def parse(self, kind: str | None) -> "TextReading":
        """Return how to read a source of this kind. The kind None means that there is no table. Raises UsageError for
        options that do not apply."""
        from wdscli.create.delimited import UTF8, TextReading, checked_encoding

        for name, value in (("--text", self.text_columns), ("--encoding", self.encoding)):
            if value is not None and kind != "table":
                raise UsageError(
                    f"{name} works only for a table in a text format",
                    hint="name the table with --from or --table",
                )
        encoding = UTF8 if self.encoding is None else checked_encoding(self.encoding)
        return TextReading(encoding, tuple(self.text_columns or ()), decode_limit())


@_output("""
    --max-count N  Write at most N samples to a shard.
    --max-size SIZE  Write at most SIZE bytes to a shard: 500MB, 1GiB. This includes headers.
    shard_count: --shards N  Write N shards of about equal size.
    +--divisible-by WORLD  Write more shards, so that their number is a multiple of WORLD and none is empty.
    """)
class CutOptions(NamedTuple):
    """The options that decide where one output shard ends and the next begins."""

    max_count: Positive = None
    max_size: Number = None
    shard_count: Positive = None
    divisible_by: Positive = None

    def parse(self) -> "Cuts":
        """Return these options as the library's cuts."""
        from wdscli.plan.cut import Cuts

        return Cuts(*self)


Algorithm = Literal["xxh3_128", "sha256", "md5", "none"]


@_output("""
    -o, --output OUT  Shards to write, such as out-%06d.tar. OUT may also be out-{0000..0127}.tar, one file, -,
        pipe:CMD, or a URL.
    --force  Replace existing files.
    -n, --dry-run  Print what would be written, and write nothing.
    +--fsync  Flush each shard to the device before it is renamed to its final name.
    +--no-index  Write no index files.
    +checksum: --hash  Checksum algorithm of the manifest. S3 keeps an md5 of objects that are uploaded in one part.
    +--mtime TIME  Modification time of members: seconds, @seconds or a date. Default: SOURCE_DATE_EPOCH, or 0.
    +--long-names  Header format for names that are too long for ustar headers. DALI reads only gnu.
    """)
class OutputOptions(NamedTuple):
    """The options about writing shards."""

    output: str
    force: bool = False
    fsync: bool = False
    no_index: bool = False
    checksum: Algorithm = "xxh3_128"
    mtime: Number = None
    long_names: Literal["pax", "gnu"] = "pax"
    dry_run: bool = False

    def settings(self) -> "ShardSettings":
        """The library's settings for these options."""
        from wdscli.shards.writing import ShardSettings
        from wdscli.tar import make_form

        form = make_form(self.mtime, self.long_names)
        return ShardSettings(form, self.checksum, not self.no_index, self.force, self.fsync)


@_output("""
    -j, --jobs N  The most processes. Fewer start if the work is small. Default: one per processor. The output is
        the same for any N.
    +--post CMD  Run the shell command CMD for each finished shard. {} in CMD means the shard.
    """)
class TaskOptions(NamedTuple):
    """How many shards are made at the same time, and which command runs after each shard."""

    jobs: Positive = None
    post: Text = None


@_output("""
    --resume  Continue an interrupted run of the same command. Finished shards are kept.
    +--if-changed  Do nothing if the output is up to date. Otherwise replace the output.
    """)
@panel("Execution")("""
    +--engine URL  Run on other machines: dask://HOST:PORT, or another installed engine. Default: this machine.
    +--strategy  How to copy samples: gather reads them directly from the inputs; spill uses scratch space; auto
        chooses the faster of the two (-v prints the reason). The output is the same.
    +--memory SIZE  Use at most SIZE bytes of memory in all processes together: 500MB, 1GiB. With --engine, each task of
        a worker may use as much.
    +--tmp DIR  Folder or URL for temporary files. Default: TMPDIR.
    +plan_file: --plan FILE  Write a plan instead of shards. `wds run` runs the plan, here or on other machines.
    """)
class EngineOptions(NamedTuple):
    """The options about how and where samples are reordered, and the plan file."""

    engine: Text = None
    strategy: Literal["auto", "gather", "spill"] = "auto"
    memory: Number = None
    tmp: Text = None
    resume: bool = False
    if_changed: bool = False
    plan_file: Text = None


@panel("Errors")("""
    --on-duplicate  Repeated key: fail, skip, or give a new key.
    +--rekey FORMAT  Give all samples new keys: '{shard}-{index:09d}', or '{n:09d}', which counts over all shards. Any
        expression is allowed: '{json.id}'. '{json.path!k}' ends before the first dot of the last part,
        and '{json.url!q}' quotes dots. With --on-duplicate rekey, a sample keeps its key unless the key repeats.
    """)
class DuplicateOptions(NamedTuple):
    """The options about repeated keys."""

    on_duplicate: Literal["error", "skip", "rekey"] = "error"
    rekey: Text = None


@_select("""
    --dedup key|EXPR,...  Drop samples that repeat a key, field or value. Examples: key, jpg, json.url, 'dhash(jpg)'.
        The first of the selected samples is kept. A field is repeated if its bytes are the same. With several names, a
        sample is dropped only if all of them are repeated.
    +--report FILE  Write a line of JSON to FILE for each sample that --dedup, --on-duplicate skip or --on-error skip
        leaves out, and for each row of a table.
    +--allow-empty  Do not fail if a named field, key or JSON path does not exist, or if no sample is left.
    """)
class InputOptions(NamedTuple):
    """The options that choose samples of the inputs, for commands that read and write shards."""

    selection: SelectionOptions = SelectionOptions()
    dedup: Texts = None
    report: Text = None
    allow_empty: bool = False
    duplicates: DuplicateOptions = DuplicateOptions()


class ReorderOptions(NamedTuple):
    """The options of all commands that reorder. They come after the options of the command itself."""

    cuts: CutOptions
    tasks: TaskOptions
    engine: EngineOptions
    inputs: InputOptions
    on_error: OnError = "error"
    general: GeneralOptions = GeneralOptions()


def library_word(word: str) -> Any:
    """Return the library's word for a reaction: the option's ``error`` is the library's "stop"."""
    return "stop" if word == "error" else word


def changed_options(group: Any) -> list[str]:
    """Return the names of a group's options that differ from their defaults, as typed. Options without a default are
    left out."""
    values = group._asdict()
    defaults = group._field_defaults
    return ["--" + name.replace("_", "-") for name in defaults if values[name] != defaults[name]]


def grouped(function: Callable[..., Any]) -> Callable[..., Any]:
    """Replace each option group among the arguments of ``function`` by the fields of the group. The ``parameters`` of
    the returned function are the options. The network options apply while ``function`` runs.

    ``--help`` shows options in the order of the arguments. Two options of one name raise ValueError when the command's
    module is imported; only the options :data:`_MAY_REPEAT` may repeat, and the first one counts.
    """
    kinds = {name: kind for name, kind in function.__annotations__.items() if name != "return"}
    defaults = function.__kwdefaults__ or {}

    @wraps(function)
    def command(**values: Any) -> Any:
        network = NetworkOptions(*map(values.get, NetworkOptions._fields))
        with network.in_force():
            return function(**{name: _gather(name, kind, values) for name, kind in kinds.items()})

    command.__annotations__ = {}
    parameters = dict[str, Parameter]()
    for name, kind in kinds.items():
        for parameter in _spread(name, kind, defaults.get(name, REQUIRED)):
            if parameter.name in parameters and parameter.name not in _MAY_REPEAT:
                raise ValueError(f"two options have the name {parameter.name}")
            parameters.setdefault(parameter.name, parameter)
    command.parameters = tuple(parameters.values())  # type: ignore[attr-defined]
    return command


def _group(kind: Any) -> tuple[Any, frozenset[str]] | None:
    """Return a group and the fields that it leaves out, or None for a plain option."""
    kind, *exclusions = get_args(kind) if get_origin(kind) is Annotated else (kind,)
    if not hasattr(kind, "_field_defaults"):
        return None
    return kind, frozenset(field for text in exclusions for field in text.removeprefix("without").split())


def _spread(name: str, kind: Any, default: Any, option: Any = None) -> Iterator[Parameter]:
    """Yield the options for one argument of a command, or for one field of a group. ``option`` is what the group's
    table says about the field."""
    if (grouping := _group(kind)) is not None:
        yield from parameters_of(grouping[0], default, grouping[1])
        return
    kind, extra = get_args(kind) if get_origin(kind) is Annotated else (kind, None)
    option = extra if isinstance(extra, Option) else option
    if isinstance(extra, int):
        option = option._replace(min=extra)
    elif extra is not None and extra is not option:
        WORDS[name] = extra
    elif kind == Number:
        option = option._replace(parser=_PARSERS.get(option.metavar))
    kinds = get_args(kind)
    yield Parameter(name, kinds[0] if type(None) in kinds else kind, option, default)


def parameters_of(
    group: Any, group_default: Any = REQUIRED, without: Collection[str] = ()
) -> Iterator[Parameter]:
    """Yield the options of a group, except for the fields ``without``. If the group has a default, its fields are the
    defaults of the options."""
    described, defaults = _described(group), group._field_defaults
    if group_default is not REQUIRED:
        defaults = group_default._asdict()
    for field in group._fields:
        if field not in without:
            kind = group.__annotations__[field]
            yield from _spread(field, kind, defaults.get(field, REQUIRED), described.get(field))


def _gather(name: str, kind: Any, values: dict[str, Any]) -> Any:
    """Build the value of one argument from the values of all options. Omitted fields have their defaults."""
    grouping = _group(kind)
    if grouping is None:
        return values[name]
    group, without = grouping
    defaults = {field: group._field_defaults.get(field, "") for field in without}
    fields = [field for field in group._fields if field not in without]
    return group(
        **defaults, **{field: _gather(field, group.__annotations__[field], values) for field in fields}
    )


def read_plain(parameters: Sequence[Parameter], words: Sequence[str]) -> dict[str, Any] | None:
    """Return the values of all parameters from a plain command line. In a plain line, each short option is a
    word of its own, and no value begins with a hyphen. Return None for any other line, also for a wrong one."""
    named = {
        name: parameter for parameter in parameters for name in "/".join(parameter.option.names).split("/")
    }
    positional = [parameter for parameter in parameters if not parameter.option.names]
    values: dict[str, Any] = {}
    remaining = iter(words)
    try:
        for word in remaining:
            if word == "-" or not word.startswith("-"):
                parameter, name, text = positional[0], "", word
                del positional[: parameter.kind is str]
            else:
                name, glue, text = word.partition("=") if word[1] == "-" else (word[:2], word[2:], word[2:])
                parameter = named[name]
                if not (glue or parameter.kind is bool):
                    text = next(remaining)
                if (glue and parameter.kind is bool) or (text.startswith("-") and text != "-"):
                    return None
            if parameter.kind == list[str]:
                values.setdefault(parameter.name, []).append(text)
            elif parameter.name in values:
                return None
            elif parameter.kind is bool:
                values[parameter.name] = f"/{name}" not in parameter.option.names[-1]
            else:
                values[parameter.name] = parameter.read(text)
    except (LookupError, StopIteration, ValueError, WdsError):
        return None
    values = {parameter.name: values.get(parameter.name, parameter.default) for parameter in parameters}
    return None if REQUIRED in values.values() else values
