"""Decisions before a loader starts, and the memory that other loaders give up for it.

Not here: running what was planned (``loader``, ``process.worker``).
"""
