"""A running pipeline: deals batches to builders, here or in decode processes, in order.

Not here: what is read (``read``), building a batch (``decode``).
"""
