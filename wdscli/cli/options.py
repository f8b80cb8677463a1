"""Every option that more than one command takes, defined once, in groups.

A group is a ``NamedTuple`` whose fields are annotated as Typer wants them. A command takes a group as one argument, and
:func:`grouped` spreads its fields over the command's signature, so that Typer sees plain options and the command sees
one value::

    @grouped
    def ls(shards: Shards, selection: SelectionOptions, common: CommonOptions, long: Long = False) -> None: ...

The fields of a group are plain values: text, numbers, lists. What they mean is decided by whom they are handed to
(``wdscli.selection`` for the selection, the operation for the rest), so this module imports nothing of the library but
the parser of sizes.

Its annotations are real objects, not text (no ``from __future__ import annotations``): they are read at every start.
"""

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from wdscli.units import parse_size, parse_time

if TYPE_CHECKING:
    from wdscli.selection import Selection

_SELECT = "Selection"
_CUTS = "Cuts"
_OUTPUT = "Output"
_ENGINE = "Engine"
_ERRORS = "Trouble"
_COMMON = "Common"

Shards = Annotated[
    list[str],
    typer.Argument(
        metavar="SHARDS...",
        help="Shards to read: paths, folders, globs, braces, a::b, a manifest, @LIST, -, pipe:CMD, URLs.",
    ),
]


class CommonOptions(NamedTuple):
    """What every command takes."""

    quiet: Annotated[
        bool,
        typer.Option("-q", "--quiet", help="Say nothing but warnings and errors.", rich_help_panel=_COMMON),
    ] = False
    verbose: Annotated[
        bool,
        typer.Option(
            "-v", "--verbose", help="Say more about what is done, and why.", rich_help_panel=_COMMON
        ),
    ] = False
    progress: Annotated[
        bool | None,
        typer.Option(
            "--progress/--no-progress",
            help="Show progress. Default: when standard error is a terminal.",
            show_default=False,
            rich_help_panel=_COMMON,
        ),
    ] = None
    debug: Annotated[
        bool, typer.Option("--debug", help="Show a traceback with an error.", rich_help_panel=_COMMON)
    ] = False


class TrustOptions(NamedTuple):
    """What documents that others made may name."""

    trust_addresses: Annotated[
        bool,
        typer.Option(
            "--trust-addresses",
            help="Let manifests, and lists and tables that are fetched, name any address, not only what is beside and "
            "below them or on their own host. Never commands.",
            rich_help_panel=_COMMON,
        ),
    ] = False


class JsonOptions(NamedTuple):
    """For commands whose result is worth reading by a program."""

    json: Annotated[bool, typer.Option("--json", help="Print JSON Lines.", rich_help_panel=_OUTPUT)] = False


class SelectionOptions(NamedTuple):
    """Which samples, and which of their fields, as typed; :meth:`parse` says what they mean."""

    fields: Annotated[
        list[str] | None,
        typer.Option(
            "--fields",
            metavar="EXT,...",
            help="Keep these fields only. Globs allowed; may be given more than once.",
            rich_help_panel=_SELECT,
        ),
    ] = None
    drop: Annotated[
        list[str] | None,
        typer.Option(
            "--drop",
            metavar="EXT,...",
            help="Leave these fields out. Globs allowed; may be given more than once.",
            rich_help_panel=_SELECT,
        ),
    ] = None
    rename: Annotated[
        list[str] | None,
        typer.Option(
            "--rename",
            metavar="NEW=OLD",
            help="Rename a field; OLD may be alternatives, such as 'jpg;png'. May be given more than once.",
            rich_help_panel=_SELECT,
        ),
    ] = None
    keys: Annotated[
        list[str] | None,
        typer.Option(
            "--keys",
            metavar="GLOB",
            help="Samples whose key matches. May be given more than once.",
            rich_help_panel=_SELECT,
        ),
    ] = None
    keys_from: Annotated[
        list[str] | None,
        typer.Option(
            "--keys-from",
            metavar="FILE",
            help="Samples whose key is a line of FILE. May be given more than once.",
            rich_help_panel=_SELECT,
        ),
    ] = None
    where: Annotated[
        list[str] | None,
        typer.Option(
            "--where",
            metavar="EXPR",
            help="Samples for which EXPR holds: key, shard, index, size, fields, json, cls, txt. Given more than once, "
            "all must hold.",
            rich_help_panel=_SELECT,
        ),
    ] = None
    slice: Annotated[
        str | None,
        typer.Option(
            "--slice",
            metavar="A:B:STEP",
            help="Of the samples that remain, those from A up to B, every STEP.",
            rich_help_panel=_SELECT,
        ),
    ] = None
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            metavar="N",
            min=0,
            help="At most N samples come out: the first of the output's order.",
            rich_help_panel=_SELECT,
        ),
    ] = None

    def parse(self) -> "Selection":
        """The selection that the library takes. Raises UsageError for what cannot mean anything."""
        from wdscli.selection import Selection

        return Selection.parse(**self._asdict())


AllowEmpty = Annotated[
    bool,
    typer.Option(
        "--allow-empty",
        help="Write also when a name (a field, a key, a place in JSON) is found nowhere, or no sample is left.",
        rich_help_panel=_SELECT,
    ),
]


MaxCount = Annotated[
    int | None,
    typer.Option(
        "--max-count", metavar="N", min=1, help="At most N samples in a shard.", rich_help_panel=_CUTS
    ),
]
MaxSize = Annotated[
    int | None,
    typer.Option(
        "--max-size",
        metavar="SIZE",
        parser=parse_size,
        help="At most SIZE bytes of tar in a shard: 500MB, 1GiB, 2e9.",
        rich_help_panel=_CUTS,
    ),
]
ShardCount = Annotated[
    int | None,
    typer.Option("--shards", metavar="N", min=1, help="N shards of about equal size.", rich_help_panel=_CUTS),
]

MaxDecoded = Annotated[
    int | None,
    typer.Option(
        "--max-decoded",
        metavar="SIZE",
        parser=parse_size,
        help="The most that a payload may have and become when it is decoded. Default: 256MiB.",
    ),
]


def decoded_limit(size: int | None, needed: str | None) -> int:
    """What ``--max-decoded`` says; ``needed`` names the option without which it has no meaning, if that is missing."""
    from wdscli.codecs.limits import MAX_DECODED_BYTES
    from wdscli.errors import UsageError

    if size is None:
        return MAX_DECODED_BYTES
    if needed is not None:
        raise UsageError(f"--max-decoded needs {needed}")
    if size < 1:
        raise UsageError("--max-decoded must be at least 1 byte")
    return size


class CutOptions(NamedTuple):
    """Where one output shard ends and the next begins."""

    max_count: MaxCount = None
    max_size: MaxSize = None
    shard_count: ShardCount = None


class PlannedCutOptions(NamedTuple):
    """The same, and more, where all samples are known before any is written."""

    max_count: MaxCount = None
    max_size: MaxSize = None
    shard_count: ShardCount = None
    divisible_by: Annotated[
        int | None,
        typer.Option(
            "--divisible-by",
            metavar="WORLD",
            min=1,
            help="As many more shards as make their number a multiple of WORLD; none of them is empty.",
            rich_help_panel=_CUTS,
        ),
    ] = None


Output = Annotated[
    str,
    typer.Option(
        "-o",
        "--output",
        metavar="OUT",
        help="Shards to write: out-%06d.tar, out-{0000..0127}.tar, one file, -, pipe:CMD, or a URL of these.",
        rich_help_panel=_OUTPUT,
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Replace what is there.", rich_help_panel=_OUTPUT)]
Fsync = Annotated[
    bool,
    typer.Option(
        "--fsync", help="Force each shard to the device before it gets its name.", rich_help_panel=_OUTPUT
    ),
]
NoIndex = Annotated[
    bool, typer.Option("--no-index", help="Write no index beside the shards.", rich_help_panel=_OUTPUT)
]
Checksum = Annotated[
    Literal["xxh3_128", "sha256", "none"],
    typer.Option("--checksum", help="The checksum that the manifest holds.", rich_help_panel=_OUTPUT),
]
Mtime = Annotated[
    int | None,
    typer.Option(
        "--mtime",
        metavar="TIME",
        parser=parse_time,
        help="Modification time of members: seconds, @seconds or a date. Default: SOURCE_DATE_EPOCH, or 0.",
        rich_help_panel=_OUTPUT,
    ),
]
LongNames = Annotated[
    Literal["pax", "gnu"],
    typer.Option(
        "--long-names",
        help="How names are written that ustar has no room for. DALI reads gnu only.",
        rich_help_panel=_OUTPUT,
    ),
]
DryRun = Annotated[
    bool,
    typer.Option(
        "-n", "--dry-run", help="Say what would be written, and write nothing.", rich_help_panel=_OUTPUT
    ),
]
Jobs = Annotated[
    int | None,
    typer.Option(
        "-j",
        "--jobs",
        metavar="N",
        min=1,
        help="Processes to work in. Default: the processors there are. The bytes written are the same.",
        rich_help_panel=_OUTPUT,
    ),
]


Preserve = Annotated[
    bool,
    typer.Option(
        "--preserve",
        help="Keep headers as they are: modes, owners, times, pax records. Default: the canonical form.",
        rich_help_panel=_OUTPUT,
    ),
]


Post = Annotated[
    str | None,
    typer.Option(
        "--post",
        metavar="CMD",
        help="A shell command to run for each shard that is done; {} in it is the shard.",
        rich_help_panel=_OUTPUT,
    ),
]


class OutputOptions(NamedTuple):
    """Where shards are written, and how."""

    output: Output
    force: Force = False
    fsync: Fsync = False
    no_index: NoIndex = False
    checksum: Checksum = "xxh3_128"
    mtime: Mtime = None
    long_names: LongNames = "pax"
    dry_run: DryRun = False
    jobs: Jobs = None
    post: Post = None


Engine = Annotated[
    str | None,
    typer.Option(
        "--engine",
        metavar="URL",
        help="Work on other machines: dask://HOST:PORT, or another engine that is installed. "
        "Default: this machine, with -j.",
        rich_help_panel=_ENGINE,
    ),
]


Memory = Annotated[
    int | None,
    typer.Option(
        "--memory",
        metavar="SIZE",
        parser=parse_size,
        help="At most SIZE bytes of memory, all processes together: 500MB, 1GiB.",
        rich_help_panel=_ENGINE,
    ),
]


class EngineOptions(NamedTuple):
    """How samples are brought into another order, and where."""

    engine: Engine = None
    strategy: Annotated[
        Literal["auto", "gather", "spill"],
        typer.Option(
            "--strategy",
            help="Copy samples straight from the inputs, or by way of a scratch folder; auto takes what is quicker, "
            "and -v says why. The bytes are the same.",
            rich_help_panel=_ENGINE,
        ),
    ] = "auto"
    memory: Memory = None
    tmp: Annotated[
        str | None,
        typer.Option(
            "--tmp",
            metavar="DIR",
            help="Where scratch space is made: a folder, or a URL. Default: TMPDIR.",
            rich_help_panel=_ENGINE,
        ),
    ] = None
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Go on with the same command that was ended early: keep its whole shards, make the rest.",
            rich_help_panel=_ENGINE,
        ),
    ] = False
    plan_file: Annotated[
        str | None,
        typer.Option(
            "--plan",
            metavar="FILE",
            help="Write no shard but a plan, whose tasks `wds run` does, here or on other machines.",
            rich_help_panel=_ENGINE,
        ),
    ] = None


class StreamOptions(NamedTuple):
    """Where one archive is written, and how; standard output unless said otherwise."""

    output: Output = "-"
    force: Force = False
    fsync: Fsync = False
    no_index: NoIndex = False
    checksum: Checksum = "xxh3_128"
    mtime: Mtime = None
    long_names: LongNames = "pax"
    dry_run: DryRun = False


class ErrorOptions(NamedTuple):
    """What is done about a shard that is broken."""

    on_error: Annotated[
        Literal["stop", "skip"],
        typer.Option(
            "--on-error",
            help="Stop at the first broken shard, or save its whole samples, count the rest, and go on.",
            rich_help_panel=_ERRORS,
        ),
    ] = "stop"


class DuplicateOptions(NamedTuple):
    """What is done about a key that comes twice."""

    on_duplicate: Annotated[
        Literal["error", "skip", "rekey"],
        typer.Option(
            "--on-duplicate",
            help="A key seen before: stop, leave the sample out, or give it a new key.",
            rich_help_panel=_ERRORS,
        ),
    ] = "error"
    rekey: Annotated[
        str | None,
        typer.Option(
            "--rekey",
            metavar="FORMAT",
            help="New keys, such as '{shard}-{index:09d}': for all samples, or with --on-duplicate rekey "
            "for repeated ones.",
            rich_help_panel=_ERRORS,
        ),
    ] = None


def grouped(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` with each argument that is an option group replaced by the group's fields.

    The order of ``--help`` is the order of the arguments. Two options of one name are a mistake in the command, told
    when its module is imported.
    """
    signature = inspect.signature(function, eval_str=True)
    groups: dict[str, Any] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        kind = parameter.annotation
        if isinstance(kind, type) and hasattr(kind, "_field_defaults"):
            groups[parameter.name] = kind
            parameters += _spread(kind)
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    def command(**values: Any) -> Any:
        for name, kind in groups.items():
            values[name] = kind(*[values.pop(field) for field in kind._fields])
        return function(**values)

    command.__name__ = function.__name__
    command.__doc__ = function.__doc__
    command.__module__ = function.__module__
    command.__annotations__ = {}
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return command


def _spread(group: Any) -> list[inspect.Parameter]:
    defaults = group._field_defaults
    empty = inspect.Parameter.empty
    return [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=defaults.get(name, empty),
            annotation=group.__annotations__[name],
        )
        for name in group._fields
    ]
