"""The command line: results on stdout, everything else on stderr.

A command reads its arguments, calls the package that owns the job, and shows the answer, as text or
with ``--json`` as one document. Exit codes come from the error's class.

Start here:
    ``app``: every command with its options, help and example; its work is imported when it
    runs, from a module of its name mostly.
    ``output``: how commands speak: ``emit``, ``answered``, ``note``, progress.
    ``witness``: samples worked out a second time from the files, for ``verify``; shares nothing
    with the loader except the spec.

Never here: work that a program may want without a terminal.
"""
