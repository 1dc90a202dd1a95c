"""One loader: what is decided before a start, its child process on both sides, delivery.

The trainer's process runs no TensorFlow. Loaders of a process, and ranks of a node, share one child
that is started afresh (no fork) and started again if it dies; nothing is lost or repeated.

Start here:
    ``draft``: a spec of datasets, for ``autoloader init`` and for a loader of a dataset's id.
    ``planning``: decides a start: files, reader, knobs, order, memory; gives a ``LoaderPlan``.
    ``child.Child`` and ``child.ChildPipeline``: the child, and one pipeline in it.
    ``worker``: the child's main module.
    ``control.ControlledPipeline``: a pipeline in the child, under the controller.
    ``delivery``: filled slots as batches; a batch counts once the trainer has it.
    ``checkpoint``: what a state says, and which loader may resume from it.

Never here: what a pipeline does (``pipeline``), what to change (``controller``).
"""
