"""Reports of a running loader: statistics, metrics, the record of a run.

One frozen model goes all the way: a figure is declared once, with its unit and meaning, and every
view of it (``statistics()``, ``autoloader top``, the run report, Prometheus) is a selection.

Start here:
    ``statistics.Statistics``: one moment of a loader: rates, memory, knobs, what limits it.
    ``metrics``: names, units and labels for Prometheus and for trainers' loggers.
    ``run_record``: a run's latest snapshot and the record that it leaves, written and read.
    ``charts``: charts as SVG and pages by Jinja, for the run report, the study and the docs.

Never here: decisions that follow from a figure (``controller``), layout on a terminal (``cli``).
"""
