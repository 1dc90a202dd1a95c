"""The regression gate: what a change may not make worse, held against ``bench/baseline.json``.

Counts (decodes, bytes, calls, copies, pages, threads, memory) do not depend on how busy a machine
is and are checked anywhere, by the test suite too. Ratios of rates need a quiet machine and are
checked by hand.
"""
