"""Runs a resolved mixture: readers, queues, mixer, decode pool, batcher, ring.

Not here: what to run (``spec``, ``sampling``), tf.data graphs (``graph``), which knobs to use
(``controller``, ``tune``).
"""
