"""What the controller reads of the host: headroom, pressure, processors, GPU, kills.

Not here: what follows from it (``controller.policy``, ``controller.reflex``).
"""
