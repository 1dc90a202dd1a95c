"""Decoded frames in memory that the RAM floor does not need, chosen by when they are shown next.

Not here: when a frame is shown next (``order``), decoding (``decode``), how much memory there is
(``controller``).
"""
