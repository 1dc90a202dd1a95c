"""What a loader saves of its place, and whether a loader may go on from it.

Not here: keeping track of the place (``pipeline.progress``).
"""
