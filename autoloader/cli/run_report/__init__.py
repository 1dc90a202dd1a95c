"""One page of a run from the record that it left: what limited it, what was done, and why.

Not here: the record (``telemetry.run_record``), the command (``cli.report``).
"""
