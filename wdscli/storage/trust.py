"""What a document that was fetched, or made by somebody else, may name: the rule for addresses that no person typed.

What it is: :func:`shard_address` for the shards of a manifest, :func:`listed_address` for the lines of a list and the
cells of a table, :func:`check_pipe` for commands. How: text alone. What was fetched, manifest or list, may name
what lies beside and below it, and URLs of its own scheme and host. Whatever else it names (a path of this machine,
``..``, standard input, another host) is refused unless the caller trusts it; a command is refused in any case. A
manifest on this machine may also name shards by ``..`` and by URLs, as `wds index -o` writes them, but no absolute
path, standard input or command. A list on this machine is as good as typed. It must not open anything.
"""

from __future__ import annotations

import os
import re

from wdscli.errors import InputError, UsageError
from wdscli.storage.addresses import PIPE, is_local, is_stream, scheme, sibling

NO_PIPE = "WDSCLI_NO_PIPE"
_AUTHORITY = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*://([^/?#]*)")
_PORTS = {"http": ":80", "https": ":443"}
_TYPED = "commands are taken from the command line, from code and from lists of this machine"
_HINT = "if you trust it: --trust-addresses, or trust_addresses=True in code"


def shard_address(manifest: str, name: str, *, trusted: bool = False) -> str:
    """The address of what the manifest at ``manifest`` calls ``name``. Raises InputError for what it may not name."""
    return _named(manifest, name, trusted)


def listed_address(document: str, name: str, *, trusted: bool = False) -> str:
    """The address that a line or a cell of ``document`` (an address itself) names. Raises InputError for what it may
    not name.

    A relative name in a document that was fetched is beside it; in one of this machine it is what it always is, from
    the current folder. What comes from standard input or a command may name anything but commands.
    """
    if is_local(document):
        return name
    if not is_stream(document):
        return _named(document, name, trusted)
    if name.startswith(PIPE) and not trusted:
        raise _refused(document, name, "a command", _HINT)
    return name


def check_pipe(address: str, *, pipes: bool = True) -> None:
    """Raise UsageError for a command where commands are refused: by ``pipes=False``, or WDSCLI_NO_PIPE in the
    environment."""
    if not address.startswith(PIPE):
        return
    if not pipes:
        raise UsageError(
            f"{address} is not run: pipes=False", hint="leave pipes=False out, or name a file or a URL"
        )
    if os.environ.get(NO_PIPE, "") not in ("", "0"):
        raise UsageError(
            f"{address} is not run: {NO_PIPE} is set", hint=f"unset {NO_PIPE}, or name a file or a URL"
        )


def _named(document: str, name: str, trusted: bool) -> str:
    if name.startswith(PIPE):
        raise _refused(document, name, "a command", _TYPED)
    is_path = is_local(name)
    is_absolute = not is_path or name.startswith(("/", "file:", "local:"))
    if not trusted and (what := _why_not(document, name, is_path, is_absolute)):
        raise _refused(document, name, what, _HINT)
    return name if is_absolute else sibling(document, name)


def _why_not(document: str, name: str, is_path: bool, is_absolute: bool) -> str:
    """What is wrong with a name; empty for nothing."""
    if name == "-":
        return "standard input"
    if is_path and is_absolute:
        return "a path of this machine"
    # fsspec reads a::b as one address inside another.
    if "::" in name:
        return "one address inside another"
    # `wds index -o` writes manifests that lie elsewhere than their shards: these name them so.
    if is_local(document):
        return ""
    if ".." in _parts(name):
        return "what lies outside its folder"
    if not is_path and _origin(name) != _origin(document):
        return "another machine, or another bucket"
    return ""


def _parts(name: str) -> list[str]:
    if "%" in name:
        from urllib.parse import unquote

        name = unquote(name)
    return re.split(r"[/\\]", name)


def _origin(address: str) -> tuple[str, str]:
    """Scheme and host (the bucket, in a store), without who logs in and the usual port."""
    found = _AUTHORITY.match(address)
    kind = scheme(address)
    host = found[1] if found else ""
    # Where a backslash stands, some read a slash: then nobody can say which host is meant.
    host = host.rpartition("@")[2].lower() if "\\" not in host else address
    return kind, host.removesuffix(_PORTS.get(kind, "\0"))


def _refused(document: str, name: str, what: str, hint: str) -> InputError:
    return InputError(f"{document} names {what}, {name}, which it may not", hint=hint)
