"""Which sample comes when: arithmetic on a seed, a spec and lengths. No file, no thread.

Not here: what a sample holds (``samples``), reading it (``read``).
"""
