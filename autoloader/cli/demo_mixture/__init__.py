"""The demo mixture: real TFDS files of drawn episodes, for trials and benches.

Not here: reading them, as any dataset (``catalog``, ``read``).
"""
