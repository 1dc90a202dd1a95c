"""Lightning's side of the loader: a data module, a monitor, and the layouts of other trainers.

Not here: the loader (``loader``), moving batches to a device (``transfer``).
"""

from autoloader.extras import needs

with needs("autoloader.lightning", extra="lightning"):
    from autoloader.lightning.datamodule import AutoLoaderDataModule
    from autoloader.lightning.layouts import Stage2Layout
    from autoloader.lightning.monitor import LoaderMonitor
    from autoloader.lightning.streams import ToBatch

__all__ = ["AutoLoaderDataModule", "LoaderMonitor", "Stage2Layout", "ToBatch"]
