"""What decoders and encoders share: a field's extension, and packages that may not be there.

What it is: :func:`extension` and :func:`needed`. It must not know of samples or datasets.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from wdscli.errors import UsageError

INSTALL_IMAGES = "'wdscli[images]'"


def extension(key: str) -> str:
    """What follows the last dot, in lower case.

    >>> extension(".seg.PNG"), extension("json"), extension("x.")
    ('png', 'json', '')
    """
    return key[key.rfind(".") + 1 :].lower()


def needed(module: str, what: str, install: str) -> Any:
    """A module that is not always there. Raises UsageError with the command that installs it."""
    try:
        return import_module(module)
    except ImportError as error:
        missing = module.partition(".")[0]
        raise UsageError(
            f"{what} needs {missing}, which cannot be imported: {error}", hint=f"pip install {install}"
        ) from error
