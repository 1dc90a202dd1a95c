"""Which orders of samples a spec allows: blocks of one dataset, and blocks whose samples chain.

Legal by the spec's own rules: every order is put to them when the choice is made. Conditional:
chaining is drawn for blocks above one sample only, and for the indexed reader, the only one that
can choose samples one by one.

A study draws every other setting with the spec's own order, so that the profile is searched as well
as without a choice of orders.

Not here: what is measured (``tune.study``), what is told of it (``tune.order.proposal``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from autoloader.knobs import Knobs
from autoloader.order.chains import why_unchained
from autoloader.spec.mixture.mixing import MixingSpec

if TYPE_CHECKING:
    from optuna.trial import BaseTrial

    from autoloader.samples.resolve.mixture import ResolvedMixture

BLOCK, CHAIN = "mixing.block_length", "mixing.chain"
"""Names of the parameters, and of the spec's fields."""

_BLOCKS = (1, 2, 4, 8, 16)
"""Longer ones leave few episodes in a batch, and share hardly more."""

_REASONED, _FEW = 2, 4
"""Among the first settings is one of short chains: what reasoning would try."""

_LEAST_BLOCKS = 2
"""Blocks that a batch must hold."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What one trial measures.

    Attributes:
        knobs: of the loader.
        mixing: fields of the spec's ``mixing`` that are others; empty: the spec's own order.
    """

    knobs: Knobs
    mixing: Mapping[str, Any] = field(default_factory=dict)

    @property
    def order(self) -> str:
        """The order in a few words; "" for the spec's own."""
        return ", ".join(f"{name} {value}" for name, value in self.mixing.items())

    @property
    def key(self) -> str:
        """The same for equal settings."""
        return repr((sorted(self.knobs.flat().items()), sorted(self.mixing.items())))


@dataclass(frozen=True, slots=True)
class OrderChoice:
    """The orders that a study may draw.

    Attributes:
        own: block and chain of the spec.
        blocks: that may be drawn, the spec's own among them.
        chained: those of them whose samples may be chained.
    """

    own: tuple[int, bool]
    blocks: tuple[int, ...]
    chained: tuple[int, ...] = ()

    @classmethod
    def of(cls, mixture: ResolvedMixture) -> OrderChoice:
        """What the spec of ``mixture`` allows."""
        spec = mixture.spec
        mixing = spec.mixing
        shares = spec.reader != "stream" and any(
            why_unchained(one.sample, keeps=one.keep is not None) is None
            for one in mixture.datasets
        )
        most = max(1, spec.batch.size // _LEAST_BLOCKS)
        own = mixing.block_length
        wanted = sorted({own, *(block for block in _BLOCKS if block <= most)})
        return cls(
            (own, mixing.chain),
            tuple(b for b in wanted if b == own or _legal(mixing, b, chain=False)),
            tuple(b for b in wanted if shares and b > 1 and _legal(mixing, b, chain=True)),
        )

    @property
    def own_point(self) -> dict[str, Any]:
        """The parameters of the spec's own order."""
        block, chain = self.own
        return {BLOCK: block, CHAIN: chain}

    def fixed_point(self, drawn: int, *, own_decided: bool) -> dict[str, Any]:
        """What of the next setting the sampler does not draw.

        Args:
            drawn: settings before it.
            own_decided: nothing better can be found with the spec's own order.
        """
        if not own_decided and drawn % 2 == 0:
            return self.own_point
        if drawn < _REASONED and self.chained:  # frames are shared, and batches stay mixed
            block = max((b for b in self.chained if b <= _FEW), default=self.chained[0])
            return {"reader": "indexed", BLOCK: block, CHAIN: True}
        return {}

    def suggest(self, trial: BaseTrial, knobs: Knobs) -> Setting:
        """An order for drawn knobs, drawn from ``trial``.

        Knobs that a longer block needs otherwise are raised: a queue holds a block.
        """
        block = trial.suggest_categorical(BLOCK, self.blocks)
        chain = self.own[1] and block == self.own[0]
        if block in self.chained and knobs.reader != "stream":
            chain = trial.suggest_categorical(CHAIN, (False, True))
        if (block, chain) == self.own:
            return Setting(knobs)
        wider = max(block, knobs.queue_samples)
        return Setting(
            Knobs.build({"queue_samples": wider}, base=knobs),
            {"block_length": block, "chain": chain},
        )


def _legal(mixing: MixingSpec, block: int, *, chain: bool) -> bool:
    """Whether the spec would be read with this order."""
    changed: dict[str, Any] = {**mixing.model_dump(), "block_length": block, "chain": chain}
    try:
        MixingSpec.model_validate(changed)
    except ValidationError:
        return False
    return True
