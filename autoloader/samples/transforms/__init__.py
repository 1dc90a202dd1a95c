"""Changes of an episode before samples are drawn: fields, rules, the user's functions.

Not here: what lies on disk (``formats``), what a sample holds (``samples``).
"""
