"""The page of examples/browser runs an exported graph of moments in Chromium, with the numbers of Python."""

import json
import shutil
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

import leanbayes as lb
from tests.export.nets import bayesian, net
from tests.integrations.matrix import shows

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "examples" / "browser" / "index.html"
RUNTIME = Path(sys.prefix) / "onnxruntime-web"  # `make` puts it there, by examples/browser/get_runtime.py
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
if BROWSER is None:
    pytest.skip("no chromium or chrome on the PATH", allow_module_level=True)
if not RUNTIME.is_dir():
    pytest.skip(f"run python examples/browser/get_runtime.py {RUNTIME}", allow_module_level=True)
sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

# torch 2.13 uses a class that it deprecates itself.
pytestmark = pytest.mark.filterwarnings("ignore:.*treespec, LeafSpec.*:FutureWarning")
# Torch takes a minute of one core to write the graph of a ViT; the browser needs seconds, whatever the network.
LONG = (pytest.mark.slow, pytest.mark.timeout(3600))
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync"]


class Quiet(SimpleHTTPRequestHandler):
    """A server of files that writes no log."""

    extensions_map: ClassVar[dict[str, str]] = {
        **SimpleHTTPRequestHandler.extensions_map,
        ".mjs": "text/javascript",
        ".wasm": "application/wasm",
    }

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder with the page and onnxruntime-web, and its address."""
    shutil.copyfile(PAGE, tmp_path / "index.html")
    (tmp_path / "ort").symlink_to(RUNTIME)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield tmp_path, f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()
        thread.join()


@pytest.fixture
def page(served: tuple[Path, str]) -> Iterator[Any]:
    """A page in Chromium that may ask the local server only, and must not fail."""
    troubles: list[str] = []
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=FLAGS)
        page = browser.new_page()
        page.set_default_timeout(120_000)
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("request", lambda request: request.url.startswith((served[1], "blob:")) or troubles.append(request.url))
        yield page
        browser.close()
    assert troubles == []


def wait_for(page: Any, words: str) -> None:
    """Wait until the page has done its work, and see that its status has these words."""
    page.wait_for_function("document.getElementById('status').textContent !== 'Working.'")
    assert words in page.inner_text("#status")


@shows(
    "ONNX Runtime",
    "A page in Chromium runs one pass of moments of an MLP, a ResNet, a U-Net and a ViT.",
)
@pytest.mark.parametrize(
    ("kind", "rank"),
    [("mlp", 8), *(pytest.param(kind, 8, marks=LONG) for kind in ("resnet", "unet", "vit"))],
)
def test_the_browser_computes_what_python_computes(kind: str, rank: int, served: tuple[Path, str], page: Any) -> None:
    folder, address = served
    bnn, made, by = bayesian(kind).eval(), net(kind), lb.propagate.Moments(rank=rank)
    lb.export.onnx(bnn, folder / "model.onnx", made.batch, "moments", by=by)
    x = torch.cat([made.batch, made.batch + 0.5])
    page.goto(f"{address}?model=model.onnx&runtime=ort/")
    wait_for(page, "Ready: " + made.input_name)
    got = page.evaluate("batch => window.predict(batch)", x.tolist())
    prediction, law = lb.predict(bnn, x, by=by, samples=8), by.law(bnn, (x,))
    parts = ("mean", "total", "aleatoric", "epistemic")
    want = {part: getattr(prediction, part) for part in parts}
    want |= {"output_mean": law.mean, "output_variance": law.variance}
    assert set(got) == set(want)
    for name, value in want.items():
        numbers = torch.tensor(got[name]["data"], dtype=value.dtype).reshape(got[name]["dims"])
        torch.testing.assert_close(numbers, value.contiguous(), rtol=0, atol=1e-4)
    page.fill("#batch", json.dumps(x.tolist()))
    page.click("#run")
    wait_for(page, "nats")
    cells = [row.split("\t") for row in page.locator("tbody tr").all_inner_texts()]
    assert len(cells) == len(x)
    if made.batch.dim() == 2:
        assert [int(row[1]) for row in cells] == prediction.mean.argmax(1).tolist()
        assert [float(row[5]) for row in cells] == pytest.approx(prediction.epistemic.tolist(), abs=2e-4)


def test_bad_input_is_named_on_the_page(served: tuple[Path, str], page: Any) -> None:
    folder, address = served
    lb.export.onnx(bayesian("mlp"), folder / "model.onnx", net("mlp").batch)
    page.goto(f"{address}?model=model.onnx&runtime=ort/")
    wait_for(page, "Ready")
    for batch, words in (
        ('[[1, "a", 2]]', "holds numbers"),
        ("[[1, 2], [3]]", "differ in length"),
        ("[]", "an empty list"),
    ):
        page.fill("#batch", batch)
        page.click("#run")
        wait_for(page, words)
    page.goto(f"{address}?model=model.onnx&runtime=https://stranger.example/")
    wait_for(page, "is not on this server")
