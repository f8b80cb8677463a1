"""The part of torch's types that scripts/check needs, so that mypy need not read torch itself."""

from typing import Any

def __getattr__(name: str) -> Any: ...
