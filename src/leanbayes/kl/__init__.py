"""The divergence KL(q‖p) from posterior to prior, in nats and summed over the random coordinates.

`Exact` computes it where a closed form is known, and `MonteCarlo` estimates it for any pair of distributions.
"""

from leanbayes.kl.exact import Exact
from leanbayes.kl.monte_carlo import Estimate, MonteCarlo

Estimator = Exact | MonteCarlo
"""A way to compute a divergence."""

__all__ = ["Estimate", "Estimator", "Exact", "MonteCarlo"]
