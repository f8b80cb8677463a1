"""``wds create``: options in, a new set out.

Annotations here are real objects, not text, because Typer reads the annotations of option groups at every start.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from wdscli.cli.options import (
    CellOptions,
    CutOptions,
    EngineOptions,
    GeneralOptions,
    Natural,
    Option,
    OutputOptions,
    TaskOptions,
    Text,
    Texts,
    Values,
    grouped,
    library_word,
    panel,
)
from wdscli.cli.output import Out, by_reason, facts, plural
from wdscli.cli.reordering import check_plan_file, print_losses, print_stored, print_unchanged
from wdscli.errors import UsageError
from wdscli.shown import shown
from wdscli.units import human_size

if TYPE_CHECKING:
    from wdscli.create.layouts import Kind
    from wdscli.create.left_out import Unit
    from wdscli.create.table import TableOptions
    from wdscli.ops.create import CreateOptions, CreateReport
    from wdscli.plan.request import Request

RENAMES_SHOWN = 3
DUPLICATE_KEY = "duplicate-key"
"""The reason of a repeated key, which is counted by rows and samples."""


@panel("Samples")("""
    +--key-rule first-dot|last-dot|REGEX  Where a key ends. REGEX matches the whole path and has groups key
        and field, or two groups.
    --require EXT,...  Fields that every sample must have. 'jpg;png' requires one of the two.
    incomplete: --missing  Sample that lacks a field: fail, skip or keep it. For lists and tables, this also decides
        about source files that do not exist, and about empty cells for file names.
    --label-from  Add the field cls with the folder's class number. The classes are the names of the parent
        folders, or of the top folders below SOURCE, numbered in sorted order.
    --on-duplicate  Repeated field: fail, skip, new key, or list. A field is repeated if two folders, lines
        or rows have it for the same key. With skip, the later sample is left out; with rekey, it gets a new key. With
        list, JSON fields hold lists: one value for each row of the key.
    --limit N  Write the first N samples of the output.
    --order  Sort by key, or shuffle. Default: path. With --from, the default is the order of the list or table.
    +--seed N  Seed of --order shuffle.
    """)
class SampleOptions(NamedTuple):
    """The options about how files become samples."""

    key_rule: str = "first-dot"
    require: Texts = None
    incomplete: Literal["error", "skip", "keep"] = "error"
    label_from: Literal["parent", "top"] | None = None
    on_duplicate: Literal["error", "skip", "rekey", "list"] = "error"
    limit: Natural = None
    order: Literal["path", "shuffle"] | None = None
    seed: int = 0


@panel("Sources")("""
    rows: --from TABLE|KIND:NAME  Make samples from a table or another source. A table has a row for each sample.
        TABLE is a file, folder, glob or address of CSV, TSV, JSON Lines, Parquet or Arrow (pip install
        'wdscli[parquet]'). lines:FILE makes a sample from each line: the text goes into the field txt, and the line
        number into the key. list:FILE has lines of NAME<TAB>SOURCE, where SOURCE is text:..., pipe:CMD, a path or a
        URL. hf:NAME[,CONFIG][:SPLIT] is a dataset of Hugging Face's datasets library, by name or folder (pip install
        'wdscli[hf]'); without --column, each feature becomes a field. coco:FILE has COCO annotations: each image is a
        sample, with its annotations in the field json. The images are next to FILE, or in the folder of --from
        images:FOLDER. shards:SET has the samples of existing shards, with keys by --key-rule. Repeatable.
    key: --key-column COLUMN  Column of the table with the keys. A.B is the member B of the struct or object A.
    field: --column EXT=[@]COLUMN  Fill field EXT from a column. COLUMN may be a format such as {name}.jpg. With @, the
        value is a path or an address. With * as EXT, the content decides the extension. Repeatable.
    --json-rest  Write the remaining columns to the field json.
    +--json-merge  Add the remaining columns to the JSON object in the sample's field json.
    +--rekey FORMAT  Give samples new keys: '{key}-{index:08d}', or with columns of a table '{split}/{index:08d}'.
        With --on-duplicate rekey, a sample keeps its key unless the key repeats.
    +--include GLOB  Take only matching files. A glob without a slash is compared with the file name. A glob with a
        slash is compared with the path below SOURCE. ** also matches slashes. FOLDER/ takes all files below a
        folder. A glob that matches nothing is an error. Repeatable.
    +--exclude GLOB  Leave out matching files and folders. Repeatable.
    +--no-follow  Leave out symbolic links below SOURCE. Default: follow them.
    """)
class SourceOptions(NamedTuple):
    """The sources of samples other than folders and files."""

    rows: Texts = None
    key: Text = None
    rekey: Text = None
    field: Texts = None
    json_rest: bool = False
    json_merge: bool = False
    include: Texts = None
    exclude: Texts = None
    no_follow: bool = False
    cells: CellOptions = CellOptions()
    samples: SampleOptions = SampleOptions()

    def named(self, kind: str) -> tuple[str, ...]:
        """The names in --from that have this kind."""
        return tuple(name for source_kind, name in map(_source_of, self.rows or ()) if source_kind == kind)

    @property
    def _given(self) -> "list[tuple[Kind, tuple[str, ...]]]":
        """The sources with rows: kind and names of each."""
        kinds: tuple[Kind, ...] = ("table", "lines", "hf", "coco", "shards")
        return [(kind, self.named(kind)) for kind in kinds if self.named(kind)]

    @property
    def rekey_of_rows(self) -> str | None:
        """The key format for the rows of a table."""
        is_of_rows = self._given and not self.named("shards") and self.samples.on_duplicate != "rekey"
        return self.rekey if is_of_rows else None

    def table(self) -> "TableOptions | None":
        """Return the table that --from names. Raises UsageError if there are table options without a table."""
        from wdscli.create.table import TableOptions

        row_sources = self._given
        if len(row_sources) > 1:
            names = " and ".join(kind for kind, _ in row_sources)
            raise UsageError(
                f"--from cannot mix sources of different kinds: {names}",
                hint="make a set from each source, then join the sets with wds merge",
            )
        needs_key = row_sources and not self.named("shards")
        if needs_key and self.rekey and self.key is None and self.rekey_of_rows is None:
            raise UsageError(
                "with --on-duplicate rekey, --rekey changes only repeated keys, so the table needs --key-column",
                hint=f"without --on-duplicate, --rekey '{self.rekey}_{{index:05d}}' gives each row its own key",
            )
        folders = self.named("images")
        if len(folders) > bool(self.named("coco")):
            raise UsageError(
                "give --from images:FOLDER at most once, and only together with --from coco:FILE"
            )
        images = next(iter(folders), None)
        if row_sources:
            [(kind, addresses)] = row_sources
            fields, json = tuple(self.field or ()), (self.json_rest, self.json_merge)
            reading = self.cells.parse(kind), self.samples.on_duplicate == "list"
            return TableOptions(
                addresses, self.key, self.rekey_of_rows, fields, *json, kind, images, *reading
            )
        self._refuse_table_options()
        return None

    def _refuse_table_options(self) -> None:
        """Raise UsageError for options of a table."""
        self.cells.parse(None)
        options = {
            "--on-duplicate list": self.samples.on_duplicate == "list",
            "--key-column": self.key,
            "--column": self.field,
            "--json-rest": self.json_rest,
            "--json-merge": self.json_merge,
        }
        for option, value in options.items():
            if value:
                raise UsageError(f"{option} needs a table", hint="name the table with --from")


def _source_of(text: str) -> tuple[str, str]:
    """Split a value of --from into the source's kind and name.

    >>> _source_of("lines:a.txt"), _source_of("hf://datasets/x/y.csv"), _source_of("a:b.csv")
    (('lines', 'a.txt'), ('table', 'hf://datasets/x/y.csv'), ('table', 'a:b.csv'))
    """
    kind, _, name = text.partition(":")
    is_kind = kind in ("list", "lines", "hf", "coco", "images", "shards") and not name.startswith("//")
    return (kind, name) if is_kind else ("table", text)


_sources = (
    "Files, and folders with all their files. A key is the file's path below the folder. In EXT=FOLDER, the folder's "
    "files become the field EXT: images/ mask.png=masks/."
)
Sources = Annotated[list[str] | None, Option((), "[SOURCE]...", _sources)]


@panel("Output")("""
    --append  Add shards to an existing set. The existing shards stay unchanged.
    """)
@panel("Errors")("""
    --on-error  A source file cannot be read, or a row is bad: fail, or leave it out.
    +--report FILE  Write a line of JSON to FILE for each file, row, sample and field that is left out.
    """)
class TargetOptions(NamedTuple):
    """The options about the new set."""

    cuts: Annotated[CutOptions, "without divisible_by"]
    output: OutputOptions
    values: Values = None
    append: bool = False
    tasks: TaskOptions = TaskOptions()
    work: Annotated[EngineOptions, "without strategy memory tmp"] = EngineOptions()
    on_error: Literal["error", "skip"] = "error"
    report: Text = None


@grouped
def create(
    *, sources: Sources = None, source: SourceOptions, target: TargetOptions, general: GeneralOptions
) -> None:
    """Make shards from folders, files, lists or tables.

    Files with the same path up to the first dot of the file name are one sample: cats/7.jpg and cats/7.json. Samples
    are sorted by key, and the same files always give the same bytes. Files without a dot, hidden files and hidden
    folders are skipped and counted.

    Examples:

        wds create photos/ -o 'train-%06d.tar'
        wds create photos/ -o 'train-%06d.tar' --label-from parent --order shuffle
        wds create photos/ -o 'train-{0000..0015}.tar' --require jpg,json
        wds create --from captions.csv --key-column id \\
            --column jpg=@path --column txt=caption -o 'train-%06d.tar'
    """
    from wdscli.ops.create import create as make

    output, plan_file = target.output, target.work.plan_file
    out = Out.of(general, "" if output.dry_run else output.output)
    request, options = (_request(sources or [], source, target, general), _options(source, target))
    check_plan_file(None if output.dry_run else plan_file, force=output.force)
    report = make(request, options, dry_run=output.dry_run, progress=out.progress())
    if plan_file is not None and not output.dry_run:
        print_stored(out, plan_file, len(report.shards), report)
    elif report.is_unchanged:
        print_unchanged(out, report, _plain(report, target.append))
    else:
        _print_set(out, report, target.append)
    _print_found(out, report, None if output.dry_run else target.report)


def _request(
    sources: Sequence[str], source: SourceOptions, target: TargetOptions, general: GeneralOptions
) -> "Request":
    """Return the library's request for these options. Raises UsageError."""
    from wdscli.plan.request import Request
    from wdscli.selection.values import value_names

    on_duplicate = source.samples.on_duplicate
    return Request(
        sources,
        target.output.output,
        target.output.settings()._replace(values=value_names(target.values)),
        target.cuts.parse(),
        on_error=library_word(target.on_error),
        on_duplicate="error" if on_duplicate == "list" else on_duplicate,
        rekey=None if source.rekey_of_rows else source.rekey,
        trust_addresses=general.trust_addresses,
        **target.tasks._asdict(),
        **target.work._asdict(),
    )


def _options(source: SourceOptions, target: TargetOptions) -> "CreateOptions":
    """Return the library's options for these options. Raises UsageError."""
    from wdscli.ops.create import CreateOptions

    samples = source.samples._asdict()
    del samples["on_duplicate"]
    samples["require"] = [name for text in source.samples.require or () for name in text.split(",") if name]
    return CreateOptions(
        from_list=source.named("list"),
        table=source.table(),
        include=source.include or (),
        exclude=source.exclude or (),
        no_follow=source.no_follow,
        report=target.report,
        append=target.append,
        **samples,
    )


def _plain(report: "CreateReport", growth: bool) -> dict[str, Any]:
    """Return the report as an object for JSON."""
    manifest = report.manifest
    address = None if manifest is None else report.manifest_address
    return {
        "operation": "create",
        "dry_run": manifest is None,
        **facts(report, "samples members"),
        "shards": len(report.shards),
        "kept": report.kept,
        **facts(
            report,
            "unread links_outside bytes=size_bytes skipped left_out dropped incomplete matched renamed renamed_keys "
            "classes oversized",
        ),
        "manifest": shown(address) if address else None,
        "fingerprint": None if manifest is None else manifest.fingerprint,
        **({"set": facts(manifest, "samples bytes=size_bytes")} if growth and manifest else {}),
    }


def _losses(left_out: "Mapping[Unit, Mapping[str, int]]") -> Iterator[str]:
    """Yield a clause for each reason for which rows, samples and fields were left out."""
    units: list[Unit] = ["rows", "samples"]
    for unit in units:
        for reason, count in left_out.get(unit, {}).items():
            yield f"{plural(count, unit[:-1])} left out: {reason}"
    for reason, count in left_out.get("fields", {}).items():
        yield f"{plural(count, 'sample')} {'lacks' if count == 1 else 'lack'} {reason}"


def _print_found(out: Out, report: "CreateReport", lines: str | None) -> None:
    """Print the files, rows and values that were found but were not written, or were written differently. ``lines`` is
    the file that lists them."""
    for glob, count in report.matched.items():
        took = (
            f"took {plural(count, 'file')}"
            if glob.startswith("--include")
            else f"left out {plural(count, 'path')}"
        )
        out.summary(f"{glob} {took}")
    if files := report.left_out.get("files"):
        out.summary(f"skipped: {by_reason(dict(files))}")
    if clauses := list(_losses(report.left_out)):
        out.summary("; ".join(clauses) + (f", see {shown(lines)}" if lines else ""))
    if report.links_outside:
        leads = "link points" if report.links_outside == 1 else "links point"
        out.summary(f"{report.links_outside} {leads} outside the given folder; --no-follow leaves links out")
    print_losses(
        out, {reason: count for reason, count in report.dropped.items() if reason != DUPLICATE_KEY}, {}
    )
    if report.incomplete and "incomplete" not in report.skipped:
        out.summary(f"kept {plural(report.incomplete, 'sample')} without a required field")
    if report.classes is not None:
        kinds = "1 class" if len(report.classes) == 1 else f"{len(report.classes)} classes"
        out.summary(f"labelled {kinds}; the manifest has their names")
    if report.renamed:
        pairs = [f"{old} -> {new}" for new, old in list(report.renamed.items())[:RENAMES_SHOWN]]
        ellipsis = ", ..." if report.renamed_keys > len(pairs) else ""
        out.summary(f"renamed {plural(report.renamed_keys, 'key')}: {', '.join(pairs)}{ellipsis}")


def _print_set(out: Out, report: "CreateReport", growth: bool) -> None:
    """Print the result. A dry run prints one line for each planned shard. With JSON, one object is last."""
    manifest = report.manifest
    if manifest is None:
        rows = [
            (shown(shard.address), shard.samples, shard.members, shard.size_bytes) for shard in report.shards
        ]
        out.listing(("shard", "samples", "members", "bytes"), rows, right=(1, 2, 3))
    if out.json:
        out.object(_plain(report, growth))
    if growth and manifest is not None:
        shards = plural(len(manifest.shards), "shard")
        out.summary(f"the set has {plural(manifest.samples, 'sample')} in {shards} now")
    if report.kept:
        out.summary(f"kept {plural(report.kept, 'shard')} of an earlier run")
    done = "would write" if manifest is None else "wrote"
    total = f"{plural(report.samples, 'sample')} ({plural(report.members, 'file')})"
    total = f"{total} into {plural(len(report.shards), 'shard')}, {human_size(report.size_bytes)}"
    out.done(f"{done} {total}", report.size_bytes, dry_run=manifest is None)
