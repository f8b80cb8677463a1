"""This module shows addresses and commands without passwords, tokens and signatures.

Every address, and every text that may contain one, passes :func:`shown` on its way to a screen, a log, a report or a
file. :func:`shown_command` redacts shell commands. :func:`cause_of` redacts exceptions of other packages, whose text
contains addresses too. These functions find URLs in the text and hide their login. They also hide each query value
whose name suggests a secret or that looks like a key. A secret in a path looks like any other name and is not hidden.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

HIDDEN = "***"

_MARK = re.compile(r"://|[?&]|pipe:|(?i:authorization|cookie|bearer |basic )")
"""Matches text that may contain a secret. Every error message is searched; the other patterns are compiled only after a
match."""

# Quotes end a quoted URL, but ' may also be part of a password.
_URL = r"([A-Za-z][A-Za-z0-9+.\-]*)://([^\s\"<>`]+)"
_AUTHORITY_END = r"[/?#\\]"
_PORT = r"\[[^\]]*\](?::[0-9]*)?|[^:]*(?::[0-9]*)?:*"
_QUERY = r"([?&#])([\w.\-~%\[\]$+]+)=([^&#\s\"<>`]+)"
_BARE_QUERY = r"\?([A-Za-z0-9+/_%~.\-]+)(?=$|[\s\"'&#<>`):,;\]}])"
_TAIL = r"[:,.;)\]}']*$"
_OPAQUE = r"(?=.*[0-9])(?=.*[A-Za-z])[A-Za-z0-9+/_=%~.,:\-]{20,}"
_FILE_NAME = r".*\.[A-Za-z][A-Za-z0-9]{1,6}"
_SECRET = (
    r"(?i)sig|token|secret|pass|pwd|^pw$|cred|auth|key|sess|jwt|hmac|policy|code|ticket|bearer|cookie|md5|hash|nonce"
    r"|x-(amz|goog|oss|ms|cos)-"
)
PLAIN_LOGINS: set[str] = set()
"""Schemes whose login is the name of a user or a container; :mod:`wdscli.storage.kinds` adds them. On the web a login
without a password is a token."""

_VALUE = r"(?:'[^']*'|\"(?:[^\"\\]|\\.)*\"|[^\s'\"]+)+"
_WORD = (
    r"[\w.\-]*(?:token|secret|passw|passphrase|pwd|credential|signature|authorization|cookie|session|"
    r"(?:api|access|account|private|auth|sas)[_\-]?key)[\w.\-]*"
)
_NAMED_VALUES = (
    rf"(?<!\S)(-H|--header|--proxy-header)(\s*=?\s*)({_VALUE})",  # curl -H 'Name: value', --header="Name: value"
    rf"(?<!\S)(-u|-U|--user|--proxy-user)(\s*=?\s*)({_VALUE})",  # curl -u name:password
)
_VALUES = (
    rf"(?i)(--?{_WORD})(\s*=\s*|\s+)((?!-){_VALUE})",
    rf"(?i)({_WORD})(\s*=\s*)({_VALUE})",
    rf"(sshpass)(\s+-p\s*)({_VALUE})",
)
_HEADER = (
    r"(?i)\b((?:proxy-)?authorization|(?:set-)?cookie|private-token|[\w\-]*api-?key|x-[\w\-]*(?:token|key|secret))"
    r"(['\"]?\s*:\s*['\"]?)(?!\*\*\*)([^'\"\n]+)"
)
_SCHEME = r"\b(Bearer|Basic)(\s+)[A-Za-z0-9._~+/=\-]{6,}"


def shown(text: str) -> str:
    """Return ``text`` with ``***`` in place of the secrets in all its addresses.

    >>> shown("https://me:pw@host/a.tar?part=7&X-Amz-Signature=0a1b")
    'https://***@host/a.tar?part=7&X-Amz-Signature=***'
    >>> shown("pipe:curl -sH 'Authorization: Bearer 0a1b2c' https://host/a.tar")
    "pipe:curl -sH 'Authorization: ***' https://host/a.tar"
    >>> import wdscli.storage
    >>> shown("abfs://container@account/a.tar"), shown("a.tar")
    ('abfs://container@account/a.tar', 'a.tar')
    """
    if _MARK.search(text) is None:
        return text
    text = re.sub(_URL, _without_login, text)
    text = re.sub(_QUERY, _without_value, text)
    text = re.sub(_BARE_QUERY, lambda found: f"?{HIDDEN}" if _is_opaque(found[1]) else found[0], text)
    text = re.sub(_SCHEME, rf"\1\2{HIDDEN}", text)
    text = re.sub(_HEADER, rf"\1\2{HIDDEN}", text)
    begin = text.find("pipe:")
    return text if begin < 0 else text[:begin] + _command(text[begin:])


def shown_command(command: str) -> str:
    """Return a shell command without the secrets in its addresses, and without the values of options, headers and
    variables whose names suggest a secret."""
    return _command(shown(command))


def shown_in(value: Any) -> Any:
    """Return a JSON value in which :func:`shown` has redacted every text."""
    if isinstance(value, str):
        return shown(value)
    if isinstance(value, Mapping):
        return {key: shown_in(one) for key, one in value.items()}
    return [shown_in(one) for one in value] if isinstance(value, (list, tuple)) else value


def _without_login(found: re.Match[str]) -> str:
    kind, rest = found[1], found[2]
    cut = rest.find("/") if "/" in rest else len(rest)
    if "@" not in rest[:cut]:
        end = re.search(_AUTHORITY_END, rest)
        cut = len(rest) if end is None else end.start()
        if "@" in rest and not re.fullmatch(_PORT, rest[:cut]):
            # This is not a port, so it is a password with a slash.
            cut = len(rest)
    host = rest[:cut]
    login, at, host = host.rpartition("@")
    if at and _is_secret_login(kind.lower(), login):
        login = HIDDEN
    # A second address may follow the first: a.tar::https://..., or ?url=https://...
    return f"{kind}://{login}{at}{host}{re.sub(_URL, _without_login, rest[cut:])}"


def _is_secret_login(kind: str, login: str) -> bool:
    return ":" in login or "%3a" in login.lower() or kind not in PLAIN_LOGINS


def _without_value(found: re.Match[str]) -> str:
    mark, name, value = found[1], found[2], found[3]
    tail = re.search(_TAIL, value)
    bare = value[: tail.start()] if tail else value
    if not bare or not (
        re.search(_SECRET, name) or re.search(_SECRET, bare.partition("=")[0]) or _is_opaque(bare)
    ):
        return found[0]
    return f"{mark}{name}={HIDDEN}{value[len(bare) :]}"


def _is_opaque(value: str) -> bool:
    """Return whether a value looks like a key rather than a word, a number or a file's name."""
    return bool(re.fullmatch(_OPAQUE, value)) and not re.fullmatch(_FILE_NAME, value)


def _command(text: str) -> str:
    for pattern in _NAMED_VALUES:
        text = re.sub(pattern, _hide_after_colon, text)
    for pattern in _VALUES:
        text = re.sub(pattern, rf"\1\2{HIDDEN}", text)
    return text


def _hide_after_colon(found: re.Match[str]) -> str:
    """Keep the name of ``Name: value`` and ``name:password``."""
    quote = found[3][0] if found[3][0] in "'\"" else ""
    name, colon, value = found[3].strip("'\"").partition(":")
    if not colon:
        return found[0]
    space = " " if value.startswith(" ") else ""
    return f"{found[1]}{found[2]}{quote}{name}:{space}{HIDDEN}{quote}"


def cause_of(error: BaseException) -> BaseException:
    """The exception to use as the cause of one of wdscli's errors: ``error`` itself, or a redacted copy of it and its
    causes. A copy is made if one of them contains a secret. It is also made for a class of another package, which may
    hold the whole request and may be unknown in another process."""
    return _copy(error, set()) if _tells(error, set()) else error


def _earlier(error: BaseException) -> BaseException | None:
    """The exception that a traceback shows before this one."""
    return error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _tells(error: BaseException, seen: set[int]) -> bool:
    if id(error) in seen:
        return False
    seen.add(id(error))
    earlier = _earlier(error)
    return (
        type(error).__module__.partition(".")[0] not in ("builtins", "concurrent", "wdscli")
        or any(shown(text) != text for text in (str(error), repr(error)))
        or (earlier is not None and _tells(earlier, seen))
    )


def _copy(error: BaseException, seen: set[int]) -> BaseException:
    text = f"{type(error).__qualname__}: {shown(str(error))}"
    copy: BaseException = Exception(text)
    for kind in (FileNotFoundError, PermissionError, TimeoutError, ConnectionError, OSError, ValueError):
        if isinstance(error, kind):
            copy = kind(text)
            break
    seen.add(id(error))
    earlier = _earlier(error)
    copy.__cause__ = None if earlier is None or id(earlier) in seen else _copy(earlier, seen)
    copy.__suppress_context__ = True
    return copy.with_traceback(error.__traceback__)
