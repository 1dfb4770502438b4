"""``python -m hashcade.demo``."""

import sys

from hashcade.demo import main

sys.exit(main())
