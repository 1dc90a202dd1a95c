"""How the datasets of a spec are mixed: in which order, and by which shares.

Not here: the datasets (``spec.model``), the order itself (``order``).
"""
