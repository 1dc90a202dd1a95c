"""Checks if other hosts may help a loader, and finds their cluster; nothing is started.

Not here: asking them (``pipeline.helpers``).
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace

from autoloader.errors import KnobError, UsageError, shown
from autoloader.host.extras import require
from autoloader.process.planning.start import LoaderPlan
from autoloader.spec.knobs import Knobs

ADDRESS_VARIABLE = "RAY_ADDRESS"


def with_helpers(plan: LoaderPlan, helpers: str | None) -> LoaderPlan:
    """The plan of a loader that has helpers, or has none.

    Args:
        plan: plan of the loader's start.
        helpers: "ray", "ray@HOST:PORT" or ``None``.

    Raises:
        UsageError: helpers cannot read what the plan reads, or there is no cluster to ask.
        KnobError: a number of helpers is given, and no helpers.
        MissingExtraError: Ray is not installed.
    """
    if helpers is None:
        if plan.knobs.helper_slots and not plan.profile.profile.knobs.helper_slots:
            raise KnobError(
                f"helper_slots={plan.knobs.helper_slots}, and no host is asked to help",
                remedy='use helpers="ray", or take helper_slots out',
            )
        knobs = Knobs.build({"helper_slots": 0}, base=plan.knobs)
        return replace(plan, knobs=knobs, limits=replace(plan.limits, helpers=0))
    kind, _, address = helpers.partition("@")
    if kind != "ray" or (not address and "@" in helpers):
        raise UsageError(
            f"helpers={shown(helpers)} is not allowed",
            remedy='write helpers="ray" (the cluster that RAY_ADDRESS names), or '
            'helpers="ray@10.0.0.1:6379"',
        )
    require("ray", f'helpers="{kind}"')
    if plan.knobs.reader != "indexed":
        raise UsageError(
            f'helpers="{kind}": helpers read by index, and reader: {plan.knobs.reader} is in force '
            f"({plan.reader_reason})",
            remedy="use reader: indexed (the data must lie on a file system that all hosts see), "
            "or leave helpers out",
        )
    return replace(plan, helpers=_checked(address or _found_address()))


def cluster_address(purpose: str) -> str:
    """The cluster that the environment names, for a command.

    Args:
        purpose: what asks, as in "--ray".

    Raises:
        MissingExtraError: Ray is not installed.
        UsageError: no cluster is named.
    """
    require("ray", purpose)
    return _checked(_found_address())


def _found_address() -> str:
    """The cluster of a trainer that has joined one, or the one that the environment names.

    Raises:
        UsageError: Ray or the cluster is missing.
    """
    ray = sys.modules.get("ray")  # a trainer's own: this process imports none
    if ray is not None and ray.is_initialized():
        return str(ray.get_runtime_context().gcs_address)
    address = os.environ.get(ADDRESS_VARIABLE, "")
    if not address:
        raise UsageError(
            f"no cluster of Ray's is named, and {ADDRESS_VARIABLE} is not set",
            remedy="start one (`ray start --head --num-cpus=0` here, `ray start --address=HOST:"
            f'6379` on the helpers), then set {ADDRESS_VARIABLE}=HOST:6379 or helpers="ray@HOST:'
            '6379"',
        )
    return address


def _checked(address: str) -> str:
    """An address that names a cluster that runs; we start none."""
    if address == "local" or address.startswith("ray://"):
        raise UsageError(
            f"helpers: {shown(address)} is no address of a cluster that this host belongs to",
            remedy="name the head's own port, such as 10.0.0.1:6379, and have this host join: "
            "`ray start --address=10.0.0.1:6379 --num-cpus=0`",
        )
    return address
