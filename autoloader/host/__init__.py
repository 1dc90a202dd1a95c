"""What this machine gives a process: processors, control groups, signals, threads, copies.

Not here: what is free of it right now (``probes``).
"""
