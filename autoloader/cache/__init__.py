"""Decoded frames that are kept: in memory by next use, and on disk.

The order of samples is arithmetic, so the cache knows when each frame is needed again and evicts
the one whose next use is farthest, weighed by its decoding cost (Belady's rule). It uses memory
above the RAM floor only, and gives it back first.

Start here:
    ``table.FrameTable``: which frames are in memory, and which may go.
    ``disk``: decoded frames on a disk, read by whoever may own the file and nobody else.
    ``slab``: the memory in which frames of one size lie.

Keys hold everything that made a frame's pixels: file identity, offset, and all that the decoder was
told.

Never here: how much memory there is (``controller``), decoding (``decode``).
"""
