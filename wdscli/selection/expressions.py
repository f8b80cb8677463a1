"""Regular expressions that a person typed, matched within bounds.

What it is: :class:`Expression`, what ``search(...)`` of ``--where``, ``--key-rule``, ``--group-by``, ``--include`` and
their like match with. How: what an expression may be, Python's ``re`` says; the matching is done by the package
``regex``, which has the same language and can be stopped, because ``re`` goes on for years over ``(a+)+$`` and holds
the interpreter meanwhile. (RE2 needs no such bound and has neither look-around nor back references.) One match may take
:data:`MATCH_SECONDS` of processor time, so that a busy machine does not stop what is right.

It must not know what is matched.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, AnyStr, Generic

from wdscli.errors import UsageError

MATCH_SECONDS = 5.0
MAX_COPIES = 1_000_000
"""What ``{N}`` may repeat, all of them in one expression multiplied: ``regex`` writes repeats out."""
_COUNT = re.compile(r"\{([0-9]+)")


class Expression(Generic[AnyStr]):
    """One expression over text or bytes; picklable. ``option`` is what messages name. Raises UsageError for one that is
    none, and when a match takes too long.

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
                # Of sets in sets, which only later versions of either will have.
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
                hint="a repeat in a repeat tries every way to part the text: (a+)+ is a+, (a|b)* is [ab]*",
            ) from None

    def _shown(self) -> str:
        return self.pattern if isinstance(self.pattern, str) else self.pattern.decode("utf-8", "replace")

    def __reduce__(self) -> tuple[Any, ...]:
        return Expression, (self.pattern, self._option, self._flags)


@lru_cache(maxsize=64)
def expression(pattern: str, option: str) -> Expression[str]:
    """:class:`Expression`, compiled once for who has it in text that is worked out again and again."""
    return Expression(pattern, option)
