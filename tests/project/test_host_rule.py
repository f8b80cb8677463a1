"""The loader leaves the process that uses it as it was: over the source, and over a process before and after.

Importing wdscli, making a dataset, iterating it and forking change no signal handler, register no hook, replace nothing
in another library, end no process that is not ours, and look at no caller's frame or bytecode.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from loader_cases import make_set

HOUSE = Path(__file__).parents[2] / "wdscli"
ROOMS_OF_COMMANDS = ("cli", "executors", "run", "ops", "create", "transform", "report", "look", "verify")
"""They run in processes of our own: a user's program does not import them."""
ALLOWED = {
    # What our commands do to their own process.
    "__main__.py": {"_exit", "setitimer", "signal"},
    # The one place that may look at its callers.
    "loader/place/ranks.py": {"_getframe"},
    # Workers of WebLoader, which are ours.
    "loader/torch_loader.py": {"_exit", "signal"},
}
FORBIDDEN = {
    "register_at_fork": "a hook of every fork",
    "_getframe": "a look at a caller",
    "currentframe": "a look at a caller",
    "f_back": "a look at a caller",
    "opname": "a look at a caller's bytecode",
    "_exit": "the end of a process",
    "signal": "a signal handler",
    "setitimer": "a signal",
    "settrace": "a hook of the interpreter",
    "setprofile": "a hook of the interpreter",
    "excepthook": "a hook of the interpreter",
    "default_collate_fn_map": "torch's table of collation",
    "ForkingPickler": "the pickling of everybody's objects",
}
READ_ONLY = {"loader/place/ranks.py": {"f_back"}, "loader/torch_loader.py": {"default_collate_fn_map"}}


def _rooms() -> list[Path]:
    return [path for path in HOUSE.rglob("*.py") if path.relative_to(HOUSE).parts[0] not in ROOMS_OF_COMMANDS]


def test_no_source_of_the_library_changes_its_host() -> None:
    assert {path.name: changes for path in _rooms() if (changes := _changes_of_host(path))} == {}


def _changes_of_host(path: Path) -> list[tuple[str, str]]:
    name = str(path.relative_to(HOUSE))
    allowed = ALLOWED.get(name, set()) | READ_ONLY.get(name, set())
    found = []
    text = path.read_text()
    if not any(word in text for word in (*FORBIDDEN, "__class__", "sys.modules")):
        return found  # to parse all modules takes seconds
    for node in ast.walk(ast.parse(text)):
        used = {
            ast.Attribute: lambda node: [node.attr] if node.attr != "signal" or _is_call(node) else [],
            ast.Name: lambda node: [node.id] if node.id != "signal" else [],
            ast.ImportFrom: lambda node: [alias.name for alias in node.names],
        }.get(type(node), lambda node: [])(node)
        found += [(word, FORBIDDEN[word]) for word in used if word in FORBIDDEN and word not in allowed]
        if isinstance(node, ast.FunctionDef) and node.name == "__class__":
            found.append(("__class__", "a type that lies to isinstance"))
        is_stored = isinstance(node, ast.Subscript) and isinstance(node.ctx, (ast.Store, ast.Del))
        if is_stored and ast.unparse(node.value) == "sys.modules":
            found.append(("sys.modules", "another module under a library's name"))
    return found


def _is_call(node: ast.Attribute) -> bool:
    return ast.unparse(node) == "signal.signal"


PROGRAM = """
import gc, os, signal, sys, threading
hooks = []
os.register_at_fork, real = lambda **given: hooks.append(given), os.register_at_fork

def is_ours(module):
    return str(module or "").partition(".")[0] == "wdscli"

def looks():
    import multiprocessing.reduction as reduction
    import torch.utils.data._utils.collate as collate
    from torch.utils.data import _utils, dataloader
    tables = {
        "pickling": reduction.ForkingPickler._extra_reducers,
        "collation": collate.default_collate_fn_map,
        "collate": vars(collate), "worker": vars(_utils.worker), "loader": vars(dataloader),
        "os": vars(os), "signal": vars(signal), "threading": vars(threading),
    }
    found = {name: {key: id(value) for key, value in table.items()} for name, table in tables.items()}
    found["handlers"] = {number: str(signal.getsignal(number)) for number in signal.valid_signals()}
    found["excepthook"] = {"is": id(sys.excepthook)}
    return found

import torch, torch.utils.data, numpy
if __name__ == "__main__":
    # torch sets a handler of its own when it first starts workers.
    list(torch.utils.data.DataLoader([1], num_workers=1))
    before = looks()
import wdscli.loader as wds

def same(item):
    return item

def iterate(loader):
    return sum(1 for _ in loader)

if __name__ == "__main__":
    address = sys.argv[1]
    data = wds.WebDataset(address, shuffle="window").map(same).batched(4)
    iterate(data)
    for context in ("fork", "forkserver"):
        more = {"num_workers": 1, "multiprocessing_context": context}
        iterate(torch.utils.data.DataLoader(data, batch_size=None, **more))
        iterate(wds.WebLoader(data, **more))
    if not (child := os.fork()):
        os._exit(iterate(data) == 0)
    assert os.waitpid(child, 0)[1] == 0
    wds.IndexedDataset(address)[0]
    after = looks()
    for name in before:
        assert before[name] == after[name], (name, set(before[name].items()) ^ set(after[name].items()))
    ours = [given for given in hooks if any(is_ours(getattr(one, "__module__", "")) for one in given.values())]
    assert not ours, ours
    print("as it was")
"""


def said_by(source: str, folder: Path, *options: str) -> str:
    """What a program that reads a set prints; it must end well."""
    pytest.importorskip("torch")
    program = folder / "program.py"
    program.write_text(source)
    command = [sys.executable, *options, str(program), make_set(folder / "set", 40, 10, 100)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.exhaustive
def test_a_process_is_after_an_iteration_what_it_was_before(tmp_path: Path) -> None:
    assert said_by(PROGRAM, tmp_path, "-W", "ignore") == "as it was\n"


WORKER = """
import os, signal, sys
import torch.utils.data
import wdscli.loader as wds

def look(sample):
    import multiprocessing.reduction as reduction
    import torch.utils.data._utils.collate as collate
    import threading
    mine = [*reduction.ForkingPickler._extra_reducers.values(), *collate.default_collate_fn_map.values()]
    ours = [one for one in mine if str(getattr(one, "__module__", "")).startswith("wdscli")]
    threads = [one.name for one in threading.enumerate() if one.name == "wdscli-trainer"]
    default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return len(ours), len(threads), default

if __name__ == "__main__":
    data = wds.WebDataset(sys.argv[1]).map(look)
    print(set(torch.utils.data.DataLoader(data, batch_size=None, num_workers=1, collate_fn=tuple)))
"""


@pytest.mark.exhaustive
def test_a_worker_of_torchs_own_loader_is_torchs(tmp_path: Path) -> None:
    assert said_by(WORKER, tmp_path) == "{(0, 0, True)}\n"
