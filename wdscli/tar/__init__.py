"""This package turns the bytes of tar archives into members, and back. It knows no samples, files or networks."""

from wdscli.tar.header import CANONICAL as CANONICAL
from wdscli.tar.header import DIRECTORY as DIRECTORY
from wdscli.tar.header import END_OF_ARCHIVE as END_OF_ARCHIVE
from wdscli.tar.header import FOREIGN as FOREIGN
from wdscli.tar.header import GLOBAL as GLOBAL
from wdscli.tar.header import KIND_MASK as KIND_MASK
from wdscli.tar.header import KIND_NAMES as KIND_NAMES
from wdscli.tar.header import LINK as LINK
from wdscli.tar.header import REGULAR as REGULAR
from wdscli.tar.header import SPARSE as SPARSE
from wdscli.tar.header import SPECIAL as SPECIAL
from wdscli.tar.header import Form as Form
from wdscli.tar.header import build_header as build_header
from wdscli.tar.header import make_form as make_form
from wdscli.tar.header import padded as padded
from wdscli.tar.reader import ByteSource as ByteSource
from wdscli.tar.reader import BytesSource as BytesSource
from wdscli.tar.reader import Window as Window
from wdscli.tar.reader import members as members
from wdscli.tar.reader import scan as scan
from wdscli.tar.scan import Columns as Columns
from wdscli.tar.scan import Scanner as Scanner
from wdscli.tar.writer import TarWriter as TarWriter
from wdscli.tar.writer import padding as padding
