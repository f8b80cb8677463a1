"""Headers of plans, and headers that a stranger changed and sealed again as wdscli-plan(5) says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from xxhash import xxh3_64_intdigest

from wdscli.shards.view import rows_address

NO_SEAL = '"seal": "0000000000000000"'


def rows_of(plan: Path) -> Path:
    return Path(rows_address(str(plan)))


def header_of(plan: Path) -> Any:
    return json.loads(plan.read_bytes())


def write_header(plan: Path, header: Any) -> None:
    text = re.sub('"seal": "[0-9a-f]*"', NO_SEAL, json.dumps(header), count=1)
    plan.write_text(text.replace(NO_SEAL, f'"seal": "{xxh3_64_intdigest(text.encode()):016x}"', 1))
