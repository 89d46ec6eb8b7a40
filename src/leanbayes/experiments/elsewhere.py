"""Claims that no experiment here can test, and why not."""

from leanbayes.experiments.base import Claim, Verdict

__all__ = ["NOT_HERE"]


def _not_here(paper: str, where: str, text: str, why: str) -> Verdict:
    return Verdict(Claim(paper, where, text), "not testable here", why)


NOT_HERE = (
    _not_here(
        "000",
        "table 1, ChestMNIST",
        "partial 1 % has an accuracy of 0.934 and a Brier score of 0.064, the ensemble 0.936 and 0.053",
        "78,468 X-rays of 224x224 through a ResNet-18 are days on two cores; BreastMNIST stands in for it (000-breast)",
    ),
    _not_here(
        "000",
        "table 1, ISIC",
        "partial 1 % has an IoU of 0.783 and a Brier score of 0.068, the ensemble 0.808 and 0.109",
        "a U-Net on 2,594 images of 224x224 for 50 epochs, seven times, is days on two cores",
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
        "Cityscapes may not be passed on, and a U-Net of 31 million weights at 256x512 needs a GPU",
    ),
    _not_here(
        "001",
        "appendix G, figure 15",
        "a KS statistic of 0.07 with p < 1e-10 indicates “a high similarity” of weight distributions",
        "a small p says that two laws differ; `weight_distance` measures the distance, and no threshold is stated",
    ),
)
