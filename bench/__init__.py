"""The bench: ratios between this loader and others, measured in turn in one run.

It knows the loader by its front door only, as any user does.
"""
