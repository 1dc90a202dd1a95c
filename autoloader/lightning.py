"""Public path of the Lightning data module, ``AutoLoaderDataModule``."""

from autoloader.integrations.lightning import (
    AutoLoaderDataModule,
    LoaderMonitor,
    Stage2Layout,
    ToBatch,
)

__all__ = ["AutoLoaderDataModule", "LoaderMonitor", "Stage2Layout", "ToBatch"]
