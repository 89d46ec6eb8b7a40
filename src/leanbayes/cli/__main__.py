"""``python -m leanbayes.cli``, which is what `accelerate launch -m leanbayes.cli` runs."""

import sys

from leanbayes.cli import main

sys.exit(main())
