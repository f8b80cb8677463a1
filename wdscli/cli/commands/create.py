"""``wds create``: options in, a new set out.

Its annotations are real objects, not text: Typer reads those of the option groups at every start.
"""

from typing import Annotated, Literal, NamedTuple

import typer

from wdscli.cli.options import CommonOptions, CutOptions, JsonOptions, OutputOptions, TrustOptions, grouped
from wdscli.cli.output import Out

_SOURCES = "Sources"
_SAMPLES = "Samples"


class SourceOptions(NamedTuple):
    """What samples are made of, besides folders and files."""

    from_list: Annotated[
        list[str] | None,
        typer.Option(
            "--from-list",
            metavar="FILE",
            help="Lines of NAME<TAB>SOURCE; a SOURCE is text:..., pipe:CMD, a path or any address. May be repeated.",
            rich_help_panel=_SOURCES,
        ),
    ] = None
    from_table: Annotated[
        list[str] | None,
        typer.Option(
            "--from-table",
            metavar="FILE",
            help="A row a sample: CSV, TSV, JSON Lines, or Parquet (pip install 'wdscli[parquet]'). May be repeated.",
            rich_help_panel=_SOURCES,
        ),
    ] = None
    key: Annotated[
        str | None,
        typer.Option(
            "--key", metavar="COLUMN", help="The table's column that is the key.", rich_help_panel=_SOURCES
        ),
    ] = None
    rekey: Annotated[
        str | None,
        typer.Option(
            "--rekey",
            metavar="FORMAT",
            help="Keys of columns and the row's number: '{split}/{index:08d}'.",
            rich_help_panel=_SOURCES,
        ),
    ] = None
    field: Annotated[
        list[str] | None,
        typer.Option(
            "--field",
            metavar="EXT=COLUMN",
            help="A field of the column's values; EXT=@COLUMN where they are paths or addresses. May be repeated.",
            rich_help_panel=_SOURCES,
        ),
    ] = None
    json_rest: Annotated[
        bool,
        typer.Option(
            "--json-rest", help="The remaining columns go into the field json.", rich_help_panel=_SOURCES
        ),
    ] = False
    include: Annotated[
        list[str] | None,
        typer.Option(
            "--include",
            metavar="GLOB",
            help="Only files that match: without a slash the name, with one the path below SOURCE; ** spans folders.",
            rich_help_panel=_SOURCES,
        ),
    ] = None
    exclude: Annotated[
        list[str] | None,
        typer.Option(
            "--exclude",
            metavar="GLOB",
            help="Leave out files, and folders with all that is in them.",
            rich_help_panel=_SOURCES,
        ),
    ] = None


class SampleOptions(NamedTuple):
    """How files become samples."""

    key_rule: Annotated[
        str,
        typer.Option(
            "--key-rule",
            metavar="first-dot|last-dot|REGEX",
            help="Where a key ends. A REGEX matches the whole path and has groups key and field, or two groups.",
            rich_help_panel=_SAMPLES,
        ),
    ] = "first-dot"
    require: Annotated[
        list[str] | None,
        typer.Option(
            "--require",
            metavar="EXT,...",
            help="Fields that every sample must have; 'jpg;png' is either of them.",
            rich_help_panel=_SAMPLES,
        ),
    ] = None
    incomplete: Annotated[
        Literal["error", "skip", "keep"],
        typer.Option(
            "--incomplete",
            help="What becomes of a sample that lacks a required field.",
            rich_help_panel=_SAMPLES,
        ),
    ] = "error"
    label_from: Annotated[
        Literal["parent"] | None,
        typer.Option(
            "--label-from",
            help="Add the field cls: the number of the parent folder's name among all, sorted.",
            rich_help_panel=_SAMPLES,
        ),
    ] = None
    order: Annotated[
        Literal["path", "shuffle"] | None,
        typer.Option(
            "--order",
            help="Bytewise by key, or shuffled. Default: path, or the order of the list or table.",
            rich_help_panel=_SAMPLES,
        ),
    ] = None
    seed: Annotated[
        int,
        typer.Option(
            "--seed", metavar="N", help="Another seed, another shuffled order.", rich_help_panel=_SAMPLES
        ),
    ] = 0


@grouped
def create(
    *,
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SOURCE]...",
            help="Folders, walked whole, and files. Keys are paths below the folder given.",
            show_default=False,
        ),
    ] = None,
    more: SourceOptions,
    samples: SampleOptions,
    cuts: CutOptions,
    output: OutputOptions,
    json: JsonOptions,
    trust: TrustOptions,
    common: CommonOptions,
) -> None:
    """Make shards from folders, files, lists or tables.

    Files that share a path up to the first dot of their name are one sample: cats/7.jpg and cats/7.json. Samples
    are written in bytewise order of their keys, fields by name. The same files give the same bytes, whatever
    their owner, times and order on the disc. Files with no dot, hidden ones and hidden folders are passed over
    and counted.

    Examples:

        wds create photos/ -o 'train-%06d.tar'
        wds create photos/ -o 'train-%06d.tar' --label-from parent --order shuffle --seed 7 --max-size 500MB
        wds create photos/ -o 'train-{0000..0015}.tar' --require 'jpg,json' --incomplete skip
        wds create --from-table captions.csv --key id --field jpg=@path --field txt=caption -o 'train-%06d.tar'
    """
    from wdscli.cli.created import create_options, print_created
    from wdscli.ops.create import create as make

    out = Out(common, json=json.json)
    options = create_options(more, samples, cuts, output, trust)
    report = make(sources or [], output.output, options, dry_run=output.dry_run, progress=out.progress())
    print_created(out, report)
