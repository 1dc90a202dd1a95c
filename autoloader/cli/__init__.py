"""The command line: results on stdout, everything else on stderr.

Not here: any work; each command reads its arguments, calls the package that owns the job, and
shows the answer.
"""
