"""Bytes from far away: one client for each URL scheme, and a cache of shards on the local disk.

A remote shard is a sparse local file that fills chunk by chunk (``shards.RemoteShard``); readers
use it like a local one. Each process asks for itself; the cache folder is shared and survives the
run.

Start here:
    ``clients.client.Client``: what every store can do (list, stat, read a range).
    ``store.Store``: the same with retries, growing pauses, deadlines and limits on every answer.
    ``shards.ShardCache``: all remote shards of this process, within the room on the disk.

Errors are ``SourceError`` with the address (never a credential), the limit that was met, and the
variable that lifts it. Versions (ETag, generation, mtime) are kept, so a file that changes is
noticed.

Never here: what a file means (``formats``), the order in which files are needed (``pipeline``).
"""
