"""Compiles a resolved dataset into its tf.data stream.

The only package that imports TensorFlow. Foreign errors are translated here.

Not here: threads that pull from a stream (``pipeline.read``).
"""
