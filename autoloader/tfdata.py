"""Public path of the tf.data front door, ``as_dataset``."""

from autoloader.integrations.tfdata import as_dataset

__all__ = ["as_dataset"]
