"""Claims of the papers that no study here tests, and the reason for each."""

from leanbayes_papers import cite
from leanbayes_papers.study import Claim, Verdict

__all__ = ["UNTESTED"]


def _untested(paper: str, where: str, text: str, why: str) -> Verdict:
    return Verdict(Claim(paper, where, text), "not testable here", why)


UNTESTED = (
    _untested(
        cite.ABBOUD,
        "table 1, ChestMNIST",
        "The 1 % network has an accuracy of 0.934 and a Brier score of 0.064, the ensemble 0.936 and 0.053.",
        "Training a ResNet-18 on 78,468 X-rays of 224x224 takes days on two cores; abboud-breast stands in for it.",
    ),
    _untested(
        cite.SUBNETWORKS,
        "section 4.3, figure 7",
        "On ImageNet-C the method “maintains robustness under covariate shift on large-scale data, however it does "
        "not perform better than the baseline ensemble”.",
        "Training ResNet-50 on ImageNet takes days on a GPU.",
    ),
    _untested(
        cite.SUBNETWORKS,
        "section 4.4, figures 8 and 9",
        "On Cityscapes “PBN has less than 5% degradation in IoU performance compared to the deterministic model”, and "
        "the fully random network has 40 %.",
        "Cityscapes may not be redistributed, and a U-Net of 31 million weights at 256x512 needs a GPU; CamVid stands "
        "in for it in subnetworks-camvid.",
    ),
    _untested(
        cite.SUBNETWORKS,
        "section 4.4, figure 9",
        "“PBN-1% is also consistent with uncertainty estimations by ensembles”.",
        "The paper says this of pictures and gives no measure; subnetworks-camvid draws such pictures side by side.",
    ),
    _untested(
        cite.SUBNETWORKS,
        "appendix D, figure 12b",
        "The layers of the 1 % ResNet-50 on ImageNet have the sparsity that the figure shows.",
        "Training ResNet-50 on ImageNet takes days on a GPU; subnetworks-resnet has a small ResNet.",
    ),
    _untested(
        cite.VDP,
        "section 4, figures 1a and 1b",
        "VDP Cov “takes nearly 10x longer to complete one epoch of training as well as 10x the GPU memory "
        "requirement”; VDP++ “reduces the average epoch time by about 4x over the prior method”.",
        "Training with a full covariance is too slow here; benchmarks/moments_cost.py measures the cost of both.",
    ),
    _untested(
        cite.VDP,
        "section 4, figure 2a",
        "“The VDP Cov and VDP++ approaches perform similarly on MNIST” when pruned.",
        "VDP Cov cannot be trained here; vdp-mnist compares the predictions of one network by both.",
    ),
    _untested(
        cite.VDP,
        "section 4, figures 2b, 3b and 4b",
        "“This trend continues to hold for the CIFAR-10 experiments”: pruning, noise and explanations with ResNet-18.",
        "Training ResNet-18 by moments on 50,000 images with five seeds takes days on two cores; vdp-mnist has a "
        "LeNet-5.",
    ),
    _untested(
        cite.VDP,
        "section 4, figure 5",
        "On ImageNet-1k with ViT-S/16 “the VDP++ model still retains noise robustness and self-compressing "
        "properties”.",
        "The authors trained it on six GPUs; a small vision transformer on MNIST stands in for it in vdp-vit.",
    ),
    _untested(
        cite.NAZAROVS,
        "abstract, figure 1",
        "The method “reduces the compute time up to 14× for some networks”.",
        "The paper compares wall times on a GPU with gradient accumulation; kl.json has times on a CPU.",
    ),
    _untested(
        cite.NAZAROVS,
        "section 5.1, figure 6b",
        "The method gives “a reduction of training time per batch, up to 5×”.",
        "The paper measures wall times on a GPU; kl.json has training steps of three of its networks on a CPU.",
    ),
    _untested(
        cite.NAZAROVS,
        "section 1, figure 2 right",
        "The figure shows “the maximum number of iterations possible on a single GPU (Nvidia 2080 TI)”.",
        "The number belongs to that GPU.",
    ),
    _untested(
        cite.NAZAROVS,
        "section 5.3, table 2",
        "On brain images “the difference approaches 26.7%” in the most confident set.",
        "The images of ADNI may not be redistributed; nazarovs-confidence has made-up volumes.",
    ),
    _untested(
        cite.SSVI,
        "tables 1 and 2, CIFAR-100",
        "“10x model size compression and FLOPs reduction with under 3% accuracy drop and 0.0001 ECE increase on "
        "CIFAR-100”.",
        "CIFAR-100 is not among the data sets here, and 200 epochs of ResNet-18 take weeks on two cores.",
    ),
    _untested(
        cite.SSVI,
        "table 2",
        "SSVI is better than SBP, AEB and mBNN.",
        "The library does not have these methods; ssvi-cifar compares with variational dropout, which it has.",
    ),
    _untested(
        cite.SSVI,
        "section 4.2, figure 2 left",
        "SSVI is “robust to different sparsity levels” from 50 % to 1 % of the weights.",
        "Only the paper size has six densities; the cpu size of ssvi-cifar has 90 and 95 % zeros.",
    ),
)
"""The claims, each with the verdict "not testable here"."""
