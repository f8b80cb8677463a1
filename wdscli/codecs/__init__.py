"""This package decodes payloads to values and encodes values to payloads, in the way that the field's name says.

    kinds       what a field's name means: the one table
    headers     sizes of pictures, shapes of arrays, lengths of sound, and whether sound and film are whole
    values      numbers, text, JSON, arrays, tensors and their bundles, both ways; the one encoder of fields
    images      pictures, both ways, and their resizing
    media       sound and film -> arrays
    cells       cells of a table -> values
    handlers    what these modules share: handlers by extension, size limits, optional packages

This package does not know samples or sets.
"""
