"""Fields that Octo, OpenVLA, OpenVLA-OFT and openpi take from each dataset, as a spec has them.

::

    from autoloader import recipes

    recipes.names("octo")                            # the datasets of a project's registry
    recipes.recipe("fractal20220817_data", "octo")   # its fields, ready for a spec
    recipes.mixtures("octo")["oxe_magic_soup"]       # dataset → weight

The recipes are data (``datasets.yaml``, ``mixtures.yaml``). Not here: whether files on disk have
the features that a recipe names (``samples.resolve``), whole specs (``autoloader init``).
"""

from autoloader.spec.recipes.library import STYLES, Recipe, mixtures, names, other_names, recipe

__all__ = ["STYLES", "Recipe", "mixtures", "names", "other_names", "recipe"]
