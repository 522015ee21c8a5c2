"""What several tests of the server start from."""

from __future__ import annotations

import pytest

from tests.server.live_server import Gated


@pytest.fixture
async def gated() -> Gated:
    """A tool that works until it is let go."""
    return Gated()
