"""This package decodes payloads to values and encodes values to payloads, in the way that the field's name says.

    kinds     what a field's name means: the one table
    headers   sizes and shapes of payloads, from their first bytes
    values    numbers, text, JSON, arrays, tensors, both ways
    images    pictures, both ways, and their resizing
    media     sound and film -> arrays
    cells     cells of a table -> payloads
    tenbin    webdataset's tensor bundles, both ways
    handlers  what these modules share: handlers by extension, size limits, optional packages

This package does not know samples or sets.
"""
