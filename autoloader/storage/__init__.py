"""Files far away: the clients that reach them, and the cache of shards on a local disk.

Not here: what files hold (``catalog``), the order in which they are needed
(``pipeline.read.shard_feed``).
"""
