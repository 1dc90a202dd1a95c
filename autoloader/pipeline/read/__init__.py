"""Reads samples: streams and the mixer over them, or planned runs over the index.

Not here: the tf.data graphs (``pipeline.graph``), the index (``index``), which sample comes when
(``sampling``).
"""
