"""The command line: one file a command; results on stdout, everything else on stderr.

A command reads its arguments, calls the package that owns the job, and shows the answer, as text or
with ``--json`` as one document. Exit codes come from the error's class (``app``).

Start here:
    ``app``: the ``autoloader`` command and its subcommands, each imported when it runs.
    ``output``: how commands speak: ``emit``, ``note``, progress.
    ``run_report``, ``host_checks``, ``demo_writer``: the work of ``report``, ``doctor``, ``demo``.
    ``witness``: samples worked out a second time from the files, for ``verify``; shares nothing
    with the loader except the spec.

Never here: work that a program may want without a terminal.
"""
