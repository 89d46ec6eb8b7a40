"""``python -m leanbayes.lab.cli``, which is what `accelerate launch -m leanbayes.lab.cli` runs."""

import sys

from leanbayes.lab.cli import main

sys.exit(main())
