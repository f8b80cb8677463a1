"""A set on one page: `wds report`.

    drawing   the samples that are read, and those that are shown: drawn by a hash of their keys
    looking   their payloads: classes, captions, sizes of pictures, in tasks
    cards     one sample on the page: small pictures, sound, excerpts
    facts     all results in the form of the page: plain values, rounded and in words
    charts    histograms as SVG, by pygal
    page      the template, its style and its script: facts to HTML, by jinja2

It must not know how shards are checked or summed up: the caller passes the results of verify and look.
"""
