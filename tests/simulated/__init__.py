"""A simulated loader and machine, to try policies and limits against without either.

``Plant`` is the machine with a loader on it, ``simulate`` runs the real policy and the real reflex
over it, ``SCENARIOS`` are the disturbances that the controller is held to. A simulated hour takes
seconds.

Not here: anything that a running loader needs.
"""

from simulated.plant import Plant, PlantModel
from simulated.scenarios import SCENARIOS, Scenario
from simulated.simulation import Trace, simulate

__all__ = ["SCENARIOS", "Plant", "PlantModel", "Scenario", "Trace", "simulate"]
