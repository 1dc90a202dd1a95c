"""On ``PYTHONPATH``: an interpreter, and every process it starts, without any extra's packages."""

import sys

ABSENT = (
    "torch", "kornia", "lightning", "tensorflow", "tensorflow_datasets", "optuna", "sqlalchemy",
    "matplotlib", "pyarrow", "av", "jax",
)  # fmt: skip
sys.modules.update(dict.fromkeys(ABSENT))
