"""Hugging Face: the `Trainer` of Transformers, the hub, and model cards with the uncertainty that was measured."""

from leanbayes.integrations.huggingface.card import model_card
from leanbayes.integrations.huggingface.hub import BayesianHubMixin, from_pretrained, push_to_hub, save_pretrained
from leanbayes.integrations.huggingface.trainer import BayesianTrainer

__all__ = [
    "BayesianHubMixin",
    "BayesianTrainer",
    "from_pretrained",
    "model_card",
    "push_to_hub",
    "save_pretrained",
]
