"""``wds map``: parse the options, transform the samples, and report."""

from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, get_args

from wdscli.cli.options import (
    Column,
    CutOptions,
    EngineOptions,
    GeneralOptions,
    InputOptions,
    OnError,
    OutputOptions,
    Positive,
    ReorderOptions,
    Shards,
    TaskOptions,
    Text,
    Texts,
    Values,
    grouped,
    library_word,
    panel,
)
from wdscli.codecs.kinds import PictureFormat
from wdscli.errors import UsageError

if TYPE_CHECKING:
    from wdscli.transform.transform import Kind, OnFailure, Transform

_FORMATS = get_args(PictureFormat)
_MODES = ("keep_ratio", "keep_ratio_largest", "center_crop", "border")
_NEAREST = "nearest="
_RESIZE_HINT = f"--resize 256, or --resize 256,MODE with a mode of {', '.join(_MODES)}"


@panel("Transformation")("""
    --resize PIXELS,...  Resize pictures to PIXELS on the shorter side. Smaller pictures grow. A mode after a comma
        changes this. The mode keep_ratio_largest resizes the longer side. The mode center_crop resizes the shorter
        side, then crops to a square. The mode border resizes the longer side, then pads to a square with white. The
        word shrink leaves smaller pictures unchanged. The word nearest=FIELD is for a field of masks: each new pixel is
        one of the old pixels, and the field keeps its format. Example: 256,center_crop,nearest=seg.png.
    --format FORMAT[:N]  Encode pictures in this format: jpg, png, webp. N is the quality of JPEG and WebP, from 1 to
        100 (default: 95). :N alone keeps the format. Default: pictures keep their format. Repeatable.
    --only FIELD,...  Change only the pictures in these fields. Globs are allowed. Default: all pictures. If a sample
        has several pictures, and one may be a mask (not jpg or webp), the option or nearest=FIELD is required.
    --cmd CMD  Run CMD for each sample. CMD runs in a folder that contains the sample's fields as files named
        sample.FIELD. When CMD ends, the files in this folder are the new sample. If the folder is empty, the sample
        is dropped.
    --filter FIELD CMD  Pipe the payload of FIELD through CMD.
    --python FUNCTION  Call module:function, or file.py:function. Its argument is the sample as a dictionary. It
        returns a dictionary, None, or several dictionaries.
    +--rename-by-content  Give each picture field the name of the format it holds: a jpg that holds PNG becomes png.
    +--new-fields  Write only fields that the input sample lacks. The command `wds merge --join left` joins them to the
        input.
    +--multi  With --cmd: the files sample-NAME.FIELD become one sample for each NAME.
    +--batch N  With --cmd and --python: N samples per call.
    """)
class MapOptions(NamedTuple):
    """The options that choose the transformation of each sample."""

    cmd: Text = None
    filter: tuple[str, str] | None = None
    python: Text = None
    rename_by_content: bool = False
    new_fields: bool = False
    multi: bool = False
    batch: Positive = None
    resize: Texts = None
    format: Texts = None
    only: Texts = None

    def parse(self, *, timeout: float | None, on_failure: "OnFailure") -> "Transform":
        """Return the library's transform for these options. Raises UsageError for contradicting options."""
        from wdscli.transform.transform import Transform

        picture = self._picture()
        kind = self._kind(picture)
        field, command = self.filter or ("", self.cmd or self.python or "")
        common = Transform(kind, command, field, self.batch or 1, self.multi, on_failure, timeout)
        common = common._replace(new_fields=self.new_fields)
        if kind == "resize" and "size" not in picture:
            picture["mode"] = "no"
        return common._replace(**picture).checked()

    def _kind(self, picture: dict[str, Any]) -> "Kind":
        """Return the kind of the transform. ``picture`` has its fields for pictures. Raises UsageError for no kind, for
        several kinds, and for an option of another kind."""
        kinds: dict[Kind, object] = {
            "cmd": self.cmd,
            "filter": self.filter,
            "python": self.python,
            "resize": True if "size" in picture or "format" in picture else None,
            "rename-by-content": self.rename_by_content or None,
        }
        ways = [kind for kind, option in kinds.items() if option is not None]
        if len(ways) != 1:
            what = f"--{ways[0]} and --{ways[1]} exclude each other" if ways else "no transform is given"
            hint = (
                "give one of --cmd, --filter, --python, --resize, --column; to select samples, use wds split"
            )
            raise UsageError(what, hint=hint)
        for option, value, goes_with in (
            ("--multi", self.multi, ("cmd",)),
            ("--batch", self.batch, ("cmd", "python")),
            ("--format :N", "quality" in picture, ("resize",)),
            ("--resize shrink", "only_if_bigger" in picture, ("resize",)),
            ("--only", self.only, ("resize",)),
            ("--new-fields", self.new_fields, ("cmd", "python", "resize")),
        ):
            if value and ways[0] not in goes_with:
                raise UsageError(f"{option} needs {' or '.join(f'--{way}' for way in goes_with)}")
        return ways[0]

    def _picture(self) -> dict[str, Any]:
        """Return the transform's fields for resizing and encoding pictures. Raises UsageError."""
        picture = self._size()
        if self.resize and "size" not in picture:
            raise UsageError("--resize needs a number of pixels", hint=_RESIZE_HINT)
        for text in self.format or ():
            form, _, quality = text.partition(":")
            if (form and form not in _FORMATS) or (quality and not quality.isdecimal()):
                raise UsageError(
                    f"--format {text}: no such format",
                    hint=f"{', '.join(_FORMATS)}; a quality may follow: jpg:90",
                )
            picture |= {"format": form} if form else {}
            picture |= {"quality": int(quality)} if quality else {}
        if self.only:
            picture["only"] = ",".join(self.only)
        return picture

    def _size(self) -> dict[str, Any]:
        """Return the transform's fields for resizing. Raises UsageError."""
        size: dict[str, Any] = {}
        for text in self.resize or ():
            for word in text.split(","):
                name = _name_of(word)
                if name is None:
                    raise UsageError(
                        f"--resize {text}: expected PIXELS, a mode, shrink, or nearest=FIELD",
                        hint=_RESIZE_HINT,
                    )
                if name in ("size", "mode") and name in size:
                    raise UsageError(
                        f"--resize takes only one size and one mode, so {word} cannot be added",
                        hint="--resize 256,border",
                    )
                if name == "nearest":
                    size[name] = ",".join(filter(None, [size.get(name), word.removeprefix(_NEAREST)]))
                else:
                    size[name] = int(word) if name == "size" else name == "only_if_bigger" or word
        return size


def _name_of(word: str) -> str | None:
    """Return the transform's field for a word of --resize, or None for an unknown word."""
    if word.startswith(_NEAREST) and word != _NEAREST:
        return "nearest"
    return {"shrink": "only_if_bigger"}.get(word) or (
        "mode" if word in _MODES else "size" if word.isdecimal() else None
    )


@panel("Errors")("""
    --on-error  Failed call: fail, skip the sample, or keep it. With keep, the sample is written unchanged. With skip,
        damaged samples are skipped too.
    """)
class MapRunOptions(NamedTuple):
    """The options about the new shards: their samples, their sizes, and how they are made."""

    cuts: CutOptions
    tasks: TaskOptions
    work: Annotated[EngineOptions, "without strategy"]
    inputs: InputOptions
    column: Column = None
    on_error: Literal["error", "skip", "keep"] = "error"


@grouped
def map(
    *,
    shards: Shards,
    output: OutputOptions,
    values: Values = None,
    what: MapOptions,
    run: MapRunOptions,
    general: GeneralOptions,
) -> None:
    """Transform samples with a command or a Python function, or resize pictures.

    Samples keep their order and keys. Each input shard becomes one output shard, unless a shard size is given. {name}
    in OUT is the name of the input shard.

    Examples:

        wds map shards/ -o 'small/{name}.tar' --resize 256 --format webp
        wds map shards/ -o 'out-%06d.tar' --cmd 'md5sum sample.jpg > sample.md5'
        wds map shards/ -o 'out-%06d.tar' --filter txt 'tr a-z A-Z'
        wds map shards/ -o 'out-%06d.tar' --python clean.py:keep_large
    """
    from wdscli.cli.reordering import read_options, reorder
    from wdscli.ops.map import map_order
    from wdscli.selection.values import value_names

    on_failure = library_word(run.on_error)
    only_new_fields = run.column and what == MapOptions() and on_failure != "keep"
    timeout = general.network.timeout
    transform = None if only_new_fields else what.parse(timeout=timeout, on_failure=on_failure)
    on_error: OnError = "skip" if run.on_error == "skip" else "error"
    options = ReorderOptions(run.cuts, run.tasks, run.work, run.inputs, on_error, general)
    out, request = read_options(shards, output, options, column=run.column)
    request = request._replace(settings=request.settings._replace(values=value_names(values)))
    if output.dry_run and run.cuts.max_count is not None and transform and transform.may_change_counts:
        out.summary("--max-count counts new samples: there may be fewer or more shards than these")
    with map_order(request, transform) as (request, order):
        reorder(out, request, order, dry_run=output.dry_run)
