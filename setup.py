"""What pyproject.toml cannot say: the compiled core, which is optional.

Without a C compiler everything is installed all the same, gives the same bytes and is slower; `wds --version` says
which of the two runs. With one, a wheel serves every Python from 3.10 on that has the limited API: other
implementations and builds without the global lock have not, and run the plain path.
"""

import os
import sys
import sysconfig

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel

core = Extension(
    "wdscli.tar._core",
    ["wdscli/tar/_core.c"],
    extra_compile_args=["-O3"],
    optional=True,
    py_limited_api=True,
)


class Wheel(bdist_wheel):
    """Names a wheel without the core `py3-none-any`, so that it is not taken for one that has it."""

    def run(self) -> None:
        self.run_command("build")
        if not any(map(os.path.exists, self.get_finalized_command("build_ext").get_outputs())):
            self.distribution.ext_modules = None
            self.root_is_pure = True
        super().run()


if sys.implementation.name == "cpython" and not sysconfig.get_config_var("Py_GIL_DISABLED"):
    options = {"bdist_wheel": {"py_limited_api": "cp310"}}
    setup(ext_modules=[core], cmdclass={"bdist_wheel": Wheel}, options=options)
else:
    setup()
