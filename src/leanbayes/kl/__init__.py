"""KL(q‖p) in nats, summed over coordinates: exactly where a closed form is known, else by Monte Carlo."""

from leanbayes.kl.exact import Exact
from leanbayes.kl.monte_carlo import Estimate, MonteCarlo

Estimator = Exact | MonteCarlo

__all__ = ["Estimate", "Estimator", "Exact", "MonteCarlo"]
