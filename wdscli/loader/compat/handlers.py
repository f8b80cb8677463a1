"""webdataset's handlers of exceptions, by their module's name there. See :mod:`~wdscli.loader.read.handlers`."""

from wdscli.loader.read.handlers import ignore_and_continue as ignore_and_continue
from wdscli.loader.read.handlers import ignore_and_stop as ignore_and_stop
from wdscli.loader.read.handlers import reraise_exception as reraise_exception
from wdscli.loader.read.handlers import warn_and_continue as warn_and_continue
from wdscli.loader.read.handlers import warn_and_stop as warn_and_stop
