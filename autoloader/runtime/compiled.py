"""What a mixture is compiled to, kept from one pipeline over it to the next.

A loader that goes elsewhere (a resume, a validation that begins anew) gets a new pipeline over the
mixture that it had. Traced graphs and open indexes hang on neither place nor knobs, and are what
most of a pipeline's start is spent on, so the next pipeline takes them over.

Not here: making them (``runtime.launch``, ``runtime.opened``), whose mixture is the same
(``worker``).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from autoloader.runtime.opened import Opened
from autoloader.sampling.source import EpisodeSource


@dataclass(slots=True)
class Compiled:
    """Parts of pipelines over one mixture; for any number of threads.

    Attributes:
        readers: the stream reader of each dataset, by name.
        opened: the indexes and the plan over them.
    """

    readers: dict[str, EpisodeSource] = field(default_factory=dict)
    opened: Opened | None = None
