"""The costs that a comparison of methods reports beside their quality; `leanbayes.evaluation.cost` measures them."""

from leanbayes.metrics.metric import Metric

PARAMETERS = Metric("cost/parameters", "low", "Parameters", "How many numbers the model stores.")
RANDOM = Metric(
    "cost/random", None, "Random weights", "How many weights have a distribution instead of a single value."
)
DENSITY = Metric("cost/density", None, "Density", "The share of the weights that is stored; all others are zero.")
BYTES = Metric("cost/bytes", "low", "Bytes", "The size of the model in memory or on disk.")
TRAIN_SECONDS = Metric("cost/train_seconds", "low", "Training (s)", "The wall-clock time of training, in seconds.")
PREDICT_SECONDS = Metric(
    "cost/predict_seconds", "low", "Prediction (s)", "The wall-clock time of predicting the test set, in seconds."
)
FLOPS_FORWARD = Metric(
    "cost/flops_forward",
    "low",
    "FLOPs, forward",
    "The counted arithmetic operations of predicting one batch with one weight draw.",
)
FLOPS_TRAIN = Metric(
    "cost/flops_train", "low", "FLOPs, training", "The counted arithmetic operations of one training step."
)
FLOPS_FORMULA = Metric(
    "cost/flops_formula",
    "low",
    "FLOPs, formula",
    "The arithmetic operations of one training step by the formula of the paper on sensitivity-guided subnetworks.",
)
PEAK_MEMORY = Metric("cost/peak_memory", "low", "Peak memory (bytes)", "The most memory that is in use at once.")
