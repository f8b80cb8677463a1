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

_MARK = r"://|[?&]|pipe:|(?i:authorization|cookie|bearer |basic )"
"""Matches text that may contain a secret. Every error message is searched for it, and for the others only after a
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
    if re.search(_MARK, text) is None:
        return text
    text = re.sub(_URL, _without_login, text)
    text = re.sub(_QUERY, _without_value, text)
    text = re.sub(_BARE_QUERY, lambda match: f"?{HIDDEN}" if _is_opaque(match[1]) else match[0], text)
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
        return {key: shown_in(inner) for key, inner in value.items()}
    return [shown_in(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def _without_login(match: re.Match[str]) -> str:
    kind, after_scheme = match[1], match[2]
    cut = after_scheme.find("/") if "/" in after_scheme else len(after_scheme)
    if "@" not in after_scheme[:cut]:
        end = re.search(_AUTHORITY_END, after_scheme)
        cut = len(after_scheme) if end is None else end.start()
        if "@" in after_scheme and not re.fullmatch(_PORT, after_scheme[:cut]):
            # This is not a port, so it is a password with a slash.
            cut = len(after_scheme)
    host = after_scheme[:cut]
    login, at_sign, host = host.rpartition("@")
    if at_sign and _is_secret_login(kind.lower(), login):
        login = HIDDEN
    # A second address may follow the first: a.tar::https://..., or ?url=https://...
    return f"{kind}://{login}{at_sign}{host}{re.sub(_URL, _without_login, after_scheme[cut:])}"


def _is_secret_login(kind: str, login: str) -> bool:
    return ":" in login or "%3a" in login.lower() or kind not in PLAIN_LOGINS


def _without_value(match: re.Match[str]) -> str:
    mark, name, value = match[1], match[2], match[3]
    tail = re.search(_TAIL, value)
    bare = value[: tail.start()] if tail else value
    if not bare or not (
        re.search(_SECRET, name) or re.search(_SECRET, bare.partition("=")[0]) or _is_opaque(bare)
    ):
        return match[0]
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


def _hide_after_colon(match: re.Match[str]) -> str:
    """Keep the name of ``Name: value`` and ``name:password``."""
    quote = match[3][0] if match[3][0] in "'\"" else ""
    name, colon, value = match[3].strip("'\"").partition(":")
    if not colon:
        return match[0]
    space = " " if value.startswith(" ") else ""
    return f"{match[1]}{match[2]}{quote}{name}:{space}{HIDDEN}{quote}"


def cause_of(error: BaseException) -> BaseException:
    """The exception to use as the cause of one of wdscli's errors: ``error`` itself, or a redacted copy of it and its
    causes. A copy is made if one of them contains a secret. It is also made for a class of another package, which may
    hold the whole request and may be unknown in another process."""
    return _copy(error, set()) if _tells(error, set()) else error


def _earlier(error: BaseException) -> BaseException | None:
    """The exception that a traceback shows before this one."""
    return error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _tells(error: BaseException, visited: set[int]) -> bool:
    if id(error) in visited:
        return False
    visited.add(id(error))
    earlier = _earlier(error)
    return (
        type(error).__module__.partition(".")[0] not in ("builtins", "concurrent", "wdscli")
        or any(shown(text) != text for text in (str(error), repr(error)))
        or (earlier is not None and _tells(earlier, visited))
    )


def _copy(error: BaseException, visited: set[int]) -> BaseException:
    text = f"{type(error).__qualname__}: {shown(str(error))}"
    copy: BaseException = Exception(text)
    for kind in (FileNotFoundError, PermissionError, TimeoutError, ConnectionError, OSError, ValueError):
        if isinstance(error, kind):
            copy = kind(text)
            break
    visited.add(id(error))
    earlier = _earlier(error)
    copy.__cause__ = None if earlier is None or id(earlier) in visited else _copy(earlier, visited)
    copy.__suppress_context__ = True
    return copy.with_traceback(error.__traceback__)
