"""Other orders of samples, where a study's user allows them: drawn, measured, never kept.

``choice`` says which blocks and chains a spec allows and draws them; ``proposal`` is what is told
of the best of them. The order is the spec's, and no knob: no profile keeps it.

Not here: the order itself (``autoloader.order``), measuring one (``tune.trial``).
"""

from autoloader.tune.order.choice import OrderChoice, Setting
from autoloader.tune.order.proposal import OrderProposal, propose

__all__ = ["OrderChoice", "OrderProposal", "Setting", "propose"]
