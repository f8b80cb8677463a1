"""Run code that was written for webdataset with wdscli's loader, after one line: ``import
wdscli.loader.as_webdataset``.

After this import, ``import webdataset`` imports wdscli's modules: ``webdataset`` has the names of :mod:`wdscli.loader`,
``webdataset.filters`` is :mod:`wdscli.loader.compat.filters`, and so on. The following commands run an unchanged
program in the same way::

    python -m wdscli.loader.as_webdataset train.py ARGUMENTS
    python -m wdscli.loader.as_webdataset -m package.train ARGUMENTS

The module installs an import finder in front of Python's own. Functions and classes keep their own names, so a process
can unpickle them without this module. Processes that ``multiprocessing`` spawns install the finder before they import
the program. If a launcher starts the program again by its name, the program itself needs the import. This module does
not know the purpose of the names.
"""

from __future__ import annotations

import multiprocessing.spawn
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import wraps
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from wdscli.errors import UsageError
from wdscli.loader.compat import INSTEAD, lacking

NAME = "webdataset"
_MODULES = """
autodecode cache compat extradatasets filters gopen handlers mix pipeline pytorch shardlists tariterators utils
writer
"""
MODULES = tuple(_MODULES.split())
VERSION = "1.0.2"
"""The version of webdataset whose names this module provides."""
_HOME = "wdscli.loader.compat"


class _Face(ModuleType):
    """The module that programs import as ``webdataset``. The module has the names of the loader, and loads other
    modules at their first use."""

    __version__ = VERSION
    __path__: list[str]

    def __getattr__(self, name: str) -> Any:
        import wdscli.loader

        # In webdataset too, wds.gopen is the function, not the module of that name.
        if name in MODULES and name != "gopen":
            return import_module(f"{NAME}.{name}")
        if name == "__all__":
            return sorted({*dir(wdscli.loader), *MODULES})
        return getattr(wdscli.loader, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "gopen" and isinstance(value, ModuleType):
            return  # importing webdataset.gopen must not replace the function gopen
        super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return [*self.__all__, "__version__"]


class _Loader(Loader):
    """Returns wdscli's module, unchanged, for a module of webdataset."""

    _spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        if spec.name == NAME:
            import wdscli.loader

            # Like webdataset, import torch: then all datasets made later are IterableDatasets, and programs rely on
            # that.
            with suppress(ImportError):
                import_module("torch.utils.data")
            face = _Face(NAME, wdscli.loader.__doc__)
            face.__path__ = []
            return face
        module = import_module(f"{_HOME}.{spec.name.rpartition('.')[2]}")
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # Python has replaced the module's own spec by the spec of the alias.
        if self._spec is not None:
            module.__spec__ = self._spec


class _Finder(MetaPathFinder):
    """Finds webdataset and its modules in wdscli."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        top, _, name = fullname.partition(".")
        if top != NAME:
            return None
        if name and name not in MODULES:
            if name in INSTEAD:
                lacking(NAME, name)
            raise ModuleNotFoundError(
                f"{fullname} does not exist in wdscli.loader.as_webdataset, which has {', '.join(MODULES)}",
                name=fullname,
            )
        return ModuleSpec(fullname, _Loader(), is_package=not name)


class _Installed:
    """Installs the alias in a process that unpickles this object, before other objects are unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Unpickling calls the builtin exec: a spawned process may find this module only after sys.path is set.
        return exec, (f"import sys; sys.path[:] = {sys.path!r}; import {__spec__.name}",)


def install() -> None:
    """Make ``import webdataset`` import wdscli's loader, in this process and in processes that it spawns. A second call
    does nothing. Raises UsageError if the original webdataset is already imported."""
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    found = sys.modules.get(NAME)
    if found is not None:
        raise UsageError(
            f"webdataset is already imported, from {getattr(found, '__file__', 'somewhere')}",
            hint="import wdscli.loader.as_webdataset first in the program",
        )
    sys.meta_path.insert(0, _Finder())
    # A spawned process loads its preparation data before it imports the program.
    original = multiprocessing.spawn.get_preparation_data

    @wraps(original)
    def get_preparation_data(name: str) -> dict[str, Any]:
        return {"as_webdataset": _Installed(), **original(name)}

    multiprocessing.spawn.get_preparation_data = get_preparation_data


def main(arguments: list[str]) -> None:
    """Run a program, or with ``-m`` a module, with wdscli's webdataset. Raises the errors of the program."""
    from runpy import run_module, run_path

    is_module = arguments[:1] == ["-m"]
    del arguments[: int(is_module)]
    if not arguments or arguments[0].startswith("-"):
        sys.exit("usage: python -m wdscli.loader.as_webdataset [-m MODULE | PROGRAM] ARGUMENTS")
    install()
    sys.argv[:] = arguments
    if is_module:
        sys.path[0] = ""
        run_module(arguments[0], run_name="__main__", alter_sys=True)
    else:
        from pathlib import Path

        sys.path[0] = str(Path(arguments[0]).resolve().parent)
        run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    # Python runs this file as __main__, but the program imports this file by its name. So the second module must
    # install the finder.
    import_module(__spec__.name).main(sys.argv[1:])
else:
    install()
