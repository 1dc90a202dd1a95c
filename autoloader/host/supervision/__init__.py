"""Processes of the library's own: started afresh, watched, ended, started again, given up.

One piece for every subprocess. ``start`` begins one that imports nothing from the working
directory before what is installed; ``vitals`` judges whether a silent one hangs or only gets no
processor; ``supervisor`` puts both together, counts restarts and gives up.

Not here: what the processes do, and what is said to them.
"""
