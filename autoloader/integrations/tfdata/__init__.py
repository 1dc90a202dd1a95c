"""The tf.data front door: public as ``autoloader.tfdata``, which imports TensorFlow.

Not here: anything that a loader uses.
"""
