"""webdataset's stages by name: ``map``, ``shuffle``, ``decode`` and so on as things to put into a ``DataPipeline``.

Every name here plans the method of that name, or says that there is none. Nothing else may be in this module, because
some names are those of builtins.
"""

from __future__ import annotations

from wdscli.loader.compat.names import Refused, Stages

_MIX = "several sets with weights: wds.mix({...})"
_READ = "wds.WebDataset(urls) reads any address that wdscli knows"
_CACHE = "only the ranges that are needed are read; `wds cat` copies shards"

Cached = Stages("mcached")
LMDBCached = Stages("lmdb_cached")
associate = Stages("associate")
batched = Stages("batched")
decode = Stages("decode")
detshuffle = Stages("shuffle")
extract_keys = Stages("extract_keys")
info = Stages("info")
listed = Stages("listed")
log_keys = Stages("log_keys")
map = Stages("map")
map_dict = Stages("map_dict")
map_tuple = Stages("map_tuple")
rename = Stages("rename")
rename_keys = Stages("rename_keys")
rsample = Stages("rsample")
select = Stages("select")
shuffle = Stages("shuffle")
slice = Stages("slice")
tarfile_to_samples = Stages("tarfile_to_samples")
to_tuple = Stages("to_tuple")
unbatched = Stages("unbatched")
unlisted = Stages("unlisted")
xdecode = Stages("xdecode")

LRUCleanup = Refused("LRUCleanup", _CACHE)
MultiShardSample = Refused("MultiShardSample", _MIX)
gopen = Refused("gopen", _READ)
gopen_schemes = Refused("gopen_schemes", _READ)
pipe_cleaner = Refused("pipe_cleaner", _CACHE)
resampled = Refused("resampled", "wds.WebDataset(urls, resampled=True), or wds.ResampledShards(urls)")
shardspec = Refused("shardspec", _MIX)
tarfile_samples = Refused("tarfile_samples", _READ)
