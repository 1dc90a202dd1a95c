"""Shares a pipeline's batches between builders of this host and helpers on other hosts.

Not here: what helpers are and how they are reached (``cluster``), building a batch (``decode``).
"""
