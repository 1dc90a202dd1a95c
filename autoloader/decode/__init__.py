"""Builds batches: decodes frames and copies numbers into the slots of the ring.

Not here: where samples come from (``read``), who gives the slots (``pipeline``).
"""
