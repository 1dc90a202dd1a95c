"""What a sample costs, what the machine has, and so how fast the loader can be at most.

``trace`` reads what a running loader uses; ``programme`` finds the highest rate
that the resources allow; ``model`` says which resource limits and what would lift the rate.

Not here: measuring a loader (``tune.measurement``), searching knobs (``tune``).
"""
