"""What happens to a batch on its way to the trainer's device, and there: augmentation.

Not here: the batch (``batch``), the slots it lies in (``ring``).
"""
