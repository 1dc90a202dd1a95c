"""An order with locality (``mixing.locality``): blocks of neighbours, windows of blocks, lanes.

Not here: the plan over it (``order.plan``), reading blocks (``read``).
"""
