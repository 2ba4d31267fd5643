"""What the tests of models need before they run."""

from __future__ import annotations

# The SDKs take three seconds to import. Imported here, before the workers are forked, they do so once; a test that
# imports them in its event loop would stop the loop for as long.
import pydantic_ai.direct
import pydantic_ai.models.anthropic
import pydantic_ai.models.openai  # noqa: F401
