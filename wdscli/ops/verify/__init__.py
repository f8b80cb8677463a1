"""verify: gather everything that is wrong with shards, and save what can be saved."""

from wdscli.ops.verify.findings import KINDS, Finding, Kind
from wdscli.ops.verify.run import VerifyReport, verify

__all__ = ["Finding", "KINDS", "Kind", "VerifyReport", "verify"]
