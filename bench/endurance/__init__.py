"""What the loader survives and what it holds on to, counted and measured, claim by claim.

Samples are counted, never trusted: a pass is right when every valid sample came exactly once.
"""
