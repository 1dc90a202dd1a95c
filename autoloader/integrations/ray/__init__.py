"""Decoding on other hosts, through Ray: the only package that imports it.

``driver`` is a process of the loader's child that asks; ``actor`` answers, on another host.

Not here: who fills which batch (``pipeline.pipeline``), the child's side
(``pipeline.builders``).
"""
