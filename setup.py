"""What pyproject.toml cannot say: the compiled core, which is optional.

Without a C compiler everything is installed all the same, gives the same bytes and is slower; `wds --version` says
which of the two runs. One wheel serves every Python from 3.10 on that has the limited API: other implementations and
builds without the global lock have not, and run the plain path.
"""

import sys
import sysconfig

from setuptools import Extension, setup

core = Extension(
    "wdscli.tar._core",
    ["wdscli/tar/_core.c"],
    extra_compile_args=["-O3"],
    optional=True,
    py_limited_api=True,
)
if sys.implementation.name == "cpython" and not sysconfig.get_config_var("Py_GIL_DISABLED"):
    setup(ext_modules=[core], options={"bdist_wheel": {"py_limited_api": "cp310"}})
else:
    setup()
