"""Which sample comes when: arithmetic on a seed, a spec and episode lengths.

No file, no thread, no state. Position i of a run's endless sequence names one sample, on every host
and in every process. So a resume is a number, ranks are ranges, and knobs change nothing.

Start here:
    ``schedule``: which dataset each position belongs to; each share is exact to within one block.
    ``plan.SamplePlan``: which episode and step each position shows, each sample once a pass.
    ``mixture.MixtureOrder``: both together, with seeds and weights.
    ``dealing``: which positions, or records, each rank takes.
    ``cursor``: what was delivered, summed up so that a reader can continue from there.

Shuffles differ in what they keep together: ``samples.draws.scatter`` (blocks of a file), ``chains``
(steps of an episode). ``plan.NextUse`` tells when a frame is needed again.

Never here: what a sample holds (``samples``), reading it (``pipeline``).
"""
