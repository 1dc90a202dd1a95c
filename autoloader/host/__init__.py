"""What this machine gives a process: processors, control groups, signals, thread names.

Not here: what is free of it right now (``probes``).
"""
