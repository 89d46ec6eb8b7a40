"""``python -m leanbayes.lab.cli`` is the command ``leanbayes``; ``accelerate launch -m leanbayes.lab.cli`` runs it."""

import sys

from leanbayes.lab.cli import main

if __name__ == "__main__":
    sys.exit(main())
