"""Property tests run on machines that do other work at the same time, so no example has a deadline."""

from hypothesis import settings

settings.register_profile("domain", deadline=None, max_examples=100)
settings.load_profile("domain")
