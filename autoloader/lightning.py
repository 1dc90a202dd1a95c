"""Public path of the Lightning data module, ``AutoLoaderDataModule``."""

from autoloader.host.extras import needs
from autoloader.integrations.layouts import Stage2Layout

with needs("autoloader.lightning", extra="lightning"):
    from autoloader.integrations.lightning.datamodule import AutoLoaderDataModule
    from autoloader.integrations.lightning.monitor import LoaderMonitor
    from autoloader.integrations.lightning.streams import ToBatch

__all__ = ["AutoLoaderDataModule", "LoaderMonitor", "Stage2Layout", "ToBatch"]
