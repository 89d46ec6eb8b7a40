"""The methods that a lean Bayesian network is compared with, each a `Predictor`."""

from leanbayes.baselines.dropout import MCDropout
from leanbayes.baselines.ensemble import Ensemble
from leanbayes.baselines.laplace import LaplaceApproximation
from leanbayes.baselines.swag import Swag
from leanbayes.baselines.temperature import Temperature
from leanbayes.prediction import Predictor

__all__ = ["PREDICTORS", "Ensemble", "LaplaceApproximation", "MCDropout", "Swag", "Temperature"]

PREDICTORS: dict[str, type[Predictor]] = {
    cls.__name__: cls for cls in (Ensemble, LaplaceApproximation, MCDropout, Swag, Temperature)
}
