"""Public path of the recipes; specs name its functions as ``autoloader.recipes.functions:NAME``."""

import sys

from autoloader.spec.recipes import STYLES, Recipe, mixtures, names, other_names, recipe
from autoloader.spec.recipes import functions as _functions

__all__ = ["STYLES", "Recipe", "mixtures", "names", "other_names", "recipe"]

sys.modules[f"{__name__}.functions"] = _functions
