"""verify: gather everything that is wrong with shards, and save what can be saved."""

from wdscli.verify.findings import KINDS, Finding, Kind
from wdscli.verify.set import VerifyReport, verify

__all__ = ["Finding", "KINDS", "Kind", "VerifyReport", "verify"]
