"""What a sample holds, worked out from an episode or from an index's columns.

Not here: which sample comes when (``order``), reading and decoding (``read``, ``decode``).
"""
