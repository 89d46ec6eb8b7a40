"""Predictions with uncertainty: of any model or predictor, by draws or in one pass."""

from leanbayes.prediction.draws import outputs_of
from leanbayes.prediction.prediction import Prediction, Predictor, SequenceUncertainty, in_eval, laws_of
from leanbayes.prediction.streaming import predict

__all__ = ["Prediction", "Predictor", "SequenceUncertainty", "in_eval", "laws_of", "outputs_of", "predict"]
