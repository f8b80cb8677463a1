"""What pyproject.toml cannot say: the compiled core, which is optional.

Without a C compiler everything is installed all the same, gives the same bytes and is slower; `wds --version` says
which of the two runs. One wheel serves every Python from 3.10 on.
"""

from setuptools import Extension, setup

core = Extension(
    "wdscli.tar._core",
    ["wdscli/tar/_core.c"],
    extra_compile_args=["-O3"],
    optional=True,
    py_limited_api=True,
)
setup(ext_modules=[core], options={"bdist_wheel": {"py_limited_api": "cp310"}})
