"""Public path of the recipes; specs name its functions as ``autoloader.recipes.functions:NAME``."""

import sys

from autoloader.spec.recipes import STYLES, Recipe, functions, mixtures, names, other_names, recipe

__all__ = ["STYLES", "Recipe", "mixtures", "names", "other_names", "recipe"]

sys.modules[f"{__name__}.functions"] = functions
