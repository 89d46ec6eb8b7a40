"""Table 1 of sensitivity-guided subnetworks: what four methods cost by its formulas."""

import math
from typing import Any

from leanbayes.errors import InputError, UnknownName
from leanbayes.lab.recipes.relative import RelativeCost

__all__ = ["formula_flops", "table_1"]


def table_1(
    method: str, *, members: int = 5, samples: int = 5, rate: float = 0.01, pretraining_epochs: float = 0
) -> RelativeCost:
    """Return a row of Table 1 as printed, in units of the plain network's parameters θ, FLOPs f_d and memory m.

    The last row adds the pretraining of a whole training, 3 f_d · epochs, to one step's (1 + r)(N + 2) f_d. With
    ``pretraining_epochs=0`` that row is a step like the others, and `formula_flops` adds up a whole training.
    `leanbayes.evaluation.cost.training_flops` counts differently, where M is ``members``, N ``samples`` and r ``rate``:

    - A plain step is 3 f_d without the first layer's gradient for its input, which nobody needs.
    - The ELBO of N draws goes back through each of them, which is 3 N f_d. The paper charges for one backward pass,
      2 f_d.
    - Drawing weights is no product. ``sample`` counts like the plain model, without the factor 2 or 1 + r. ``local``
      and ``flipout`` have a second product wherever a layer has any random weight, so a factor of up to 2 at any r.
    - The code of the paper keeps a dense σ, so its memory is 2 m. LeanBayes keeps k scales and k positions.

    Args:
        method: "deterministic", "ensemble", "vi" or "partial".
        members: the networks of an ensemble. This and all other defaults are the choices of the paper.
        samples: the draws of a training step.
        rate: the share of the weights that is random.
        pretraining_epochs: the epochs for which the plain network is trained first.

    >>> table_1("vi", samples=5).flops, table_1("partial", rate=0.01, pretraining_epochs=10).flops
    (14, 37.07)
    """
    if members < 1 or samples < 1 or not 0 <= rate <= 1 or not 0 <= pretraining_epochs < math.inf:
        raise InputError(
            "need members and samples of at least 1, a rate from 0 to 1 and pretraining_epochs of at least 0, "
            f"got {members}, {samples}, {rate} and {pretraining_epochs}"
        )
    rows = {
        "deterministic": RelativeCost(1, 3, 1),
        "ensemble": RelativeCost(members, 3 * members, members),
        "vi": RelativeCost(2, 2 * (samples + 2), 2),
        "partial": RelativeCost(1 + rate, 3 * pretraining_epochs + (1 + rate) * (samples + 2), 2),
    }
    if method not in rows:
        raise UnknownName.of("method", method, rows)
    return rows[method]


def formula_flops(
    method: str, forward: float, *, epochs: float = 1, pretraining_epochs: float = 0, **settings: Any
) -> float:
    """Return the FLOPs of a whole training by Table 1: f_d · (3 · pretraining epochs + step · epochs).

    With ``epochs=1`` the partial method gives what Table 1 prints.

    Args:
        method: as for `table_1`, which gives the step.
        forward: f_d of everything that one epoch sees. If it is that of one batch, "epochs" are steps.
        epochs: the epochs of training.
        pretraining_epochs: the epochs for which the plain network is trained first.
        **settings: of `table_1`.

    >>> formula_flops("partial", 100, epochs=10, pretraining_epochs=10, samples=5, rate=0.01)
    10070.0
    """
    if not (0 <= forward < math.inf and 0 <= epochs < math.inf and 0 <= pretraining_epochs < math.inf):
        raise InputError(
            "forward, epochs and pretraining_epochs must be finite and at least 0, "
            f"got {forward}, {epochs} and {pretraining_epochs}"
        )
    plain, step = table_1("deterministic").flops, table_1(method, **settings).flops
    return forward * (plain * pretraining_epochs + step * epochs)
