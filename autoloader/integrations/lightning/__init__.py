"""Lightning's side of the loader: a data module and a monitor; public as ``autoloader.lightning``.

Not here: the loader (``loader``), moving batches to a device (``process.transfer``), layouts of
other trainers (``integrations.layouts``).
"""
