"""Public path of the tf.data front door, ``as_dataset``; importing it imports TensorFlow."""

from autoloader.integrations.tfdata.mixture import as_dataset

__all__ = ["as_dataset"]
