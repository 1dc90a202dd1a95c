"""Watches the loader and the machine, and decides what to change.

Not here: applying a change (``actuation``), searching offline (``tune``).
"""
