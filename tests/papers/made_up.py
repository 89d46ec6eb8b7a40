"""Made-up results of studies, by which the tests choose what the verdicts should be."""

import zlib

import numpy as np

from leanbayes_papers import STUDIES, Job, Results
from leanbayes_papers.noise import SNRS

_PICTURE = np.eye(4).tolist()
DRAWN = {
    "mean": [0.0] * 61, "deviation": [1.0] * 61, "pixels": _PICTURE, "curve": [2.0, 1.0], "raters": [_PICTURE] * 2,
    "entropy": [_PICTURE] * 2,
}  # fmt: skip
"""What the figures of the studies draw beside metrics."""


class Metrics(dict):
    """Any measure: the same number for each method, with a little noise, unless ``given`` has another."""

    def __init__(self, job: Job, given: dict[tuple[str, str], float]) -> None:
        super().__init__()
        self.job, self.given = job, given

    def __contains__(self, name: object) -> bool:
        return True

    def __getitem__(self, name: str) -> float:
        noise = np.random.default_rng([zlib.crc32(f"{self.job} {name}".encode())]).normal()
        return self.given.get((name, self.job.method), 0.5) + 1e-6 * noise


def made_up(name: str, size: str, given: dict[tuple[str, str], float] | None = None) -> dict[str, str]:
    """Return the answers to all claims, by their words, as if the jobs had returned these numbers."""
    study = STUDIES[name]
    chosen = study.sizes[size]
    jobs = study.jobs(chosen, range(3))
    outcome = study.conclude(Results([(j, {"metrics": Metrics(j, given or {}), **DRAWN}) for j in jobs]), chosen)
    assert [verdict.claim for verdict in outcome.verdicts] == list(study.claims)
    assert outcome.tables
    return {verdict.claim.text: verdict.answer for verdict in outcome.verdicts}


def curve(measure: str, method: str, *, rising: bool = False) -> dict[tuple[str, str], float]:
    """Return a measure that falls, or rises, as the SNR rises."""
    values = [1.0, 0.8, 0.6, 0.5, 0.45, 0.41, 0.4]
    return {
        (f"{measure}@{snr:g} dB", method): value
        for snr, value in zip(SNRS, values[:: -1 if rising else 1], strict=True)
    }
