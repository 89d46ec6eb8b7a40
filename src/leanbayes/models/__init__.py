"""The papers' architectures, by name."""

from leanbayes.models.resnet import ResNet, resnet18

__all__ = ["ResNet", "resnet18"]
