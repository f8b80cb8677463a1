"""Which modules some code loads, told by a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys

HEAVY = {
    "aiobotocore", "aiohttp", "asyncio", "boto3", "botocore", "braceexpand", "concurrent.futures.process", "fsspec",
    "msgpack", "multiprocessing", "numpy", "obstore", "PIL", "pyarrow", "pydantic", "rich", "s3fs", "simpleeval",
    "tempfile", "torch", "xxhash",
}  # fmt: skip


def loaded(code: str, *args: str) -> set[str]:
    """Names of the modules that are loaded when ``code`` has run; what it prints goes nowhere."""
    tell = (
        "import os, sys, json\n"
        "sys.path.insert(0, os.getcwd())\n"
        "real = os.dup(1); os.dup2(os.open(os.devnull, os.O_WRONLY), 1)\n"
        "try:\n"
        + "".join(f"    {line}\n" for line in code.splitlines())
        + "finally:\n    os.write(real, json.dumps(sorted(sys.modules)).encode())\n"
    )
    done = subprocess.run([sys.executable, "-c", tell, *args], capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    # json itself is ours.
    return set(json.loads(done.stdout))
