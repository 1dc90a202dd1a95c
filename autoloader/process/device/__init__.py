"""A batch's way to the trainer's device, and augmentation there.

Not here: the batch (``batch``), the slots it lies in (``decode.ring``).
"""
