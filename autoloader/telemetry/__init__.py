"""What a running loader says about itself.

Not here: deciding anything from it (``controller``), showing it (``cli``).
"""

from autoloader.telemetry.statistics import DatasetStatistics, RingStatistics, Statistics

__all__ = ["DatasetStatistics", "RingStatistics", "Statistics"]
