"""Predictions with uncertainty: of any model or predictor, by draws or in one pass."""

from leanbayes.predict.draws import outputs_of
from leanbayes.predict.prediction import Prediction, Predictor, in_eval
from leanbayes.predict.streaming import predict

__all__ = ["Prediction", "Predictor", "in_eval", "outputs_of", "predict"]
