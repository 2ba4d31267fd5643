"""What the tests of agents need before they run."""

from __future__ import annotations

# The SDK of ACP takes a second to import. Imported here, before the workers are forked, it does so once; a test that
# imports it in its event loop would stop the loop for as long.
import acp  # noqa: F401
