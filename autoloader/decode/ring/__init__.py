"""The batch ring: shared memory in slots, which of them are free, what is said of a filled one.

Not here: filling a slot (``decode``), tensors over it (``batch``).
"""
