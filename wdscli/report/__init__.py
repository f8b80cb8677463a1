"""What a set is, on one page: `wds report`.

    drawing   which samples are looked into, and which are shown: by a hash of their keys
    looking   the payloads of these: classes, captions, sizes of pictures, in tasks
    cards     one sample as the page shows it: pictures made small, sound, excerpts
    facts     everything that was found, as the page takes it: plain values, rounded and worded
    charts    histograms as SVG, by pygal
    page      the template, its style and its script: facts to HTML, by jinja2

It must not know how shards are checked or summed up: verify and look are handed in.
"""
