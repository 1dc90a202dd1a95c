"""One study by several processes and hosts: who is there, who judges, and a server to share it on.

Not here: the study itself (``tune.study``), its storage's errors (``tune.storage``).
"""

from autoloader.tune.shared.turns import HostTurns
from autoloader.tune.shared.workers import Workers, kin_study, shown_study, there_already

__all__ = ["HostTurns", "Workers", "kin_study", "shown_study", "there_already"]
