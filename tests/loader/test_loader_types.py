"""What the annotations of the loader say is what comes; mypy reads the same program with scripts/check."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import typed_training

import wdscli.loader as wds
from wdscli.shards import ShardWriter


@pytest.fixture
def urls(tmp_path: Path) -> str:
    with ShardWriter(f"{tmp_path}/in-%06d.tar", max_count=4) as writer:
        for number in range(10):
            writer.write(f"n{number}", {"cls": b"%d" % number, "txt": b"text"})
    return str(tmp_path)


def test_the_typed_program_gives_what_its_types_say(urls: str) -> None:
    pytest.importorskip("torch")
    key, text, keys, columns, first, batches = typed_training.main(urls)
    assert (key, text, first) == ("n9", b"text", 0)
    assert keys == ["N1", "N3", "N5", "N7", "N9"]
    assert columns == batches == [4, 4, 2]


def test_what_mypy_refuses_python_refuses_with_the_nearest_name(urls: str) -> None:
    with pytest.raises(AttributeError, match="did you mean shuffle"):
        wds.shufle(100)
    for refused in (
        lambda: wds.WebDataset(urls, shufle="window"),
        lambda: wds.WebDataset(urls).decode("pil", hander=print),
        lambda: wds.shuffle(bufsiz=100),
    ):
        with pytest.raises(TypeError, match="unexpected keyword argument"):
            refused()


def test_classes_take_types_when_they_run(urls: str) -> None:
    data: wds.WebDataset[wds.Sample] = wds.WebDataset(urls).decode()
    assert wds.WebDataset[wds.Sample] is not None
    assert type(next(iter(data))) is wds.RawSample is dict


def declarations(module: Any) -> Iterator[tuple[str, ast.FunctionDef, Any]]:
    """Yield the name of each function that a module declares only for type checkers, the declaration, and the function
    that runs: overloads, and methods under ``if TYPE_CHECKING``."""
    pending: list[tuple[ast.AST, str, Any, bool]] = [
        (ast.parse(inspect.getsource(module)), "", module, False)
    ]
    while pending:
        tree, path, owner, is_typing = pending.pop()
        for node in ast.iter_child_nodes(tree):
            if isinstance(node, ast.If):
                pending.append((node, path, owner, ast.unparse(node.test) == "TYPE_CHECKING"))
            elif isinstance(node, ast.ClassDef) and hasattr(owner, node.name):
                running = getattr(owner, node.name)
                if inspect.isclass(running) and running.__module__ == module.__name__:
                    pending.append((node, f"{path}{node.name}.", running, is_typing))
            elif isinstance(node, ast.FunctionDef) and hasattr(owner, node.name):
                is_overload = "overload" in map(ast.unparse, node.decorator_list)
                if is_typing or is_overload:
                    yield path + node.name, node, getattr(owner, node.name)


def parameters(function: ast.FunctionDef) -> dict[str, bool]:
    """Return the names of the parameters, in order, and whether each has a default. Names of positional parameters end
    with ``/``."""
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    required = len(positional) - len(arguments.defaults)
    names = {f"{argument.arg}/": place >= required for place, argument in enumerate(positional)}
    if arguments.vararg:
        names[f"*{arguments.vararg.arg}"] = False
    names |= {
        argument.arg: bool(default) for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults)
    }
    return names | ({f"**{arguments.kwarg.arg}": False} if arguments.kwarg else {})


def test_declarations_for_type_checkers_have_the_arguments_of_the_functions() -> None:
    compared = 0
    for found in pkgutil.walk_packages(wds.__path__, "wdscli.loader."):
        if found.name.endswith("as_webdataset"):
            continue
        for name, declared, function in declarations(importlib.import_module(found.name)):
            [running] = ast.parse(dedent(inspect.getsource(function))).body
            assert isinstance(running, ast.FunctionDef)
            assert parameters(declared) == parameters(running), (found.name, name)
            compared += 1
    assert compared >= 10
