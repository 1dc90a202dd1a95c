"""Trainers and frameworks around the loader: Lightning, JAX, tf.data, Ray, batch layouts."""
