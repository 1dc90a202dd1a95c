"""Pixels from bytes: JPEG, PNG and video decoded, resized and written into a slot of the ring.

Threads of a pool decode; the C libraries release the interpreter's lock. Pictures go straight to
their place in shared memory, and from there to other rows that show them.

Start here:
    ``frames.FrameDecoder``: decodes one frame of a picture or a video as a ``CameraSpec`` says.
    ``jobs``: the work on the rows of a batch, and the pool of threads that does it.
    ``batch_builder.BatchBuilder``: fills one batch: numbers copied, decode jobs submitted.
    ``ring.RingMemory``: the shared memory of finished batches, in slots.

A picture that cannot be decoded is quarantined by name, and its row is a flagged repeat.

Never here: which frames a sample needs (``index``), which frames are kept (``cache``).
"""
