"""Clients of stores, one for each scheme: addresses, credentials and versions.

Not here: repetitions (``storage.store``), what errors mean (``storage.faults``).
"""
