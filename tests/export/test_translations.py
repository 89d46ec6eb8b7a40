"""Decompositions in the operators of ONNX agree with those of torch in float64."""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

from leanbayes.export.onnx_file import _quiet
from leanbayes.export.translations import TRANSLATIONS, tournament

# torch 2.13 uses a class that it deprecates itself.
pytestmark = pytest.mark.filterwarnings("ignore:.*treespec, LeafSpec.*:FutureWarning")


class Decompositions(nn.Module):
    def forward(self, matrix: Tensor) -> tuple[Tensor, ...]:
        triangle, _ = torch.linalg.cholesky_ex(matrix)
        eye = torch.eye(matrix.shape[-1]).expand_as(triangle)
        return triangle, torch.linalg.solve_triangular(triangle, eye, upper=False), *torch.linalg.eigh(matrix)


@pytest.mark.parametrize("rows", [7, 12])
def test_small_matrices(rows: int, tmp_path: Path) -> None:
    factors = torch.randn(3, rows, rows, generator=torch.Generator().manual_seed(0))
    matrix = factors @ factors.mT + 0.1 * torch.eye(rows)
    with _quiet():
        program = torch.export.export(Decompositions(), (matrix,), strict=False)
        written = torch.onnx.export(program, dynamo=True, verbose=False, custom_translation_table=TRANSLATIONS)
    assert written is not None
    written.save(tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    triangle, inverse, values, vectors = map(torch.as_tensor, session.run(None, {"matrix": np.asarray(matrix)}))
    truth = torch.linalg.cholesky(matrix.double())
    torch.testing.assert_close(triangle.double(), truth, rtol=0, atol=1e-5)
    torch.testing.assert_close(inverse.double() @ truth, torch.eye(rows).double().expand_as(truth), rtol=0, atol=1e-5)
    torch.testing.assert_close(values.double(), torch.linalg.eigvalsh(matrix.double()), rtol=0, atol=3e-5)
    torch.testing.assert_close((vectors * values[:, None]) @ vectors.mT, matrix, rtol=0, atol=3e-5)
    torch.testing.assert_close(vectors.mT @ vectors, torch.eye(rows).expand_as(matrix), rtol=0, atol=1e-6)


@pytest.mark.parametrize("players", [2, 4, 8, 24])
def test_in_a_tournament_everybody_meets_everybody_once(players: int) -> None:
    order, met = np.arange(players), set()
    for _ in range(players - 1):
        met |= {frozenset((int(order[p]), int(order[p + 1]))) for p in range(0, players, 2)}
        order = (order @ tournament(players)).astype(int)
    assert len(met) == players * (players - 1) // 2
