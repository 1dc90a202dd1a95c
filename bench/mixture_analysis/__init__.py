"""What a run made of its mixture, batch by batch: plots and a summary from its batch log.

A run writes the log where ``AUTOLOADER_BATCH_TIMES`` says (``telemetry.batch_times``), whatever
trains with it.
"""
