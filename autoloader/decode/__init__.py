"""Pixels from bytes: JPEG, PNG and video decoded, resized and written into a slot of the ring.

Threads of a pool decode; the C libraries release the interpreter's lock. Pictures go straight to
their place in shared memory; nothing is copied behind that.

Start here:
    ``frames.FrameDecoder``: decodes one frame as a ``CameraSpec`` says: size, fit, resize, flips.
    ``pool``: the threads, and the jobs that they take.
    ``assembler`` and ``batch_builder``: fill one batch: numbers copied, decode jobs submitted.
    ``video``: frames of a video file, from the keyframe before them.
    ``decode.ring.RingMemory``: the shared memory of finished batches, in slots.

A picture that cannot be decoded is quarantined by name, and its row is a flagged repeat.

Never here: which frames a sample needs (``index``), which frames are kept (``cache``).
"""
