"""Does the tuner keep its promises? Rows that need a quiet machine and minutes, not tests.

    python -m bench.tuner ROW [--spec mix.yaml] [--budget 5m] [--batches 160]

Each row runs ``autoloader.tune`` as people run it, in children, and judges what it left by
measurements of its own, in turn. ``python -m bench.tuner --help`` lists them.

Not here: tests of the tuner's parts (``tests/tune``, ``tests/bound``).
"""
