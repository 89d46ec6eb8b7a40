"""Claims that no experiment here can test, and why not."""

from leanbayes_papers.base import Claim, Verdict

__all__ = ["NOT_HERE"]


def _not_here(paper: str, where: str, text: str, why: str) -> Verdict:
    return Verdict(Claim(paper, where, text), "not testable here", why)


NOT_HERE = (
    _not_here(
        "000",
        "table 1, ChestMNIST",
        "partial 1 % has an accuracy of 0.934 and a Brier score of 0.064, the ensemble 0.936 and 0.053",
        "78,468 X-rays of 224x224 through a ResNet-18 are days on two cores; abboud-breast stands in for it",
    ),
    _not_here(
        "001",
        "section 4.3, figure 7",
        "on ImageNet-C the method “maintains robustness under covariate shift on large-scale data, however it does "
        "not perform better than the baseline ensemble”",
        "ImageNet and ResNet-50 need a GPU for days",
    ),
    _not_here(
        "001",
        "section 4.4, figures 8 and 9",
        "on Cityscapes “PBN has less than 5% degradation in IoU performance compared to the deterministic model”, "
        "VI 40 %",
        "Cityscapes may not be passed on, and a U-Net of 31 million weights at 256x512 needs a GPU; CamVid stands in "
        "for it (subnetworks-camvid)",
    ),
    _not_here(
        "001",
        "section 4.4, figure 9",
        "“PBN-1% is also consistent with uncertainty estimations by ensembles”",
        "said of pictures, without a measure; they are side by side in subnetworks-camvid",
    ),
    _not_here(
        "001",
        "appendix D, figure 12b",
        "layer sparsity of ResNet-50 on ImageNet at 1 %",
        "ImageNet and ResNet-50 need a GPU for days; the small ResNet is in subnetworks-resnet",
    ),
    _not_here(
        "002",
        "section 4, figures 1a and 1b",
        "VDP Cov “takes nearly 10x longer to complete one epoch of training as well as 10x the GPU memory "
        "requirement”; VDP++ “reduces the average epoch time by about 4x over the prior method”",
        "a full covariance is too slow to train here; what both cost is measured by benchmarks/moments_cost.py",
    ),
    _not_here(
        "002",
        "section 4, figure 2a",
        "“The VDP Cov and VDP++ approaches perform similarly on MNIST” when pruned",
        "VDP Cov cannot be trained here; the predictions of one network by both are compared in vdp-mnist",
    ),
    _not_here(
        "002",
        "section 4, figures 2b, 3b and 4b",
        "“This trend continues to hold for the CIFAR-10 experiments”: pruning, noise and explanations with ResNet-18",
        "ResNet-18 by moments on 50,000 images, five times, is days on two cores; vdp-mnist has a LeNet-5",
    ),
    _not_here(
        "002",
        "section 4, figure 5",
        "on ImageNet-1k with ViT-S/16 “the VDP++ model still retains noise robustness and self-compressing properties”",
        "002 trained it on six GPUs; a small ViT on MNIST stands in for it (vdp-vit)",
    ),
    _not_here(
        "003",
        "abstract, figure 1",
        "“reduces the compute time up to 14× for some networks”",
        "wall time of a GPU against gradient accumulation; kl.json has the times of a CPU",
    ),
    _not_here(
        "003",
        "section 5.1, figure 6b",
        "“a reduction of training time per batch, up to 5×”",
        "wall time of a GPU; kl.json has steps of three of its networks on a CPU",
    ),
    _not_here(
        "003",
        "section 1, figure 2 right",
        "“the maximum number of iterations possible on a single GPU (Nvidia 2080 TI)”",
        "it needs that GPU",
    ),
    _not_here(
        "003",
        "section 5.3, table 2",
        "on brain images “the difference approaches 26.7%” in the most confident set",
        "ADNI's images may not be passed on; nazarovs-confidence has made-up volumes",
    ),
    _not_here(
        "004",
        "tables 1 and 2, CIFAR-100",
        "“10x model size compression and FLOPs reduction with under 3% accuracy drop and 0.0001 ECE increase on "
        "CIFAR-100”",
        "CIFAR-100 is not among the data sets here, and 200 epochs of ResNet-18 are weeks on two cores",
    ),
    _not_here(
        "004",
        "table 2",
        "SSVI is better than SBP, AEB and mBNN",
        "these methods are not in the library; variational dropout is (ssvi-cifar)",
    ),
    _not_here(
        "004",
        "section 4.2, figure 2 left",
        "“robust to different sparsity levels” from 50 % to 1 % of the weights",
        "six densities are there at the paper size only; ssvi-cifar has 90 and 95 % of zeros",
    ),
)
