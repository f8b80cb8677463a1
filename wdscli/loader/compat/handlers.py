"""webdataset's handlers of exceptions, by their module's name there. See :mod:`~wdscli.loader.read.failures`."""

from wdscli.loader.read.failures import ignore_and_continue as ignore_and_continue
from wdscli.loader.read.failures import ignore_and_stop as ignore_and_stop
from wdscli.loader.read.failures import reraise_exception as reraise_exception
from wdscli.loader.read.failures import warn_and_continue as warn_and_continue
from wdscli.loader.read.failures import warn_and_stop as warn_and_stop
