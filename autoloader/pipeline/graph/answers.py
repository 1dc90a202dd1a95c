"""The process that answers for TensorFlow.

Pickled questions and answers go over a socket, which is its stdin. Its argument is the descriptor
that users' functions may print to. It ends with the process that asks
(``formats.tensorflow_process``).

Not here: the answers (``pipeline.graph.files``, ``pipeline.graph.user_functions``).
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from functools import partial

from autoloader.formats.files import FRONT_BYTES
from autoloader.formats.tensorflow_process import receive, send
from autoloader.host.supervision import extend_import_path

os.environ.setdefault("GCS_READ_CACHE_BLOCK_SIZE_MB", str(FRONT_BYTES // 2**20))


def serve() -> None:
    """Answer questions until the one who asks is gone."""
    # TensorFlow is imported before what is printed is anybody's business.
    from autoloader.pipeline.graph import files, user_functions

    os.dup2(int(sys.argv[1]), 2)
    os.dup2(2, 1)
    with (
        contextlib.suppress(EOFError, ConnectionError),
        socket.socket(fileno=0) as link,
        link.makefile("rb") as questions,
    ):
        while True:
            question, about, arguments = receive(questions)
            if question == "import path":  # it has grown; this is no question
                extend_import_path(about)
                continue
            answering = (
                files.answer if question == "files" else partial(user_functions.answered, question)
            )
            send(link, answering(about, arguments))


if __name__ == "__main__":
    serve()
