"""wdscli: make, look at, check, reorder and load WebDataset shard sets."""

__version__ = "0.3.0"


def version_line() -> str:
    """Return the line that ``wds --version`` prints, without its end: the version, and which of the two cores runs."""
    return f"wdscli {__version__} ({'compiled' if _has_core() else 'plain Python'} core)"


def _has_core() -> bool:
    """Return whether the compiled core can be loaded. It is loaded by its path, because importing the package around it
    would take longer than printing one line."""
    import os
    import sys
    from importlib.machinery import PathFinder

    core = "wdscli.tar._core"
    if os.environ.get("WDSCLI_PURE", "") not in ("", "0"):
        return False
    if core in sys.modules:
        return True
    spec = PathFinder.find_spec(core, [os.path.join(os.path.dirname(__file__), "tar")])
    try:
        return spec is not None and spec.loader is not None and spec.loader.create_module(spec) is not None
    except ImportError:
        return False
