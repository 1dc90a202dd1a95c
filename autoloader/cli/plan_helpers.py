"""What helpers on other hosts could bring, for ``plan``: links, and processors that fill them.

A batch crosses the link decoded, so a link has a rate of its own, whatever the number of helpers.

Not here: asking them (``autoloader.cluster``), the other figures of the plan (``cli.plan_report``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from autoloader.planning.start import LoaderPlan

LINKS_GBIT_PER_S = (1, 10, 25, 100)
LINK_RATIO = 0.9
"""Of a link's bits that are payload, with what TCP and Ray add."""


def helpers_document(plan: LoaderPlan, bound: Mapping[str, Any]) -> dict[str, Any] | None:
    """Rates by link; ``None`` where the reader can have no helpers, or a sample's cost is unknown.

    Args:
        plan: of the loader.
        bound: the document's.
    """
    seconds = bound["mean_decode_s"]
    if plan.knobs.reader != "indexed" or not seconds:
        return None
    size = plan.mixture.layout.slot_bytes / plan.mixture.spec.batch.size
    here = bound["samples_per_s"]
    links = {f"{link} Gb/s": LINK_RATIO * link * 1e9 / 8 / size for link in LINKS_GBIT_PER_S}
    return {
        "sample_bytes": round(size),
        "here_per_s": here,
        "links": {
            name: {
                "samples_per_s": rate,
                "processors": math.ceil(rate * seconds),
                "speedup": 1 + rate / here,
            }
            for name, rate in links.items()
        },
    }


def helper_rows(document: Mapping[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    """A row for each link."""
    for name, link in document["links"].items():
        yield (
            name,
            f"{link['samples_per_s']:,.0f}",
            str(link["processors"]),
            f"{link['speedup']:.1f}",
        )
