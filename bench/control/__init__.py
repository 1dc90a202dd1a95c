"""The controller on a real machine: a running loader, real disturbances, a judge that counts.

A scenario (``bench/scenarios/control/*.yaml``) says what the loader begins with and what happens to
it when. ``driver`` is the trainer: it opens a loader by the front door and takes batches at a given
pace. ``runner`` starts it in a memory cgroup of its own, carries out the script and has ``sampler``
look at memory twenty times a second from a process that shares nothing with the loader. ``judge``
holds what was recorded against the promises; ``static`` finds what the best knobs held still give.

Not here: throughput against other loaders (``bench.runner``), the policy over a simulated machine
(``tests/simulated``).
"""
