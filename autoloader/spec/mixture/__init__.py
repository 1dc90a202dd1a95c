"""How the datasets of a spec are mixed, and what is done with each batch of the mixture.

Not here: the datasets (``spec.model``), the order itself (``order``).
"""
