"""``split``: cut a set into shards of another size, or divide it into parts by ratio, by a field, or by a map of keys.

:func:`split_order` makes the :class:`~wdscli.plan.orders.Order` of :class:`SplitOptions` (:mod:`wdscli.plan.split`).
Options that contradict each other are refused here, before anything is read. :mod:`wdscli.plan.plan` makes the plan.
"""

from __future__ import annotations

from collections.abc import Sequence

from wdscli.errors import UsageError
from wdscli.plan.cut import FIELD, Outputs, checked_part
from wdscli.plan.orders import InputOrder, Order
from wdscli.plan.request import Request
from wdscli.plan.split import (
    BY_KEY,
    FamilyNames,
    FamilyOrder,
    GroupDigests,
    MapOrder,
    OptionValue,
    RatioOrder,
    SplitOptions,
    field_or_pattern,
    parse_ratio,
    read_key_map,
)
from wdscli.selection.where import Value
from wdscli.storage import addresses_of

__all__ = ["SplitOptions", "split_order"]

_OF_RATIO = ("group_by", "stratify")


def split_order(request: Request, options: SplitOptions) -> Order:
    """Return the order for ``options``. Raises UsageError, also if the output's name does not fit, and
    OutputExistsError if a known part already exists."""
    ways = [name for name in ("ratio", "by", "by_map") if getattr(options, name) not in (None, ())]
    if len(ways) > 1:
        raise UsageError(
            f"{_option(ways[0])} and {_option(ways[1])} exclude each other", hint="give one of them"
        )
    _check_fit(request, options, ways)
    if not ways:
        return InputOrder("split")
    if options.ratio is not None:
        return _ratio_order(request, options)
    fallback = None if options.missing in ("error", "drop") else checked_part(options.missing)
    if options.by is not None:
        missing = options.missing if fallback is None else "drop"
        value = Value.of_payloads(options.by, "--by")
        chosen = OptionValue(value, "--by", missing, request.on_error == "skip")
        return FamilyOrder(options, FamilyNames(chosen, fallback))
    files = addresses_of(options.by_map, "--by")
    if "-" in files and "-" in request.inputs:
        raise UsageError("standard input cannot hold both the map and a shard", hint="--by @FILE")
    return MapOrder(options, read_key_map(files))


def _check_fit(request: Request, options: SplitOptions, ways: Sequence[str]) -> None:
    """Raise UsageError for an option without the other option that it needs, and for an output name that does not
    fit."""
    if ways != ["ratio"]:
        for name in _OF_RATIO:
            if getattr(options, name) is not None:
                raise UsageError(f"{_option(name)} needs --ratio", hint="--ratio train=0.9,val=0.1")
    if not ways and options.missing != "error":
        raise UsageError(
            "--missing needs --ratio or --by",
            hint="--by FIELD, or --ratio train=0.9,val=0.1 --stratify FIELD",
        )
    outputs = Outputs(request.output, request.settings)
    if ways and not outputs.has_parts:
        raise UsageError(
            f"{request.output} is for one set, but {_option(ways[0])} makes several sets",
            hint=f"write {FIELD} where the part's name goes: -o '{FIELD}-%06d.tar' or -o '{FIELD}/%06d.tar'",
        )
    if outputs.has_parts and not ways:
        raise UsageError(
            f"{FIELD} in {request.output} is the name of a part, but no option makes parts",
            hint="make parts with --ratio train=0.9,val=0.1, --by FIELD or --by @FILE",
        )


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _ratio_order(request: Request, options: SplitOptions) -> RatioOrder:
    if options.missing not in ("error", "drop"):
        raise UsageError(
            f"--missing {options.missing} needs --by", hint="with --ratio, --missing is error or skip"
        )
    shares = parse_ratio(options.ratio or "")
    outputs = Outputs(request.output, request.settings, may_exist=request.resume or request.if_changed)
    outputs.check([share.part for share in shares], ())
    missing, lenient = options.missing, request.on_error == "skip"
    group = BY_KEY
    if options.group_by is not None:
        group = OptionValue(field_or_pattern(options.group_by, "--group-by"), "--group-by", missing, lenient)
    kind = None
    if options.stratify is not None:
        kind = OptionValue(Value.of_payloads(options.stratify, "--stratify"), "--stratify", missing, lenient)
    keys_change = request.rekey is not None or request.on_duplicate == "rekey"
    # A row has the hash of the new key. Parts depend on the old key, so that a new key moves no sample to another part.
    plain = options.group_by is None and kind is None and not keys_change
    return RatioOrder(options, shares, None if plain else GroupDigests(group, kind), options.seed)
