"""Every option that more than one command takes, defined once, in groups.

An option is an annotation that Typer reads; :func:`panel` makes those that stand under one heading of ``--help``. A
group is a ``NamedTuple`` of options, or of other groups. A command takes a group as one argument, and :func:`grouped`
spreads its fields over the command's signature, so that Typer sees plain options and the command sees one value::

    @grouped
    def ls(shards: Shards, selection: SelectionOptions, common: CommonOptions, long: Long = False) -> None: ...

Where a command, or a group, has no use for some options of a group, it takes the others:
``Annotated[EngineOptions, "without strategy tmp"]``.

The fields of a group are plain values: text, numbers, lists. What they mean is decided by whom they are handed to
(``wdscli.selection`` for the selection, the operation for the rest), so this module imports nothing of the library but
the parser of sizes.

Its annotations are real objects, not text (no ``from __future__ import annotations``): they are read at every start.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, get_args, get_origin

import typer

from wdscli.units import parse_size, parse_time

if TYPE_CHECKING:
    from wdscli.create.delimited import Reading
    from wdscli.plan.cut import Cuts
    from wdscli.selection import Selection
    from wdscli.shards.writing import ShardSettings


Text = str | None
Texts = list[str] | None
Number = int | None
Natural = Annotated[Number, 0]
Positive = Annotated[Number, 1]
"""Numbers of at least so much."""
_PARSERS: dict[str | None, Any] = {"SIZE": parse_size, "TIME": parse_time}
"""What reads a number that is not written as one, by the name of the value."""
FORMER: dict[str, set[str]] = {}
"""The names that an option had in earlier versions, by the one it has."""
_Decorator = Callable[[Any], Any]
_ENTRY = re.compile(r"\n {4}(?! )")


def panel(title: str | None) -> Callable[[str], _Decorator]:
    """What makes the options under one heading of ``--help``: of a table of their names, the value's name and, behind
    two blanks, what they are, which may go on in lines that stand deeper. The options become fields of the group that
    the result decorates; one whose field has another name says so in front. A name behind ``~`` is a former one, which
    works and is not shown.

    >>> class Group(NamedTuple):
    ...     output: str
    >>> group = panel("Output")("-o, --output OUT  Shards to write.")(Group)
    >>> option = group.__annotations__["output"].__metadata__[0]
    >>> option.default, option.param_decls, option.metavar, option.help, option.rich_help_panel
    ('-o', ('--output',), 'OUT', 'Shards to write.', 'Output')
    """

    def describe(table: str) -> _Decorator:
        def decorate(group: Any) -> Any:
            for entry in _ENTRY.split(table.strip()):
                spelling, _, text = entry.partition("  ")
                field, _, spelling = spelling.rpartition(": ")
                words = spelling.split()
                names = [word.rstrip(",") for word in words if word.startswith("-")]
                long = next(name for name in names if name.startswith("--"))
                field = field or long[2:].partition("/")[0].replace("-", "_")
                former = [word[1:] for word in words if word.startswith("~")]
                FORMER.setdefault(long, set()).update(former)
                names += former
                metavar = " ".join(word for word in words if word[0] not in "-~") or None
                kind, more = group.__annotations__[field], {}
                if get_origin(kind) is Annotated:
                    kind, more["min"] = get_args(kind)
                elif kind == Number:
                    more["parser"] = _PARSERS.get(metavar)
                text = " ".join(text.split())
                option = typer.Option(*names, metavar=metavar, help=text, rich_help_panel=title, **more)
                group.__annotations__[field] = Annotated[kind, option]
            return group

        return decorate

    return describe


SEED = "seed"
_select = panel("Selection")
_cuts = panel("Shard size")
_output = panel("Output")
_engine = panel("Execution")
_errors = panel("Errors")
_network = panel("Network")
_common = panel("General")

_shards = "Shards to read: paths, folders, globs, braces, a::b, a manifest, @LIST, -, pipe:CMD, URLs."
Shards = Annotated[list[str], typer.Argument(metavar="SHARDS...", help=_shards)]


@_common("""
    -q, --quiet  Print only warnings and errors.
    -v, --verbose  Print more: what is read, which strategy is used and why, time and memory.
    --progress/--no-progress  Show progress. Default: a bar on a terminal, elsewhere a line every 30
        seconds; with --progress every 5 seconds.
    --debug  Print a traceback with an error.
    """)
class CommonOptions(NamedTuple):
    """What every command takes."""

    quiet: bool = False
    verbose: bool = False
    progress: bool | None = None
    debug: bool = False


@_network("""
    --read-ahead SIZE  Read at most SIZE bytes of remote shards ahead, in each process. Default: 64MiB.
    --retries N  Repeat a failed request up to N times. Default: 5.
    --timeout SECONDS  Fail a request that has received nothing for so long. Default: 60.
    --cache DIR  Keep whole remote shards in DIR and read them from there while they are unchanged.
    --cache-limit SIZE  Limit the cache to SIZE bytes; the least recently used shards are removed first.
        Default: no limit.
    """)
class NetworkOptions(NamedTuple):
    """How much is read ahead from other machines, how patiently, and what is kept. What is not given is as the
    environment says."""

    read_ahead: Number = None
    retries: Natural = None
    timeout: float | None = None
    cache: Text = None
    cache_limit: Number = None

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """The block, and the tasks that it submits, go by these. Raises UsageError."""
        if self == NetworkOptions():
            yield
            return
        from wdscli.storage.retry import changed, using

        with using(changed(*self)):
            yield


@_output("""
    --json  Print JSON Lines.
    """)
class JsonOptions(NamedTuple):
    """Whether a program reads the result."""

    json: bool = False


@_common("""
    --trust-addresses  Let downloaded manifests, lists and tables name any address, not only addresses next to
        and below them or on their own host, but no command. Let tables on this machine name commands.
    """)
class GeneralOptions(NamedTuple):
    """What every command takes that reads shards."""

    json: JsonOptions = JsonOptions()
    trust_addresses: bool = False
    network: NetworkOptions = NetworkOptions()
    common: CommonOptions = CommonOptions()


@_select("""
    --fields EXT,...  Keep only these fields. Globs allowed. Repeatable.
    --drop EXT,...  Leave these fields out. Globs allowed. Repeatable.
    --rename NEW=OLD  Rename a field; OLD may list alternatives: 'jpg;png'. Repeatable.
    --keys GLOB  Keep samples whose key matches. Repeatable.
    --keys-from FILE  Keep samples whose key is a line of FILE, or in its column key: Parquet, .csv, .tsv, .jsonl.
        Repeatable.
    --not-keys-from FILE  Keep samples whose key is not in FILE. Repeatable.
    --where EXPR  Keep samples for which EXPR is true: key, shard, index, size, fields, json, cls, txt. When
        repeated, all must be true.
    --slice A:B:STEP  Of the selected samples, keep those from A up to B, every STEP.
    --sample N|P  Of these, keep a random subset: exactly N samples, or a share of the keys as 10% or 0.1. The
        same for any order of shards.
    --seed N  Seed of --sample.
    --limit N  Keep at most N samples: the first ones of the output.
    """)
class SelectionOptions(NamedTuple):
    """Which samples, and which of their fields, as typed; :meth:`parse` says what they mean."""

    fields: Texts = None
    drop: Texts = None
    rename: Texts = None
    keys: Texts = None
    keys_from: Texts = None
    not_keys_from: Texts = None
    where: Texts = None
    slice: Text = None
    sample: Text = None
    seed: Number = None
    limit: Natural = None

    def parse(self, *, own_seed: bool = False) -> "Selection":
        """The selection that the library takes. ``own_seed`` says that the command draws something itself. Raises
        UsageError for what cannot mean anything."""
        from wdscli.errors import UsageError
        from wdscli.selection import Selection

        if self.seed is not None and self.sample is None and not own_seed:
            raise UsageError("--seed is for --sample", hint="--sample 1000, or --sample 10%")
        return Selection.parse(**self._asdict())


@panel(None)("""
    --max-decoded SIZE  Largest payload to decode, before and after decompression. Default: 256MiB.
    """)
class DecodeOptions(NamedTuple):
    """How much is decoded."""

    max_decoded: Number = None

    def limit(self, needed: str | None) -> int:
        """In bytes; ``needed`` names the option without which this one has no meaning, if that is missing."""
        from wdscli.codecs.limits import MAX_DECODED_BYTES
        from wdscli.errors import UsageError

        size = self.max_decoded
        if size is None:
            return MAX_DECODED_BYTES
        if needed is not None:
            raise UsageError(f"--max-decoded needs {needed}")
        if size < 1:
            raise UsageError("--max-decoded must be at least 1 byte")
        return size


@panel("Tables")("""
    text_columns: --text COLUMN  Keep a column of CSV or TSV as text in JSON. Default: a column is numbers if all
        its cells are. Repeatable.
    --encoding NAME  Encoding of CSV, TSV and JSON Lines. Default: UTF-8.
    --max-decoded SIZE  Largest cell of CSV, TSV and JSON Lines, and largest line of text. Default: 256MiB.
    """)
class CellOptions(NamedTuple):
    """How the text of a table becomes cells."""

    text_columns: Texts = None
    encoding: Text = None
    max_decoded: Number = None

    def parse(self, kind: str | None) -> "Reading":
        """How a table of this kind is read; None is no table. Raises UsageError for options that mean nothing there."""
        from wdscli.create.delimited import UTF8, Reading, checked_encoding
        from wdscli.errors import UsageError

        is_table = kind == "table"
        for name, given, fits in (
            ("--text", self.text_columns, is_table),
            ("--encoding", self.encoding, is_table),
            ("--max-decoded", self.max_decoded, is_table or kind == "lines"),
        ):
            if given is not None and not fits:
                raise UsageError(
                    f"{name} is for tables of text", hint="name the table with --from-table or --table"
                )
        encoding = UTF8 if self.encoding is None else checked_encoding(self.encoding)
        return Reading(encoding, tuple(self.text_columns or ()), DecodeOptions(self.max_decoded).limit(None))


@_cuts("""
    --max-count N  At most N samples in a shard.
    --max-size SIZE  At most SIZE bytes in a shard, headers included: 500MB, 1GiB, 2e9.
    shard_count: --shards N  Write N shards of about equal size.
    """)
class CutOptions(NamedTuple):
    """Where one output shard ends and the next begins."""

    max_count: Positive = None
    max_size: Number = None
    shard_count: Positive = None


@_cuts("""
    --divisible-by WORLD  Write more shards, so that their number is a multiple of WORLD and none is empty.
    """)
class PlannedCutOptions(NamedTuple):
    """The same, and more, where all samples are known before any is written."""

    plain: CutOptions
    divisible_by: Positive = None

    def parse(self) -> "Cuts":
        """What the library takes."""
        from wdscli.plan.cut import Cuts

        return Cuts(*self.plain, self.divisible_by)


Algorithm = Literal["xxh3_128", "sha256", "none"]


@_output("""
    -o, --output OUT  Shards to write: out-%06d.tar, out-{0000..0127}.tar, one file, -, pipe:CMD, or a URL
        of these.
    --force  Replace existing files.
    --fsync  Flush each shard to the device before it is renamed to its final name.
    --no-index  Write no index files.
    --checksum  Checksum algorithm of the manifest.
    --mtime TIME  Modification time of members: seconds, @seconds or a date. Default: SOURCE_DATE_EPOCH, or
        0.
    --long-names  Header format of names that do not fit into ustar. DALI reads gnu only.
    -n, --dry-run  Print what would be written, and write nothing.
    """)
class OutputOptions(NamedTuple):
    """Where shards are written, and how."""

    output: str
    force: bool = False
    fsync: bool = False
    no_index: bool = False
    checksum: Algorithm = "xxh3_128"
    mtime: Number = None
    long_names: Literal["pax", "gnu"] = "pax"
    dry_run: bool = False

    def settings(self) -> "ShardSettings":
        """How each shard is written."""
        from wdscli.shards.writing import ShardSettings
        from wdscli.tar import make_form

        form = make_form(self.mtime, self.long_names)
        return ShardSettings(form, self.checksum, not self.no_index, self.force, self.fsync)


@_output("""
    -j, --jobs N  Number of processes. Default: one per processor. The output is the same for any N.
    --post CMD  Run a shell command for each finished shard; {} in it is the shard.
    """)
class TaskOptions(NamedTuple):
    """How many shards are made at a time, and what becomes of each."""

    jobs: Positive = None
    post: Text = None


@_engine("""
    --engine URL  Run on other machines: dask://HOST:PORT, or another installed engine. Default: this
        machine.
    --strategy  gather copies samples straight from the inputs, spill by way of scratch space; auto
        takes the faster one (-v prints why). The output is the same.
    --memory SIZE  Use at most SIZE bytes of memory in all processes together: 500MB, 1GiB.
    --tmp DIR  Folder or URL for scratch space (temporary files). Default: TMPDIR.
    --resume  Continue an interrupted run of the same command: keep finished shards, write the rest.
    --if-changed  Do nothing when the set exists and neither inputs nor options have changed since this
        command wrote it; otherwise replace it.
    plan_file: --plan FILE  Write a plan instead of shards; `wds run` carries it out, here or on other
        machines.
    """)
class EngineOptions(NamedTuple):
    """How samples are brought into another order, and where; or stored as a plan."""

    engine: Text = None
    strategy: Literal["auto", "gather", "spill"] = "auto"
    memory: Number = None
    tmp: Text = None
    resume: bool = False
    if_changed: bool = False
    plan_file: Text = None


@_errors("""
    --on-error  Broken shard: stop, or skip what is damaged and keep its whole samples.
    """)
class ErrorOptions(NamedTuple):
    """What is done about a shard that is broken."""

    on_error: Literal["stop", "skip"] = "stop"


@_errors("""
    --on-duplicate  Repeated key: stop, skip the sample, or give it a new key.
    --rekey FORMAT  New keys, such as '{shard}-{index:09d}', or '{n:09d}', which counts over all shards;
        with --on-duplicate rekey only for repeated keys.
    """)
class DuplicateOptions(NamedTuple):
    """What is done about a key that comes twice."""

    on_duplicate: Literal["error", "skip", "rekey"] = "error"
    rekey: Text = None


@_select("""
    --allow-empty  Also write when a name (field, key, JSON path) does not occur, or when no sample is left.
    """)
class InputOptions(NamedTuple):
    """Which samples of the inputs, for commands that write shards of shards."""

    selection: SelectionOptions = SelectionOptions()
    allow_empty: bool = False
    duplicates: DuplicateOptions = DuplicateOptions()


class ReorderOptions(NamedTuple):
    """What all commands that reorder take behind their own options."""

    cuts: PlannedCutOptions
    tasks: TaskOptions
    engine: EngineOptions
    inputs: InputOptions
    errors: ErrorOptions
    general: GeneralOptions


def former_names(names: Iterable[str]) -> set[str]:
    """Those of an option's names that it only had in earlier versions."""
    return set().union(*(FORMER.get(name, ()) for name in names))


def changed_options(group: Any) -> list[str]:
    """The options of a group that are not at their default, as they are typed; of those that have one."""
    given = group._asdict()
    defaults = group._field_defaults
    return ["--" + name.replace("_", "-") for name in defaults if given[name] != defaults[name]]


def grouped(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` with each argument that is an option group replaced by the group's fields. What is said of the
    network is in force while it runs, and no command hands it on.

    The order of ``--help`` is the order of the arguments. Two options of one name are a mistake in the command, told
    when its module is imported; but the one ``--seed`` of a command is for all that it draws, as the command has it.
    """
    signature = inspect.signature(function, eval_str=True)
    arguments = signature.parameters.values()

    def command(**values: Any) -> Any:
        network = NetworkOptions(*map(values.get, NetworkOptions._fields))
        with network.in_force():
            return function(**{one.name: _gather(one.name, one.annotation, values) for one in arguments})

    command.__name__ = function.__name__
    command.__doc__ = function.__doc__
    command.__module__ = function.__module__
    command.__annotations__ = {}
    parameters = [option for one in arguments for option in _spread(one)]
    seeds = [option for option in parameters if option.name == SEED]
    parameters = [option for option in parameters if option not in seeds[1:]]
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return command


def _group(kind: Any) -> tuple[Any, frozenset[str]] | None:
    """A group, and those of its fields that are left out; None for a plain option."""
    kind, *more = get_args(kind) if get_origin(kind) is Annotated else (kind,)
    if not hasattr(kind, "_field_defaults"):
        return None
    return kind, frozenset(field for text in more for field in text.removeprefix("without").split())


def _spread(argument: inspect.Parameter) -> list[inspect.Parameter]:
    """The options of one argument of a command, or of one field of a group. The default of a group is that of its
    options."""
    found, given = _group(argument.annotation), argument.default
    if found is None:
        return [argument.replace(kind=inspect.Parameter.KEYWORD_ONLY)]
    group, without = found
    options = []
    for field in inspect.signature(group).parameters.values():
        if field.name not in without:
            default = field.default if given is argument.empty else getattr(given, field.name)
            options += _spread(field.replace(annotation=group.__annotations__[field.name], default=default))
    return options


def _gather(name: str, kind: Any, values: dict[str, Any]) -> Any:
    """The value of an argument, from those of all options; what is left out is at its default."""
    found = _group(kind)
    if found is None:
        return values[name]
    group, without = found
    defaults = {field: group._field_defaults.get(field, "") for field in without}
    given = [field for field in group._fields if field not in without]
    return group(
        **defaults, **{field: _gather(field, group.__annotations__[field], values) for field in given}
    )
