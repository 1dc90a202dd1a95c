"""How each scheme's store is asked: addresses, credentials and versions of each, one way to ask.

Not here: repetitions (``remote.store``), what errors mean (``remote.faults``).
"""
