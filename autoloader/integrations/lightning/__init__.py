"""Lightning's side of the loader: a data module, a monitor, and the layouts of other trainers.

Not here: the loader (``loader``), moving batches to a device (``process.torch_side``).
"""

from autoloader.host.extras import needs

with needs("autoloader.integrations.lightning", extra="lightning"):
    from autoloader.integrations.lightning.datamodule import AutoLoaderDataModule
    from autoloader.integrations.lightning.layouts import Stage2Layout
    from autoloader.integrations.lightning.monitor import LoaderMonitor
    from autoloader.integrations.lightning.streams import ToBatch

__all__ = ["AutoLoaderDataModule", "LoaderMonitor", "Stage2Layout", "ToBatch"]
