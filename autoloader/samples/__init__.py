"""Contents of one sample: windows around a step, fields, rules, transforms, normalisation.

This is the loader's only definition of a sample. Both readers use it, over columns of numbers: of
an index, or of one record that was walked. ``verify`` and the tests compare it with a second, slow
definition that shares no code (``cli.witness``).

Start here:
    ``resolve.resolve(spec)``: compares a spec with the files and returns a ``ResolvedMixture``,
    with every field bound and every width known.
    ``layout``: names, shapes and types of a batch's arrays, their places in a slot
    (``BatchLayout``), and the trainer's view of a slot, a dict of tensors without a copy.
    ``draws``: keyed draws and permutations, without a stateful generator.
    ``windows``: which steps of an episode a sample shows, and what stands past its ends.
    ``transforms``: what happens to an episode before samples are drawn.

Never here: which sample comes when (``sampling``), reading and decoding (``pipeline``, ``decode``).
"""
