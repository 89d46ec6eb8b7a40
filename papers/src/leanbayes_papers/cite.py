"""The short names under which this package cites the five papers; docs/references.md has the full references."""

__all__ = ["ABBOUD", "NAZAROVS", "OURS", "SSVI", "SUBNETWORKS", "TITLES", "VDP"]

ABBOUD = "Abboud et al. 2024"
SUBNETWORKS = "Sensitivity-guided subnetworks"
VDP = "VDP++"
NAZAROVS = "Nazarovs et al. 2021"
SSVI = "SSVI (Li et al. 2024)"
OURS = "LeanBayes"
"""The source of a claim that no paper makes: a question of our own."""

TITLES = {
    ABBOUD: "Abboud et al. 2024: sparse Bayesian networks for medical images",
    SUBNETWORKS: "Sensitivity-guided subnetworks (anonymous, under review)",
    VDP: "VDP++: efficient scaling of Bayesian neural networks (anonymous, under review)",
    NAZAROVS: "Nazarovs et al. 2021: graph reparameterizations for a Monte Carlo KL",
    SSVI: "SSVI (Li et al. 2024): sparse subspace variational inference",
    OURS: "LeanBayes: questions that no paper asks",
}
"""The heading of each source on the page of claims, in the order of that page."""
