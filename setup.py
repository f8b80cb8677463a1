"""The compiled core, which pyproject.toml cannot describe because it is optional.

Without a C compiler the installation succeeds, gives the same bytes and is slower; `wds --version` names the core in
use. With a compiler, one wheel works with every Python from 3.10 on that has the limited API. Other implementations and
builds without the global lock use plain Python.
"""

import os
import sys
import sysconfig

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel

core, crc = (
    Extension(
        f"wdscli.tar.{sources[0]}",
        [f"wdscli/tar/{source}.c" for source in sources],
        depends=["wdscli/tar/_limited.h"],
        extra_compile_args=["-O3"],
        optional=True,
        py_limited_api=True,
    )
    for sources in (("_core", "_files"), ("_crc",))
)


class Wheel(bdist_wheel):
    """Name a wheel without the core `py3-none-any`, so that its name does not promise the core."""

    def run(self) -> None:
        self.run_command("build")
        if not any(map(os.path.exists, self.get_finalized_command("build_ext").get_outputs())):
            self.distribution.ext_modules = None
            self.root_is_pure = True
        super().run()


if sys.implementation.name == "cpython" and not sysconfig.get_config_var("Py_GIL_DISABLED"):
    options = {"bdist_wheel": {"py_limited_api": "cp310"}}
    setup(ext_modules=[core, crc], cmdclass={"bdist_wheel": Wheel}, options=options)
else:
    setup()
