"""This package decodes payloads to values and encodes values to payloads, in the way that the field's name says.

    kinds       what a field's name means: the one table
    headers     sizes of pictures and shapes of arrays, from their first bytes
    containers  sound and film: their length, and whether a payload is whole
    values      numbers, text, JSON, arrays, tensors, both ways; the one encoder of fields
    images      pictures, both ways, and their resizing
    media       sound and film -> arrays
    cells       cells of a table -> values
    tenbin      webdataset's tensor bundles, both ways
    handlers    what these modules share: handlers by extension, size limits, optional packages

This package does not know samples or sets.
"""
