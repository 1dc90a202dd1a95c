"""Which samples a mixture gives, in what order, what each holds: functions of spec and files.

Everything here is arithmetic on numbers and names: the readers (``graph``, ``index``) and the
runtime share it, so that a sample is the same whoever reads it.

Not here: what lies on disk (``catalog``), reading and decoding (``graph``, ``runtime``).
"""
