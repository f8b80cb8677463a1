"""Payloads <-> values by field name: decoders, encoders, and the limits of both.

    decode_values, decode_images, decode_media    payloads -> values
    encode                                        values -> payloads
    cells                                         cells of a table -> payloads
    tenbin                                        webdataset's tensor bundles, both ways
    parts                                         what these share: extensions, handlers, packages that may be missing
    limits                                        what a payload may become when it is decoded

It must not know samples or sets.
"""
