"""A running mixture: readers, batch builders and the order in which batches are handed out.

Two readers give samples. ``pipeline.read.planned`` reads by index: runs of positions, only the
frames that they need. ``pipeline.read.streams`` reads whole records through tf.data (``graph``) and
mixes the datasets. A builder, here, in a decode process or on
another host, makes batches of them.

Start here:
    ``pipeline.Pipeline``: deals batches to builders, in order; retunes, parks, goes elsewhere.
    ``read.planned.IndexedReader``, ``read.streams.StreamsReader``: the two readers.
    ``messages``: how processes of the loader talk; ``messages.Peer``: one at the other end.

Never here: what to change while running (``controller``), the trainer's side (``process``).
"""
