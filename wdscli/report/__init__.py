"""A set on one page: `wds report`.

    looking   the samples that are read, drawn by a hash of their keys; their payloads: classes, captions, cards
    facts     all results in the form of the page: plain values, rounded and in words
    charts    histograms as SVG, by pygal
    page      the template, its style and its script: facts to HTML, by jinja2

This package does not know how shards are checked or summed up: the caller passes the results of verify and look.
"""
