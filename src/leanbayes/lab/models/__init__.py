"""Architectures that are found by name, and the functions of users as ``"package.module:function"``."""

from leanbayes.lab.models.architecture import Architecture
from leanbayes.lab.models.architectures.densenet import DenseNet, densenet
from leanbayes.lab.models.architectures.encoder3d import Encoder3d, encoder3d
from leanbayes.lab.models.architectures.lenet import lenet5, lenet300
from leanbayes.lab.models.architectures.mlp import mlp
from leanbayes.lab.models.architectures.parts import Stem
from leanbayes.lab.models.architectures.resnet import ResNet, preact_resnet, resnet, resnet18, resnet50, small_resnet
from leanbayes.lab.models.architectures.small_cnn import small_cnn
from leanbayes.lab.models.architectures.unet import UNet, unet
from leanbayes.lab.models.architectures.vgg import alexnet, vgg16
from leanbayes.lab.models.architectures.vit import ViT, vit
from leanbayes.lab.models.named import MODELS, model_named

__all__ = [
    "MODELS", "Architecture", "DenseNet", "Encoder3d", "ResNet", "Stem", "UNet", "ViT", "alexnet", "densenet",
    "encoder3d", "lenet5", "lenet300", "mlp", "model_named", "preact_resnet", "resnet", "resnet18", "resnet50",
    "small_cnn", "small_resnet", "unet", "vgg16", "vit",
]  # fmt: skip
