"""The pictures of docs/medical.md: runs its lines of shell, and photographs the pages in Chromium.

    python benchmarks/medical_pictures.py --work out/medical --data DATA

DATA holds LIDC. Folders of ``--work`` that are already there are not made again.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "pictures"
DESK = {"width": 1280, "height": 900}


def blocks() -> list[list[str]]:
    """Return the lines of each block of shell in the page."""
    text = (ROOT / "docs" / "medical.md").read_text()
    part = text.split("## From files to a review page\n")[1].split("\n## ")[0]
    found = re.findall(r"^```sh\n(.*?)^```$", part, re.S | re.M)
    return [block.replace("\\\n", " ").strip().splitlines() for block in found]


def run(line: str, work: Path, data: Path) -> None:
    """Run one line in the folder, unless what it makes is there."""
    made = re.search(r"--out (\S+)", line) or re.search(r"(scans|lidc|lidc\.npz)(?: --patients \d+)?$", line)
    if made and (work / made[1]).exists():
        return
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    subprocess.run(line.replace(" data ", f" {data} "), shell=True, check=True, cwd=work, env=environment)


def photograph(work: Path) -> None:
    """Write the pictures of the three pages."""
    from playwright.sync_api import sync_playwright

    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox", "--disable-gpu"])
        page = chromium.new_page(viewport=DESK)
        for folder, name in (("maps", "review_volumes"), ("lidc-maps", "review_lidc")):
            page.goto((work / folder / "review.html").resolve().as_uri())
            page.wait_for_timeout(500)
            page.locator("main").screenshot(path=PICTURES / f"{name}.png")
        page.goto((work / "lidc-compare" / "report.html").resolve().as_uri())
        page.wait_for_timeout(500)
        page.locator("#showcase .panel").nth(1).screenshot(path=PICTURES / "compare_lidc.png")
        chromium.close()


def main() -> None:
    """Run the lines and photograph the pages."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--work", type=Path, default=Path("out/medical"))
    parser.add_argument("--data", type=Path, required=True, help="the data directory that holds LIDC")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    for line in (line for block in blocks() for line in block):
        run(line, options.work, options.data.resolve())
    photograph(options.work)


if __name__ == "__main__":
    main()
