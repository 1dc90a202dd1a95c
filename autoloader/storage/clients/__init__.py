"""How each scheme's store is asked: addresses, credentials and versions of each, one way to ask.

Not here: repetitions (``storage.store``), what errors mean (``storage.faults``).
"""
