"""Fetch the two files of onnxruntime-web that `index.html` needs, so that the page works without the internet.

    python examples/browser/get_runtime.py ort

It asks npm, which must be installed, for one release, and compares its checksum with the one below. The files are those
of the CPU; with 14 megabytes they are too large for this repository.
"""

import argparse
import base64
import hashlib
import io
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

RELEASE = "onnxruntime-web@1.30.0"
CHECKSUM = "q0y+JrrtukXSzsBWEMccVfqX25LRmosXHF+CaRJmg8pZClzcV7svNc4rKY3jL02Vb7QmRMDs1SigqR4CXAfKYQ=="  # SHA-512
FILES = ("ort.wasm.bundle.min.mjs", "ort-wasm-simd-threaded.wasm")


def fetch(folder: Path) -> None:
    """Write the files into a folder, which is made if it does not exist."""
    if shutil.which("npm") is None:
        sys.exit("npm is not installed; install Node.js, or let the page take onnxruntime-web from jsdelivr.net")
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run(["npm", "pack", "--silent", RELEASE], cwd=scratch, check=True, stdout=subprocess.DEVNULL)
        (archive,) = Path(scratch).glob("*.tgz")
        content = archive.read_bytes()
    checksum = base64.b64encode(hashlib.sha512(content).digest()).decode()
    if checksum != CHECKSUM:
        sys.exit(f"the checksum of {RELEASE} is {checksum}, and should be {CHECKSUM}; nothing is written")
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(content)) as packed:
        for name in FILES:
            member = packed.extractfile(f"package/dist/{name}")
            assert member is not None
            (folder / name).write_bytes(member.read())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    fetch(parser.parse_args().folder)
