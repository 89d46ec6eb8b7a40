"""How randomness passes through a network: by draws, or by moments in one pass.

Each way is a value, such as ``Sample()`` or ``Moments(rank=0)``. A name such as ``"sample"`` is a shorthand for the
value with its defaults. `leanbayes.Bayesian` takes one value for training (``propagate``) and one for prediction
(``predict_by``).

| value | name | what it does |
|---|---|---|
| `Sample` | ``"sample"`` | one weight draw for the whole batch; in predictions also balanced groups of them |
| `Mirrored` | ``"mirrored"`` | a draw for half of the batch, its mirror image for the other half; made for batch norm |
| `Local` | ``"local"`` | the noise of the weights is moved to the outputs of each layer |
| `Flipout` | ``"flipout"`` | one draw, its sign flipped at random for each example |
| `Moments` | ``"moments"`` | mean and variance in one pass, without samples |
| `Covariance` | ``"covariance"`` | mean and covariance in one pass, for small models |
"""

from leanbayes.propagate.by_covariance import Covariance
from leanbayes.propagate.by_moments import Moments
from leanbayes.propagate.flipout import Flipout
from leanbayes.propagate.local import Local
from leanbayes.propagate.mirrored import Mirrored
from leanbayes.propagate.propagation import PROPAGATIONS, OnePass, Propagation, PropagationLike, as_propagation
from leanbayes.propagate.sample import Sample

__all__ = [
    "PROPAGATIONS",
    "Covariance",
    "Flipout",
    "Local",
    "Mirrored",
    "Moments",
    "OnePass",
    "Propagation",
    "PropagationLike",
    "Sample",
    "as_propagation",
]
