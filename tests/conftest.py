"""Settings that all tests share."""

import os

from hypothesis import settings

# No deadline: the first example of a test may compile a kernel.
settings.register_profile("quick", deadline=None, max_examples=50)
settings.register_profile("thorough", deadline=None, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))
