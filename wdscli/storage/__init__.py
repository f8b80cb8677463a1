"""Every way to get and to put bytes.

Everything above works on a :class:`Source` or a :class:`Sink` and never asks where the bytes are. This
package is the only importer of fsspec, s3fs and braceexpand, and imports them, like whatever else costs time,
when an address needs them.
"""

from wdscli.storage.addresses import (
    addresses_of,
    base_name,
    is_local,
    is_stream,
    local_path,
    relative_to,
    same_file,
    scheme,
    sibling,
)
from wdscli.storage.ends import Sink, Source
from wdscli.storage.expand import Words, expand
from wdscli.storage.opening import (
    check_place,
    exists,
    folder_of,
    list_folder,
    open_sink,
    open_source,
    read_all,
    remove,
)
from wdscli.storage.patterns import OutputPattern

__all__ = [
    "OutputPattern",
    "Sink",
    "Source",
    "Words",
    "addresses_of",
    "base_name",
    "check_place",
    "exists",
    "expand",
    "folder_of",
    "is_local",
    "is_stream",
    "list_folder",
    "local_path",
    "open_sink",
    "open_source",
    "read_all",
    "relative_to",
    "remove",
    "same_file",
    "scheme",
    "sibling",
]
