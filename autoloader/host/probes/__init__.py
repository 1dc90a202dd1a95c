"""Readings of the host for the controller: headroom, pressure, processors, GPU, kills.

Not here: what follows from it (``controller.policy``, ``controller.reflex``).
"""
