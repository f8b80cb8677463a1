"""This package describes a set on one page, for `wds report`.

    looking   chooses samples by a hash of their keys, and reads their payloads: classes, captions, cards
    facts     all results in the form of the page: plain values and texts
    charts    histograms as SVG, by pygal
    page      the template, its style and its script: facts to HTML, by jinja2

This package does not know how shards are checked or summed up: the caller passes the results of verify and look.
"""
