"""What a sample costs, what the machine has, and so how fast the loader can be at most.

``trace`` reads what a running loader uses; ``programme`` is the linear programme over costs and
supplies; ``model`` makes one of the other and says what limits and what would lift it.

Not here: measuring a loader (``tune.measurement``), searching knobs (``tune``).
"""
