"""This package reads and writes all bytes: local files, streams and remote objects.

Other packages use only a :class:`Source` or a :class:`Sink`, and do not know where the bytes are. Only this package
imports fsspec, s3fs, obstore and braceexpand. Modules that are slow to import are imported when an address needs them.
"""

from wdscli.storage.addresses import OPENERS as OPENERS
from wdscli.storage.addresses import addresses_of as addresses_of
from wdscli.storage.addresses import base_name as base_name
from wdscli.storage.addresses import has_folder as has_folder
from wdscli.storage.addresses import is_local as is_local
from wdscli.storage.addresses import is_stream as is_stream
from wdscli.storage.addresses import local_path as local_path
from wdscli.storage.addresses import relative_to as relative_to
from wdscli.storage.addresses import same_file as same_file
from wdscli.storage.addresses import scheme as scheme
from wdscli.storage.addresses import sibling as sibling
from wdscli.storage.ends import Sink as Sink
from wdscli.storage.ends import Source as Source
from wdscli.storage.opening import check_place as check_place
from wdscli.storage.opening import exists as exists
from wdscli.storage.opening import folder_of as folder_of
from wdscli.storage.opening import known_sizes as known_sizes
from wdscli.storage.opening import list_folder as list_folder
from wdscli.storage.opening import open_sink as open_sink
from wdscli.storage.opening import open_source as open_source
from wdscli.storage.opening import read_all as read_all
from wdscli.storage.opening import remove as remove
from wdscli.storage.patterns import OutputPattern as OutputPattern
from wdscli.storage.patterns import Words as Words
from wdscli.storage.patterns import expand as expand
