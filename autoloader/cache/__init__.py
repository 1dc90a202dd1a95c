"""Decoded frames that are kept: in memory by next use, and on disk.

The order of samples is arithmetic, so the cache knows when each frame is needed again. It evicts
the frame whose next use is farthest, weighed by its decoding cost (Belady's rule). It uses memory
above the RAM floor only, and gives this memory back first.

Start here:
    ``table.FrameTable``: which frames are in memory, and which are evicted.
    ``slab``: the memory in which frames of one size lie, and leases on it.
    ``disk``: decoded frames on a disk; only their owner reads them.

Keys hold everything that made a frame's pixels: file identity, offset, and the decoder's settings.

Never here: how much memory there is (``controller``), decoding (``decode``).
"""
