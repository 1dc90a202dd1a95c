"""What a running loader says about itself.

Not here: deciding anything from it (``controller``), showing it (``cli``).
"""

from autoloader.telemetry.statistics import (
    ControllerStatistics,
    DatasetStatistics,
    RingStatistics,
    Statistics,
)

__all__ = ["ControllerStatistics", "DatasetStatistics", "RingStatistics", "Statistics"]
