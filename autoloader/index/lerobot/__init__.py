"""Index tables of LeRobot datasets.

Not here: their metadata and files (``catalog.lerobot``), RLDS shards (``index.build``).
"""
