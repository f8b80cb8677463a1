"""What all tests rely on."""

from __future__ import annotations

import signal

# A shell ignores Ctrl-C on behalf of what it runs in the background, and programs started from there inherit that. The
# tests that interrupt a program must not depend on how they were started themselves.
signal.signal(signal.SIGINT, signal.default_int_handler)
