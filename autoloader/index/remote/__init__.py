"""Indexes of shards far away.

Not here: the files themselves (``remote``), local shards (``index.build``).
"""
