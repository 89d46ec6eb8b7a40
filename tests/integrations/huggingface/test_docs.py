"""The page on Hugging Face shows what works."""

from pathlib import Path

from tests.integrations.matrix import shows
from tests.integrations.pages import run_page


@shows("Transformers", "The code of the page on Hugging Face runs.")
def test_the_page_runs(tmp_path: Path) -> None:
    run_page("docs/integrations/huggingface.md", tmp_path)
