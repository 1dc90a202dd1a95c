"""What a sample costs, what the machine has, and so how fast the loader can be at most.

``trace`` reads what a running loader uses; ``model`` finds the highest rate that the resources
allow, says which resource limits it, and what would lift it.

Not here: measuring a loader (``tune.measurement``), searching knobs (``tune``).
"""
