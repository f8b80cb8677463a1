"""This module matches regular expressions from options within a time limit.

:class:`Expression` is used by ``search(...)`` of ``--where``, by ``--key-rule``, ``--group-by``, ``--include`` and
others. Python's ``re`` decides which expressions are valid. The package ``regex``, which has the same language, does
the matching, because it can be stopped: ``re`` needs years for ``(a+)+$`` and blocks the interpreter. (RE2 needs no
limit, but has neither look-around nor back references.) The limit is :data:`MATCH_SECONDS` of processor time per match,
so that a busy machine causes no error.

This module does not know what is matched.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, AnyStr, Generic

from wdscli.errors import UsageError

MATCH_SECONDS = 5.0
MAX_COPIES = 1_000_000
"""The limit for the product of all ``{N}`` in one expression, since ``regex`` expands them."""
_COUNT = re.compile(r"\{([0-9]+)")


class Expression(Generic[AnyStr]):
    """One expression over text or bytes; picklable. ``option`` is named in messages. Raises UsageError for an invalid
    expression, and when a match takes too long.

    >>> Expression("^n0[0-9]", "--where").search("n01/img7").group()
    'n01'
    """

    def __init__(self, pattern: AnyStr, option: str, flags: int = 0) -> None:
        self.pattern: AnyStr = pattern
        self._option = option
        self._flags = flags
        self._compiled = self._compile()
        self.groups: int = self._compiled.groups
        self.groupindex: dict[str, int] = dict(self._compiled.groupindex)

    def _compile(self) -> Any:
        import warnings

        import regex

        try:
            with warnings.catch_warnings():
                # Both warn of nested sets, a future feature.
                warnings.simplefilter("ignore")
                re.compile(self.pattern, self._flags)
                self._check_counts()
                return regex.compile(self.pattern, self._flags)
        except (re.error, regex.error, RecursionError, OverflowError, MemoryError, ValueError) as error:
            why = str(error) or type(error).__name__
            raise UsageError(f'{self._option}: not a regular expression: "{self._shown()}": {why}') from None

    def _check_counts(self) -> None:
        text = self.pattern if isinstance(self.pattern, str) else self.pattern.decode("latin-1")
        copies = 1
        for count in _COUNT.findall(text):
            copies *= max(1, int(count[:20]))
            if copies > MAX_COPIES:
                raise OverflowError(f"it repeats more than {MAX_COPIES} times")

    def search(self, text: AnyStr) -> Any:
        """The first match in ``text``, or None, as ``re.search``."""
        return self._bounded(self._compiled.search, text)

    def fullmatch(self, text: AnyStr) -> Any:
        """A match of all of ``text``, or None, as ``re.fullmatch``."""
        return self._bounded(self._compiled.fullmatch, text)

    def _bounded(self, match: Any, text: AnyStr) -> Any:
        try:
            return match(text, timeout=MATCH_SECONDS)
        except (TimeoutError, MemoryError):
            shown = text[:40] if isinstance(text, str) else text[:40].decode("utf-8", "replace")
            raise UsageError(
                f'{self._option}: matching "{self._shown()}" takes more than {MATCH_SECONDS:g} seconds over '
                f'"{shown}{"..." if len(text) > 40 else ""}" ({len(text)} characters)',
                hint="avoid a repeat inside a repeat: write a+ for (a+)+, [ab]* for (a|b)*",
            ) from None

    def _shown(self) -> str:
        return self.pattern if isinstance(self.pattern, str) else self.pattern.decode("utf-8", "replace")

    def __reduce__(self) -> tuple[Any, ...]:
        return Expression, (self.pattern, self._option, self._flags)


@lru_cache(maxsize=64)
def expression(pattern: str, option: str) -> Expression[str]:
    """A cached :class:`Expression`, for expressions that are evaluated for every sample."""
    return Expression(pattern, option)
