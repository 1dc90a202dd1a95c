"""The loader's child process as its trainers see it: finding it, starting it, talking to it.

Not here: what runs in it (``worker``, ``pipeline``), watching a process (``supervision``).
"""
