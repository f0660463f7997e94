"""`python -m activault.jobs COMMAND`, where the console script is not on the path."""

import sys

from .entry import main

sys.exit(main())
